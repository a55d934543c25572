"""The jobs of benchmarks/jobs.py for Celery, acknowledged late."""

from __future__ import annotations

import os
import time

from _jobs_done import ADDRESSES, BROKER, done
from celery import Celery, signals
from kombu.exceptions import OperationalError as Unsent  # noqa: F401

import gnsq_like.contrib.celery  # noqa: F401

if BROKER == "nsq":
    app = Celery("_jobs_celery", broker="nsq://")
    options = {"nsqd_tcp_addresses": ADDRESSES.split(","), "producer": {"timeout": 2.0}}
    app.conf.update(broker_transport_options=options)
else:
    app = Celery("_jobs_celery", broker=f"redis://{ADDRESSES}/0")
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, task_ignore_result=True)


def booted(**_: object) -> None:
    done("booted", os.getpid())


signals.worker_process_init.connect(booted)
signals.worker_ready.connect(booted)


def work(number: int, sent: float, seconds: float) -> None:
    time.sleep(seconds)
    done(number, sent)


job = app.task(work)


def send(number: int, seconds: float = 0.0) -> None:
    job.apply_async((number, time.time(), seconds), retry=False)


def send_later(number: int, due: float) -> None:
    job.apply_async((number, due, 0.0), countdown=due - time.time(), retry=False)


def close() -> None:
    app.close()
