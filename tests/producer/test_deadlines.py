"""The queue of deadlines."""

from __future__ import annotations

import math
import random

import pytest

from gnsq_like.producer.deadlines import Deadlines


class Thing:
    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.done = False

    def expire(self) -> None:
        self.done = True


def test_each_expires_at_its_time_whatever_the_order() -> None:
    queue, draw = Deadlines(), random.Random(1)
    things = [Thing(draw.random() + number % 7) for number in range(200)]
    for thing in things:
        queue.add(thing)
    for now in (0.5, 1.0, 1.5, 3.0, 6.5, 8.0):
        left = queue.expire(now)
        assert all(thing.done == (thing.deadline <= now) for thing in things)
        assert left == min((thing.deadline for thing in things if not thing.done), default=math.inf)
    assert len(queue) == 0


def test_what_is_done_does_not_expire() -> None:
    class Failing(Thing):
        def expire(self) -> None:
            raise AssertionError("it is done")

    queue, late = Deadlines(), Thing(0.5)
    for done in (Failing(1.0), Failing(0.3)):
        queue.add(done)
        done.done = True
    queue.add(late)
    assert queue.expire(2.0) == math.inf
    assert late.done


def test_one_whose_expiry_raises_keeps_no_other_from_it() -> None:
    class Raising(Thing):
        def expire(self) -> None:
            super().expire()
            raise RuntimeError("meant")

    queue, other = Deadlines(), Thing(1.0)
    queue.add(Raising(0.5))
    queue.add(other)
    with pytest.raises(RuntimeError, match="meant"):
        queue.expire(2.0)
    assert queue.expire(2.0) == math.inf
    assert other.done


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_done_is_forgotten_although_one_is_not(order: int) -> None:
    """One publish to a mute nsqd must not keep a million answered ones in memory."""
    queue = Deadlines()
    queue.add(Thing(1000 if order == 1 else 5))
    for number in range(20_000):
        thing = Thing(1000 + order * number * 0.01)
        queue.add(thing)
        thing.done = True
    assert len(queue) < 4000


def test_what_is_done_behind_an_earlier_one_out_of_order_is_forgotten_too() -> None:
    queue = Deadlines()
    queue.add(Thing(5000))
    queue.add(Thing(1000))
    for number in range(20_000):
        thing = Thing(1001 + number * 0.01)
        queue.add(thing)
        thing.done = True
    assert len(queue) < 4000
