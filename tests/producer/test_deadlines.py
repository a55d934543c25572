"""The queue of deadlines."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from gnsq_like.producer.deadlines import Deadlines
from tests.support import hub_errors
from tests.support.daemons import wait_for


class Log(list[tuple[float, float, int]]):
    """For each thing that expired: its deadline, when it did, and in which round of the queue."""

    rounds = 0

    def end_round(self) -> None:
        self.rounds += 1


class Thing:
    def __init__(self, deadline: float, log: Log) -> None:
        self.deadline = deadline
        self.done = False
        self.log = log

    def expire(self) -> None:
        self.done = True
        self.log.append((self.deadline, time.monotonic(), self.log.rounds))


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def queue(log: Log) -> Iterator[Deadlines]:
    deadlines = Deadlines(log.end_round)
    yield deadlines
    deadlines.close()


def test_each_expires_at_its_time_whatever_the_order(queue: Deadlines, log: Log) -> None:
    now = time.monotonic()
    draw = random.Random(1)
    for number in range(200):
        queue.add(Thing(now + draw.random() * 0.6 + number % 7 * 0.05, log))
    wait_for(lambda: len(log) == 200)
    queue.add(Thing(time.monotonic(), log))  # on a machine that stood still, all of them may be due in one round
    wait_for(lambda: len(log) == 201)
    assert all(at >= deadline for deadline, at, _ in log)
    # None expired in a later round than one that was due after it.
    rounds = [number for _, _, number in sorted(log)]
    assert rounds == sorted(rounds)
    assert log.rounds > 1
    assert len(queue) == 0


def test_what_is_done_does_not_expire(queue: Deadlines, log: Log) -> None:
    now = time.monotonic()
    done, left = Thing(now + 0.01, log), Thing(now + 0.03, log)
    queue.add(done)
    queue.add(left)
    done.done = True
    wait_for(lambda: log)
    assert [deadline for deadline, *_ in log] == [left.deadline]


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_done_is_forgotten_although_one_is_not(queue: Deadlines, log: Log, order: int) -> None:
    """One publish to a mute nsqd must not keep a million answered ones in memory."""
    now = time.monotonic()
    stuck = Thing(now + (1000 if order == 1 else 5), log)
    queue.add(stuck)
    for number in range(20_000):
        thing = Thing(now + 1000 + order * number * 0.01, log)
        queue.add(thing)
        thing.done = True
    assert len(queue) < 4000
    assert not log


def test_what_is_done_behind_an_earlier_one_out_of_order_is_forgotten_too(queue: Deadlines, log: Log) -> None:
    now = time.monotonic()
    queue.add(Thing(now + 5000, log))
    queue.add(Thing(now + 1000, log))
    for number in range(20_000):
        thing = Thing(now + 1001 + number * 0.01, log)
        queue.add(thing)
        thing.done = True
    assert len(queue) < 4000
    assert not log


@pytest.mark.parametrize("early", [False, True], ids=["in the line", "in the heap"])
def test_an_expiry_that_is_interrupted_is_made_up_for(queue: Deadlines, log: Log, early: bool) -> None:
    class Interrupted(Thing):
        interrupted = False

        def expire(self) -> None:
            if not self.interrupted:
                self.interrupted = True
                raise RuntimeError("a signal handler's")
            super().expire()

    if early:
        queue.add(Thing(time.monotonic() + 3600, log))
    thing = Interrupted(time.monotonic() + 0.01, log)
    with hub_errors.expected("a signal handler's"):
        queue.add(thing)
        wait_for(lambda: thing.interrupted)
    wait_for(lambda: thing.done)
