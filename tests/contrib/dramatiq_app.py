"""Actors of a process under test, which takes notes of what it runs."""

from __future__ import annotations

import os

import dramatiq

from gnsq_like.contrib.dramatiq import NSQBroker
from tests.support.notes import note, run

broker = NSQBroker(nsqd_tcp_addresses=os.environ["NSQD"].split(","))
dramatiq.set_broker(broker)


class Booting(dramatiq.Middleware):
    """Notes when a worker is there, from when on the program can be stopped in order, and whose child it is."""

    def after_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        note("booted", os.getppid())


broker.add_middleware(Booting())


@dramatiq.actor(max_retries=2, min_backoff=10, max_backoff=20)
def job(name: str) -> None:
    run(name)
