"""The jobs of benchmarks/jobs.py, for a worker of Dramatiq: each appends a line, "number sent done", to a file."""

from __future__ import annotations

import os
import time

import dramatiq

BROKER, _, ADDRESSES = os.environ["JOBS_BROKER"].partition(":")
_FILE = os.open(os.environ["JOBS_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _make_broker() -> dramatiq.Broker:
    if BROKER == "nsq":
        from gnsq_like.contrib.dramatiq import NSQBroker

        return NSQBroker(nsqd_tcp_addresses=ADDRESSES.split(","), producer={"timeout": 2.0})
    from dramatiq.brokers.redis import RedisBroker

    return RedisBroker(url=f"redis://{ADDRESSES}/0")


class _Booting(dramatiq.Middleware):
    def after_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        os.write(_FILE, f"booted {os.getpid()} 0\n".encode())


broker = _make_broker()
broker.add_middleware(_Booting())
dramatiq.set_broker(broker)


@dramatiq.actor
def job(number: int, sent: float, seconds: float) -> None:
    if seconds:
        time.sleep(seconds)
    os.write(_FILE, f"{number} {sent} {time.time()}\n".encode())
