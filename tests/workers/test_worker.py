"""A worker process that is driven by its pipes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gnsq_like import Reader
from gnsq_like.workers.plan import Plan
from gnsq_like.workers.process import WorkerProcess
from tests.support.commands import needs_proc
from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.patient import NsqdHTTPClient

pytestmark = [needs_proc, pytest.mark.commands]


def readers(address: str) -> list[Reader]:
    """What the worker runs."""
    # Without adaptive_rdy, RDY is what it may have at once.
    reader = Reader(
        "work", "workers", lambda message: None, nsqd_tcp_addresses=address, max_in_flight=8, adaptive_rdy=False
    )
    return [reader]


@contextmanager
def loaded_worker(nsqd: Running) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(1, Plan(loader=f"{__name__}:readers", arguments=(nsqd.tcp_address,)))
    try:
        wait_for(lambda: any(each["is"] == "loaded" for each in worker.read()), "its Readers", 60)
        yield worker
    finally:
        worker.commands.send("stop", timeout=10.0)
        worker.wait()
        worker.close()
    assert worker.status == 0


def rdy(nsqd: Running) -> list[int]:
    """The RDY of each client."""
    with NsqdHTTPClient(nsqd.http_address) as client:
        channels = [channel for topic in client.stats()["topics"] for channel in topic["channels"]]
    return [each["ready_count"] for channel in channels for each in channel["clients"] or ()]


def test_a_share_that_comes_with_the_start_holds() -> None:
    # As when the number of processes changes at that moment.
    with running_nsqd("process") as nsqd, loaded_worker(nsqd) as worker:
        worker.commands.send("run", shares=[2])
        worker.commands.send("run", shares=[5])
        wait_for(lambda: rdy(nsqd) == [5], "RDY 5")
        worker.commands.send("run", shares=[3])
        wait_for(lambda: rdy(nsqd) == [3], "RDY 3")
