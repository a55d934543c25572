"""The control loop: what is asked for and due is done, whatever escapes, and everything is looked at once a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import gevent
import pytest
from gevent.event import Event

from gnsq_like.runtime.control_loop import ControlLoop
from gnsq_like.runtime.dispatcher import flush_log
from tests.support.daemons import wait_for
from tests.support.scripts import run_script

Make = Callable[[Callable[[], object]], ControlLoop]


@pytest.fixture
def make() -> Iterator[Make]:
    loops: list[ControlLoop] = []

    def start(look: Callable[[], object]) -> ControlLoop:
        loops.append(ControlLoop("x", look))
        loops[-1].start()
        return loops[-1]

    yield start
    for each in loops:
        each.stop()
        each.stop()


class Action:
    """Counts its calls, and may raise."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.raises: BaseException | None = None

    def __call__(self) -> None:
        self.times.append(time.monotonic())
        raised, self.raises = self.raises, None
        if raised is not None:
            raise raised


def test_what_is_asked_for_several_times_is_called_once_and_not_at_once(make: Make) -> None:
    action, others = Action(), Action()
    loop = make(int)
    for _ in range(3):
        loop.soon(action)
        loop.soon(others)
    assert not action.times
    assert loop.is_asked_for(action)
    wait_for(lambda: action.times and others.times)
    gevent.sleep(0)
    assert (len(action.times), len(others.times)) == (1, 1)
    assert not loop.is_asked_for(action)


def test_an_action_is_called_at_the_earliest_of_its_times(make: Make) -> None:
    action, later = Action(), Action()
    loop = make(int)
    began = time.monotonic()
    for seconds in (3600, 0.05, 60):
        loop.by(began + seconds, action)
    loop.by(began + 0.02, later)
    loop.cancel(later)
    wait_for(lambda: action.times)
    assert action.times[0] >= began + 0.05
    loop.by(time.monotonic() + 0.02, later)
    wait_for(lambda: later.times)
    assert len(action.times) == 1


def test_an_action_may_ask_for_itself_and_lets_others_run(make: Make) -> None:
    loop = make(int)
    count = 0

    def action() -> None:
        nonlocal count
        count += 1
        if count < 1000:
            loop.soon(action)

    loop.soon(action)
    gevent.sleep(0)
    gevent.sleep(0)
    assert count < 10
    wait_for(lambda: count == 1000)


def test_everything_is_looked_at_first_and_once_a_second(make: Make) -> None:
    look = Action()
    make(look)
    gevent.sleep(0)
    assert len(look.times) == 1
    wait_for(lambda: len(look.times) == 3)
    assert look.times[2] - look.times[0] >= 1.5


@pytest.mark.parametrize("where", ["look", "soon", "by"])
@pytest.mark.parametrize("raised", [RuntimeError("meant"), gevent.Timeout(1)], ids=["Exception", "Timeout"])
def test_what_escapes_is_logged_and_the_loop_goes_on(
    make: Make, raised: BaseException, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    action, next_action, look = Action(), Action(), Action()
    (look if where == "look" else action).raises = raised
    loop = make(look)
    if where == "by":
        loop.by(time.monotonic(), action)
    else:
        loop.soon(action)
    loop.soon(next_action)
    wait_for(lambda: action.times and next_action.times and len(look.times) == 2)
    flush_log(60)
    assert caplog.text.count("goes on after an error") == 1


class Unreportable(Exception):
    """Each look at its class raises another one, as a signal handler may while an error is being reported."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise Unreportable


def test_a_report_that_fails_does_not_end_the_loop(make: Make) -> None:
    action, look = Action(), Action()
    look.raises = Unreportable()
    loop = make(look)
    wait_for(lambda: len(look.times) == 2)
    loop.soon(action)
    wait_for(lambda: action.times)
    assert look.raises is None


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "SystemExit"])
def test_what_ends_a_program_reaches_the_main_greenlet_and_the_loop_goes_on(raised: str) -> None:
    lines = run_script(
        f"""
        import gevent, gevent.event, os, sys
        from gnsq_like.runtime.control_loop import ControlLoop

        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # gevent prints what it passes on
        again = gevent.event.Event()
        def action():
            raise {raised}
        loop = ControlLoop("x", int)
        loop.start()
        loop.soon(action)
        try:
            gevent.sleep(60)
        except {raised}:
            print("reached")
        loop.soon(again.set)
        print(again.wait(60))
        """
    )
    assert lines == ["reached", "True"]


def test_a_killed_loop_ends(make: Make) -> None:
    action = Action()
    loop = make(int)
    gevent.sleep(0)
    gevent.kill(loop._greenlet)
    loop.soon(action)
    loop.by(time.monotonic(), action)
    gevent.sleep(0.01)
    assert not action.times


def test_a_late_hub_is_reported_once_with_the_remedy(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    look = Action()
    make(look)
    gevent.sleep(0)
    for blocks in range(2):
        time.sleep(2.2)  # blocks the hub, which is what this is about
        wait_for(lambda blocks=blocks: len(look.times) == blocks + 2)  # type: ignore[misc]
    flush_log(60)
    assert caplog.text.count("the hub was late by") == 1
    assert 'spawn="thread"' in caplog.text


def test_nothing_waits_for_a_loop_that_has_not_begun(make: Make) -> None:
    done = Event()
    loop = ControlLoop("x", int)
    loop.soon(done.set)
    loop.by(time.monotonic(), done.set)
    loop.start()
    assert done.wait(60)
    loop.stop()
