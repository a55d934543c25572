"""One call at a later time, or in the hub's next iteration."""

from __future__ import annotations

import time
from collections.abc import Iterator

import gevent
import pytest

from gnsq_like.runtime.timer import Soon, Timer
from tests.support.daemons import wait_for
from tests.support.hub import settle
from tests.support.scripts import run_script


class Calls(list[float]):
    """When the timer called."""

    def __call__(self) -> None:
        self.append(time.monotonic())


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def timer(calls: Calls) -> Iterator[Timer]:
    made = Timer(calls)
    yield made
    made.cancel()


def passes(seconds: float) -> None:
    """Until a timer of so many seconds has rung that was set after all others."""
    rung: list[bool] = []
    Timer(lambda: rung.append(True)).set(seconds)
    wait_for(lambda: rung)
    settle()


def test_it_calls_once_when_it_is_due(timer: Timer, calls: Calls) -> None:
    due = time.monotonic() + 0.02
    timer.set(0.02)
    assert timer.is_set
    wait_for(lambda: calls)
    assert calls[0] >= due
    assert not timer.is_set
    passes(0.03)
    assert len(calls) == 1


def test_what_is_due_already_is_called_when_the_hub_comes_round(timer: Timer, calls: Calls) -> None:
    timer.set(-10)
    assert calls == []
    passes(0.0)
    assert len(calls) == 1


def test_setting_it_again_takes_the_place_of_the_first(timer: Timer, calls: Calls) -> None:
    timer.set(0.001)
    due = time.monotonic() + 0.03
    timer.set(0.03)
    wait_for(lambda: calls)
    assert calls[0] >= due
    assert len(calls) == 1


def test_what_is_cancelled_does_not_call_and_may_be_set_again(timer: Timer, calls: Calls) -> None:
    timer.set(0.001)
    timer.cancel()
    timer.cancel()
    assert not timer.is_set
    passes(0.01)
    assert calls == []
    timer.set(0.001)
    wait_for(lambda: calls)


def test_a_callback_may_set_it_again() -> None:
    calls = Calls()

    def ring() -> None:
        calls()
        if len(calls) < 3:
            again.set(0.001)

    again = Timer(ring)
    again.set(0.001)
    wait_for(lambda: len(calls) == 3)
    assert not again.is_set


def test_work_that_kept_the_hub_does_not_count_as_time_gone_by(timer: Timer, calls: Calls) -> None:
    """The loop's idea of the time is as old as that work; a timer must not ring that much too soon."""
    began = time.monotonic()

    def work() -> None:
        while time.monotonic() < began + 0.05:
            pass
        timer.set(0.05)

    gevent.spawn(work).join()
    wait_for(lambda: calls)
    assert calls[0] >= began + 0.1


def test_no_timer_on_libuv_is_below_a_millisecond() -> None:
    """gevent warns of those; here warnings are errors."""
    [line] = run_script(
        """
        import os, warnings
        os.environ["GEVENT_LOOP"] = "libuv"
        warnings.simplefilter("error")
        import gevent, gevent.event
        from gnsq_like.runtime.pending_reply import PendingReply
        from gnsq_like.runtime.timer import Timer, make_timer

        assert type(gevent.get_hub().loop).__module__ == "gevent.libuv.loop"
        for delay in [0.0, 1e-9, 0.0001, 0.0009, 0.0011]:
            fired = gevent.event.Event()
            Timer(fired.set).set(delay)
            assert fired.wait(60)
            assert not PendingReply().wait(delay)
        print([round(make_timer(gevent.get_hub().loop, delay)._after, 4) for delay in (-1, 0, 0.0001, 0.0011, 0.029)])
        """
    )
    assert line == "[0.0, 0.0, 0.001, 0.002, 0.029]"


def test_a_call_that_is_due_soon_is_made_once_however_often_it_is_asked_for() -> None:
    made: list[int] = []
    soon = Soon(gevent.get_hub().loop, lambda: made.append(1))
    soon()
    soon()
    assert not made
    settle()
    assert made == [1]
    soon()
    settle()
    assert made == [1, 1]
