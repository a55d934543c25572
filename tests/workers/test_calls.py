"""Time limits of handlers."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from types import FrameType

import gevent
import pytest
from gevent.event import Event

from gnsq_like import Batch, Message, Reader
from gnsq_like.workers.worker import Calls
from tests.support.daemons import wait_for


def limited(handler: object, calls: Calls, **options: object) -> Reader:
    reader = Reader("clicks", "archive", handler, nsqd_tcp_addresses="127.0.0.1:1", **options)  # type: ignore[arg-type]
    calls.watch(reader)
    return reader


def test_a_handler_that_takes_too_long_is_interrupted() -> None:
    reader = limited(lambda message: Event().wait(), Calls(0.05))
    assert callable(reader.handler)
    with pytest.raises(gevent.Timeout, match=r"0\.05 seconds"):
        reader.handler(None)  # type: ignore[arg-type]


def test_each_call_has_its_own_limit() -> None:
    """Also the next one in the same greenlet, and one that ends as another is interrupted."""
    calls = Calls(0.2)
    short = Event()
    interrupted: dict[str, float] = {}

    def handle(name: str) -> None:
        began = time.monotonic()
        try:
            (short if name == "waits for the other" else Event()).wait()
        except gevent.Timeout:
            interrupted[name] = time.monotonic() - began
            short.set()

    reader = limited(handle, calls)
    assert callable(reader.handler)
    greenlets = [gevent.spawn(reader.handler, "first")]
    gevent.sleep(0.1)
    greenlets.append(gevent.spawn(reader.handler, "waits for the other"))
    gevent.joinall(greenlets)
    reader.handler("second")  # type: ignore[arg-type]
    assert interrupted.keys() >= {"first", "second"}
    # On a slow machine the one between them may reach its limit before it is woken; none is interrupted earlier.
    assert min(interrupted.values()) >= 0.2
    assert calls.oldest() == 0


@pytest.mark.parametrize(("calls", "options"), [(Calls(), {}), (Calls(0.01), {"spawn": "thread"})])
def test_without_a_limit_and_in_threads_nothing_is_raised(calls: Calls, options: dict[str, object]) -> None:
    reader = limited(lambda message: gevent.sleep(0.05), calls, **options)
    assert callable(reader.handler)
    assert reader.handler(None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("spawn", ["greenlet", "thread"])
def test_the_longest_running_call_is_known(spawn: str) -> None:
    """Also one that ignores its limit."""
    calls = Calls(0.01)
    ends = [Event(), Event()]
    began: list[float] = []

    def handle(number: int) -> None:
        began.append(time.monotonic())
        while not ends[number].is_set():
            with suppress(gevent.Timeout):
                ends[number].wait()

    reader = limited(handle, calls, spawn=spawn)
    assert callable(reader.handler)
    assert calls.oldest() == 0
    first = gevent.spawn(reader.handler, 0)
    wait_for(lambda: len(began) == 1)
    before_second = time.monotonic()
    second = gevent.spawn(reader.handler, 1)
    wait_for(lambda: len(began) == 2)
    at_least = time.monotonic() - began[0]
    assert calls.oldest() >= at_least
    ends[0].set()
    first.join()
    oldest = calls.oldest()
    assert 0 < oldest <= time.monotonic() - before_second
    ends[1].set()
    second.join()
    assert calls.oldest() == 0


def test_a_batch_keeps_its_limits() -> None:
    def handle(messages: list[Message]) -> bool:
        return True

    batch = limited(Batch(handle, size=7, interval=2.5), Calls(1.0)).handler
    assert isinstance(batch, Batch)
    assert (batch.size, batch.interval) == (7, 2.5)
    assert batch.handler([]) is True


def test_what_a_call_costs() -> None:
    """Not a timer each, which costs more than an empty handler."""
    reader = limited(lambda message: None, Calls(60.0))
    handler = reader.handler
    assert callable(handler)
    made: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_call"):
            made.append(event)

    handler(None)  # type: ignore[arg-type]
    sys.setprofile(note)
    try:
        handler(None)  # type: ignore[arg-type]
    finally:
        sys.setprofile(None)
    # The limited handler, getcurrent, monotonic, due, the handler, pop, and setprofile.
    assert len(made) <= 7
