"""The counts of a Producer's publishes, and waking those who wait for them."""

from __future__ import annotations

from typing import Any

import gevent
import pytest

from gnsq_like.errors import NotSent, NsqdError, OutcomeUnknown, PublishRefused
from gnsq_like.producer.outcomes import PublishCounts, Waker
from tests.support.hub import settle
from tests.support.peer import PATIENCE


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (PublishRefused(NsqdError("E_BAD_MESSAGE", "too big"), "127.0.0.1:4150"), "refused"),
        (OutcomeUnknown("127.0.0.1:4150", "lost"), "unknown"),
        (NotSent("away"), "not_sent"),
        (RuntimeError("anything else was not sent"), "not_sent"),
    ],
)
def test_a_failure_counts_once_for_each_message(error: Exception, name: str) -> None:
    counts = PublishCounts()
    counts.failed(error, 3)
    expected = PublishCounts()
    setattr(expected, name, 3)
    assert counts == expected


class Waiting:
    """What a greenlet waits for, or not."""

    def __init__(self) -> None:
        self.greenlet: Any = None
        self.is_awake = False

    def wait(self) -> None:
        self.greenlet = gevent.getcurrent()
        gevent.get_hub().switch()
        self.greenlet = None
        self.is_awake = True


def test_greenlets_are_woken_when_the_hub_comes_round_and_in_their_order() -> None:
    waker = Waker(gevent.get_hub().loop)
    things = [Waiting() for _ in range(1200)]
    greenlets = [gevent.spawn(thing.wait) for thing in things]
    settle()
    order: list[int] = []
    for number, greenlet in enumerate(greenlets):
        greenlet.link(lambda _, number=number: order.append(number))
    waker.wake(things[0])
    waker.wake_all(things[1:])
    assert not any(thing.is_awake for thing in things), "never switches"
    gevent.joinall(greenlets, raise_error=True)
    settle()
    assert order == list(range(1200))


def test_a_thing_that_no_greenlet_waits_for_is_passed_over() -> None:
    waker = Waker(gevent.get_hub().loop)
    nobodys, waited_for = Waiting(), Waiting()
    greenlet = gevent.spawn(waited_for.wait)
    settle()
    waker.wake_all([nobodys, waited_for])
    greenlet.join()
    assert (nobodys.is_awake, waited_for.is_awake) == (False, True)


def test_a_greenlet_is_woken_even_if_the_hub_runs_while_that_is_noted() -> None:
    """As when a signal handler that sleeps interrupts it."""

    class SleepsHere:
        def run_callback(self, callback: Any) -> None:
            gevent.get_hub().loop.run_callback(callback)
            settle()

    waker = Waker(SleepsHere())
    things = [Waiting() for _ in range(2)]
    greenlets = [gevent.spawn(thing.wait) for thing in things]
    settle()
    waker.wake(things[0])
    waker.wake_all(things[1:])
    gevent.joinall(greenlets, timeout=PATIENCE, raise_error=True)
    assert all(thing.is_awake for thing in things)


def test_sockets_have_their_turn_between_many_that_are_woken() -> None:
    """Woken all in one go, thousands would keep the hub from its timers."""
    loop = gevent.get_hub().loop
    waker = Waker(loop)
    things = [Waiting() for _ in range(2000)]
    greenlets = [gevent.spawn(thing.wait) for thing in things]
    settle()
    awake: list[int] = []
    waker.wake_all(things)
    # Runs behind the first part of them, and before the rest.
    loop.run_callback(lambda: awake.append(sum(thing.is_awake for thing in things)))
    gevent.joinall(greenlets, raise_error=True)
    assert 0 < awake[0] < 2000
