"""Tasks of a process under test, which takes notes of what it runs."""

from __future__ import annotations

import os

from celery import Celery, signals

# Makes kombu know nsq://
import gnsq_like.contrib.celery  # noqa: F401
from tests.support.notes import note, run

app = Celery("tests.contrib.celery_app", broker=f"nsq://{os.environ['NSQD']}")
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=2)


@signals.worker_ready.connect
def ready(**_: object) -> None:
    """From when on the worker can be stopped in order."""
    note("ready", "worker")


@app.task(autoretry_for=(ValueError,), max_retries=2, default_retry_delay=0.1, retry_backoff=False)
def job(name: str) -> None:
    run(name)
