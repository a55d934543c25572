"""Time limits of handlers."""

from __future__ import annotations

import time

import gevent
import pytest
from gevent.event import Event

from gnsq_like import Batch, Message, Reader
from gnsq_like.testing import wait_until
from gnsq_like.tools.supervisor.calls import Calls


def reader_of(handler: object, **options: object) -> Reader:
    return Reader("clicks", "archive", handler, nsqd_tcp_addresses="127.0.0.1:1", **options)  # type: ignore[arg-type]


def test_a_handler_that_takes_too_long_is_interrupted() -> None:
    reader = reader_of(lambda message: Event().wait())
    Calls(0.05).watch(reader)
    assert callable(reader.handler)
    with pytest.raises(gevent.Timeout):
        reader.handler(None)  # type: ignore[arg-type]


def test_without_a_limit_and_in_threads_nothing_is_raised() -> None:
    for calls, options in ((Calls(), {}), (Calls(0.01), {"spawn": "thread"})):
        reader = reader_of(lambda message: gevent.sleep(0.05), **options)
        calls.watch(reader)
        assert callable(reader.handler)
        assert reader.handler(None) is None  # type: ignore[arg-type]


def test_the_longest_running_call_is_known() -> None:
    calls = Calls()
    ends = [Event(), Event()]
    began: list[float] = []

    def handle(number: int) -> None:
        began.append(time.monotonic())
        ends[number].wait()

    reader = reader_of(handle)
    calls.watch(reader)
    assert callable(reader.handler)
    assert calls.oldest() == 0
    first = gevent.spawn(reader.handler, 0)
    wait_until(lambda: len(began) == 1)
    before_second = time.monotonic()
    second = gevent.spawn(reader.handler, 1)
    wait_until(lambda: len(began) == 2)
    at_least = time.monotonic() - began[0]
    assert calls.oldest() >= at_least
    ends[0].set()
    first.join()
    oldest = calls.oldest()
    assert 0 < oldest <= time.monotonic() - before_second
    ends[1].set()
    second.join()
    assert calls.oldest() == 0


def test_a_batch_keeps_its_limits_and_other_wrappers_are_outside() -> None:
    seen: list[str] = []

    def handle(messages: list[Message]) -> str:
        return "handled"

    reader = reader_of(Batch(handle, size=7, interval=2.5))
    calls = Calls(1.0)

    def wrap(handler: object) -> object:
        assert callable(handler)

        def wrapped(given: object) -> object:
            seen.append("wrapped")
            return handler(given)

        return wrapped

    calls.watch(reader, wrap)  # type: ignore[arg-type]
    batch = reader.handler
    assert isinstance(batch, Batch)
    assert (batch.size, batch.interval) == (7, 2.5)
    assert batch.handler([]) == "handled"
    assert seen == ["wrapped"]
