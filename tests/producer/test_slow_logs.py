"""Handlers of the log that wait for ever, and filters that raise: publishes end as they would without."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import gevent
import pytest
from gevent.event import Event

from gnsq_like import Producer
from gnsq_like.errors import NotSent
from tests.support.daemons import running_nsqd, wait_for
from tests.support.nsqds import nowhere
from tests.support.peer import PATIENCE

Make = Callable[..., Producer]


class Waiting(logging.Handler):
    """Waits, as one that writes to a server that does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.released = Event()
        self.records = 0

    def createLock(self) -> None:
        self.lock = None  # greenlets wait for it here, which would say nothing about the client

    def emit(self, record: logging.LogRecord) -> None:
        self.records += 1
        self.released.wait()


class Raising(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.released = Event()
        self.records = 0

    def handle(self, record: logging.LogRecord) -> bool:
        self.records += 1
        raise ValueError("a filter failed")


@pytest.fixture(params=[Waiting, Raising], ids=["waits", "raises"])
def handler(request: pytest.FixtureRequest) -> Iterator[Waiting | Raising]:
    made: Waiting | Raising = request.param()
    package = logging.getLogger("gnsq_like")
    package.addHandler(made)
    yield made
    package.removeHandler(made)
    made.released.set()


@pytest.mark.parametrize("fail_fast", [False, True], ids=["patient", "fail_fast"])
def test_publishes_end_in_time_and_go_on_when_nsqd_is_back(
    make: Make, handler: Waiting | Raising, fail_fast: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    address = nowhere()
    producer = make(address, fail_fast=fail_fast)
    for _ in range(3):
        with pytest.raises(NotSent):
            producer.publish("t", b"x", timeout=0.2)
    wait_for(lambda: handler.records, "a log record")
    assert bool(producer.stats()["away"]) is fail_fast
    with running_nsqd("ours", tcp_address=address):
        wait_for(lambda: not producer.stats()["away"], "the end of the outage")
        callers = [gevent.spawn(producer.publish, "t", b"x") for _ in range(10)]
        gevent.joinall(callers, timeout=PATIENCE, raise_error=True)
    assert all(caller.successful() for caller in callers)
    handler.released.set()
    capsys.readouterr()  # what the raising one has printed
