"""The queue of deadlines."""

import random
import time

import pytest

from gnsq_like.producer.deadlines import Deadlines
from tests.support.daemons import wait_for


class Thing:
    def __init__(self, deadline, log):
        self.deadline = deadline
        self.done = False
        self.log = log

    def expire(self):
        self.done = True
        self.log.append((self.deadline, time.monotonic()))


@pytest.fixture
def queue():
    deadlines = Deadlines(lambda: None)
    yield deadlines
    deadlines.close()


def test_each_expires_at_its_time_whatever_the_order(queue):
    log = []
    now = time.monotonic()
    things = [Thing(now + random.Random(1).random() * 0.2 + number % 7 * 0.02, log) for number in range(200)]
    for thing in things:
        queue.add(thing)
    wait_for(lambda: len(log) == len(things))
    assert all(0 <= at - deadline < 0.5 for deadline, at in log)
    assert len(queue) == 0


def test_what_is_done_does_not_expire(queue):
    log = []
    now = time.monotonic()
    done, left = Thing(now + 0.01, log), Thing(now + 0.03, log)
    queue.add(done)
    queue.add(left)
    done.done = True
    wait_for(lambda: log)
    assert [deadline for deadline, _ in log] == [left.deadline]


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_done_is_forgotten_although_one_is_not(queue, order):
    """One publish to a mute nsqd must not keep a million answered ones in memory."""
    log = []
    now = time.monotonic()
    stuck = Thing(now + (1000 if order == 1 else 5), log)
    queue.add(stuck)
    for number in range(20_000):
        thing = Thing(now + 1000 + order * number * 0.01, log)
        queue.add(thing)
        thing.done = True
    assert len(queue) < 4000
    assert not log
