"""A hub whose turns take long, or that stands still: much is due in the same turn, in any order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

import gevent

from gnsq_like import errors
from tests.simulation import Cluster, simulated


def _lateness(cluster: Cluster, random: Random, disturb: Callable[[], object] = lambda: None) -> list[float]:
    """Publish 600 times from two greenlets; returns how long after its deadline each publish has ended, in seconds for
    which the process did not stand still; negative if before."""
    producer = cluster.producer()
    producer.publish("t", b"first")
    process = cluster.world.main
    late: list[float] = []

    def publish() -> None:
        for _ in range(300):
            gevent.sleep(random.expovariate(2))
            timeout = random.choice([0.05, 0.5, 3])
            due = cluster.now + timeout
            with suppress(errors.NSQError):
                producer.publish("t", b"x", timeout=timeout)
            late.append(cluster.now - due - process.stood_still(due))

    disturb()
    gevent.joinall([gevent.spawn(publish) for _ in range(2)], raise_error=True)
    assert len(late) == 600
    return late


@simulated(seed=1)
def test_publishes_end_at_their_deadlines_also_when_others_begin_in_that_turn(cluster: Cluster) -> None:
    """A timer that has fired, and is called only after another publish has begun, is not set anew."""
    random, process = Random(1), cluster.world.main
    cluster.world.network.latency = 0.2

    def disturb() -> None:
        process.turn_seconds = lambda: random.random() * 0.3

    late = _lateness(cluster, random, disturb)
    process.turn_seconds = None
    assert max(late) < 0.001


@simulated(seed=1)
def test_publishes_end_when_a_process_has_stood_still_beyond_their_deadlines(cluster: Cluster) -> None:
    """Also if a publish with a later deadline is the first to run then; nsqd answers none of them."""
    random, process = Random(1), cluster.world.main

    def stand_still() -> None:
        while True:
            gevent.sleep(1)
            process.stand_still(random.random() * 5)

    standstills: list[gevent.Greenlet] = []

    def disturb() -> None:
        cluster.nsqds[0].process.stand_still(100_000)
        standstills.append(gevent.spawn(stand_still))

    late = _lateness(cluster, random, disturb)
    gevent.killall(standstills)
    assert max(late) < 0.021  # deadlines are looked at every 20 ms at most
