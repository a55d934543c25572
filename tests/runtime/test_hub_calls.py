"""Calls from any thread into one thread's hub, and waits for what that thread settles."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

from gnsq_like.errors import NO_DESCRIPTORS, NSQError
from gnsq_like.runtime.hub_calls import (
    HubHandle,
    call_here,
    handle_here,
    handle_if_hub,
    own_hub,
)
from gnsq_like.runtime.hub_thread import HubThread
from gnsq_like.runtime.native import thread_id
from gnsq_like.runtime.pending_reply import PendingReply
from tests.support.daemons import wait_for
from tests.support.processes import no_descriptors
from tests.support.scripts import run_script


@pytest.fixture
def there() -> Iterator[HubHandle]:
    """The hub of another thread."""
    thread = HubThread("there")
    yield thread.start()
    assert thread.end(30)


def in_a_thread(function: Callable[[], Any]) -> Any:
    """What the function gives, in a thread that has no hub of its own unless it makes one."""
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(function())
        except BaseException as exc:
            outcome.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    wait_for(lambda: not thread.is_alive())
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def with_a_hub(function: Callable[[], Any]) -> Callable[[], Any]:
    """The function in a thread where greenlets run, which must have their turn while it waits."""

    def work() -> Any:
        try:
            turns: list[bool] = []

            def turn() -> None:
                turns.append(True)

            other = gevent.spawn(turn)
            value = function()
            other.join()
            assert turns
            return value
        finally:
            gevent.get_hub().destroy(destroy_loop=True)

    return work


def test_one_handle_for_each_hub() -> None:
    assert handle_here() is handle_here() is handle_if_hub()
    assert handle_here().here
    assert handle_here().hub is gevent.get_hub()
    assert in_a_thread(handle_if_hub) is None


def test_a_forked_child_has_a_handle_of_its_own() -> None:
    lines = run_script(
        """
        import os
        from gnsq_like.runtime.hub_calls import handle_here

        before = handle_here()
        if os.fork():
            os.wait()
        print(before.lives, handle_here() is before, handle_here().lives)
        """
    )
    assert lines == ["False False True", "True True True"]


def test_calls_are_made_in_their_order_in_the_other_thread(there: HubHandle) -> None:
    made: list[tuple[int, int]] = []
    done = threading.Event()
    for number in range(1000):
        there.call(lambda number: made.append((number, thread_id())), number)
    there.call(done.set)
    assert not there.here
    wait_for(done.is_set)
    assert made == [(number, there.thread) for number in range(1000)]
    assert there.backlog == 0


def test_calls_of_many_threads_are_all_made(there: HubHandle) -> None:
    made: list[tuple[int, int]] = []

    def work(who: int) -> None:
        for number in range(500):
            there.call(made.append, (who, number))

    threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(made) == 2000)
    for who in range(4):
        assert [number for each, number in made if each == who] == list(range(500))


def test_a_call_that_fails_is_logged_and_the_next_is_made(there: HubHandle, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("meant")

    there.call(fail)
    assert there.run(thread_id) == there.thread
    assert "called from another thread, failed" in caplog.text
    assert "meant" in caplog.text


@pytest.mark.parametrize("where", ["a greenlet", "a thread", "a thread with a hub"])
def test_run_gives_what_the_function_gave_or_raised(there: HubHandle, where: str) -> None:
    def divide(by: int) -> tuple[int, float]:
        gevent.sleep(0)  # it may switch
        return thread_id(), 1 / by

    def run(by: int) -> Any:
        def call() -> Any:
            return there.run(divide, by)

        if where == "a greenlet":
            return call()
        return in_a_thread(call if where == "a thread" else with_a_hub(call))

    assert run(2) == (there.thread, 0.5)
    with pytest.raises(ZeroDivisionError):
        run(0)


def test_run_in_its_own_thread_is_a_call() -> None:
    current = gevent.getcurrent()
    assert handle_here().run(gevent.getcurrent) is current


@pytest.mark.parametrize("hub", [False, True])
def test_run_that_takes_too_long(there: HubHandle, hub: bool) -> None:
    def call() -> None:
        there.run(gevent.sleep, 3600, timeout=0.01)

    with pytest.raises(TimeoutError):
        in_a_thread(with_a_hub(call) if hub else call)


@pytest.mark.parametrize("hub", [False, True])
def test_a_wait_for_what_another_thread_settles(there: HubHandle, hub: bool) -> None:
    reply = PendingReply()

    def wait() -> bool:
        there.call(reply.settle)
        return there.wait(reply, 60)

    assert in_a_thread(with_a_hub(wait) if hub else wait) is True
    assert there.wait(reply, 0)


@pytest.mark.parametrize("hub", [False, True])
def test_a_wait_that_ends_at_its_time_leaves_nothing_behind(there: HubHandle, hub: bool) -> None:
    reply = PendingReply()

    def wait() -> bool:
        return there.wait(reply, 0.01)

    assert in_a_thread(with_a_hub(wait) if hub else wait) is False
    wait_for(lambda: not reply._links)  # there, the wait began later, and so ends later


def test_what_has_no_hub_is_called_where_it_is() -> None:
    calls: list[int] = []

    def note() -> None:
        calls.append(thread_id())

    back = call_here(note)  # from here: this thread has a hub
    in_a_thread(back)
    wait_for(lambda: calls == [thread_id()])

    def without_a_hub() -> int:
        call_here(note)()
        return thread_id()

    there = in_a_thread(without_a_hub)
    assert calls[1] == there


def test_calls_into_a_thread_that_is_gone_are_dropped() -> None:
    thread = HubThread("gone")
    handle = thread.start()
    assert thread.end(30)
    calls: list[int] = []
    handle.call(calls.append, 1)
    assert handle.backlog == 1
    assert calls == []


def test_the_end_of_its_thread_is_waited_for() -> None:
    handles: list[HubHandle] = []
    made, may_end = threading.Event(), threading.Event()

    def work() -> None:
        handles.append(handle_here())
        made.set()
        may_end.wait()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    made.wait()
    handles[0].join_thread(0)
    assert thread.is_alive()
    threading.Timer(0.1, may_end.set).start()
    handles[0].join_thread(60)
    assert not thread.is_alive()
    handle_here().join_thread(60)  # in its own thread it returns at once


def test_catching_up_waits_for_the_calls_scheduled_before() -> None:
    made: list[int] = []
    handle = handle_here()
    thread = threading.Thread(target=handle.call, args=(made.append, 1))
    thread.start()
    thread.join()
    assert not made
    handle.catch_up()
    assert made == [1]


# -- hubs ------------------------------------------------------------------------------------------


def make_hubs(hubs: list[Any]) -> None:
    def work() -> None:
        try:
            hubs.extend([own_hub(), own_hub()])
        except NSQError as exc:
            hubs.append(str(exc))
        else:
            hubs[-1].destroy(destroy_loop=True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_thread_gets_one_hub_however_often_it_asks() -> None:
    assert own_hub() is gevent.get_hub()
    hubs: list[Any] = []
    make_hubs(hubs)
    assert hubs[0] is hubs[1]
    assert hubs[0] is not own_hub()


def test_without_descriptors_the_process_goes_on() -> None:
    hubs: list[Any] = []
    gevent.get_hub()
    with no_descriptors(os.getpid()):
        make_hubs(hubs)
        assert own_hub() is gevent.get_hub()  # one that exists needs none
    assert hubs == [f"no event loop can be made: Too many open files: {NO_DESCRIPTORS} (ulimit -n)"]


def test_it_takes_no_descriptors_itself() -> None:
    before = os.listdir("/proc/self/fd")
    with no_descriptors(os.getpid()):
        make_hubs([])
    # Other tests' threads may have some open for a moment.
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= len(before))
