"""The jobs of benchmarks/jobs.py for Dramatiq."""

from __future__ import annotations

import os
import time

import dramatiq
from _jobs_done import ADDRESSES, BROKER, done
from dramatiq.errors import BrokerConnectionError as Unsent  # noqa: F401


def _make_broker() -> dramatiq.Broker:
    if BROKER == "nsq":
        from gnsq_like.contrib.dramatiq import NSQBroker

        return NSQBroker(nsqd_tcp_addresses=ADDRESSES.split(","), producer={"timeout": 2.0})
    from dramatiq.brokers.redis import RedisBroker

    return RedisBroker(url=f"redis://{ADDRESSES}/0")


class _Booting(dramatiq.Middleware):
    def after_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        done("booted", os.getpid())


broker = _make_broker()
broker.add_middleware(_Booting())
dramatiq.set_broker(broker)


@dramatiq.actor
def job(number: int, sent: float, seconds: float) -> None:
    time.sleep(seconds)
    done(number, sent)


def send(number: int, seconds: float = 0.0) -> None:
    job.send(number, time.time(), seconds)


def send_later(number: int, due: float) -> None:
    job.send_with_options(args=(number, due, 0.0), delay=int(1000 * (due - time.time())))


def close() -> None:
    broker.close()
