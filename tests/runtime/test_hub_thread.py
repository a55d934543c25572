"""A thread with a hub of its own: it starts, runs what is handed over, outlives errors and ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from gnsq_like.errors import NO_DESCRIPTORS, NotRunning, NSQError
from gnsq_like.runtime.hub_thread import HubThread
from gnsq_like.runtime.native import thread_id
from gnsq_like.runtime.thread_pool import call_blocking, hub_threads
from tests.support.daemons import wait_for
from tests.support.processes import no_descriptors


@pytest.fixture
def thread() -> Iterator[HubThread]:
    thread = HubThread("under test")
    yield thread
    thread.end(60.0)


def test_a_function_runs_in_the_thread_and_may_switch(thread: HubThread) -> None:
    def work() -> int:
        gevent.sleep(0)
        return thread_id()

    handle = thread.start()
    assert handle.run(work) not in {thread_id(), None}
    assert handle.run(work) == handle.thread


def test_starting_twice_is_one_thread_and_it_has_its_name(thread: HubThread) -> None:
    assert thread.start() is thread.start()
    assert [each.name for each in threading.enumerate()].count("under test") == 1


def test_it_ends_and_starts_again(thread: HubThread) -> None:
    first = thread.start()
    assert thread.end(60.0)
    assert thread.hub_handle is None
    assert thread.end(60.0)
    second = thread.start()
    assert second is not first
    assert second.run(thread_id) == second.thread


def test_it_ends_soon_and_its_end_is_waited_for() -> None:
    thread = HubThread("under test")
    assert thread.join(0)
    handle = thread.start()
    assert handle.run(lambda: thread.here)
    assert not thread.here
    assert not thread.join(0)
    handle.run(thread.end_soon)
    assert thread.join(60.0)
    assert "under test" not in {each.name for each in threading.enumerate()}


def test_its_end_fails_the_calls_that_wait_and_those_that_come_later(thread: HubThread) -> None:
    handle = thread.start()
    raised: list[Exception] = []
    begun = threading.Event()

    def stay() -> None:
        begun.set()
        gevent.sleep(1000)

    def wait() -> None:
        try:
            handle.run(stay)
        except NotRunning as exc:
            raised.append(exc)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_for(begun.is_set)
    assert thread.end(60.0)
    wait_for(lambda: not waiting.is_alive())
    assert len(raised) == 1
    with pytest.raises(NotRunning, match="has ended"):
        handle.run(thread_id)


def test_without_descriptors_it_does_not_start_and_may_start_later(thread: HubThread) -> None:
    with no_descriptors(os.getpid()), pytest.raises(NSQError, match=NO_DESCRIPTORS):
        thread.start()
    handle = thread.start()
    assert handle.run(thread_id) == handle.thread


def test_it_goes_on_after_what_a_greenlet_raises_into_it(thread: HubThread, caplog: pytest.LogCaptureFixture) -> None:
    """SystemExit in a greenlet of the thread reaches whatever waits in its main greenlet."""

    def leave() -> None:
        raise SystemExit(3)

    handle = thread.start()
    before = handle.thread
    handle.call(gevent.spawn, leave)
    while not any("continues after an error" in record.getMessage() for record in caplog.records):
        handle.run(gevent.sleep, 0)
    assert handle.run(thread_id) == before


def test_its_end_ends_its_threads_for_blocking_calls(thread: HubThread) -> None:
    def block() -> Any:
        call_blocking(lambda: None, 60.0)
        return hub_threads()._pool

    pool = thread.start().run(block)
    assert pool.size == 1
    assert thread.end(60.0)
    assert pool.size == 0
