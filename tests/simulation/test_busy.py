"""A hub whose turns take long: much is due in the same turn, in any order."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import gevent

from gnsq_like import errors
from tests.simulation import Cluster, simulated


@simulated(seed=1)
def test_publishes_end_at_their_deadlines_also_when_others_begin_in_that_turn(cluster: Cluster) -> None:
    """A timer that has fired, and is called only after another publish has begun, is not set anew."""
    producer = cluster.producer()
    producer.publish("t", b"first")
    cluster.world.network.latency = 0.2
    random, process = Random(1), cluster.world.main
    process.turn_seconds = lambda: random.random() * 0.3
    late: list[float] = []

    def publish() -> None:
        for _ in range(300):
            gevent.sleep(random.expovariate(2))
            timeout = random.choice([0.05, 0.5, 3])
            due = cluster.now + timeout
            with suppress(errors.NSQError):
                producer.publish("t", b"x", timeout=timeout)
            late.append(cluster.now - due - process.stood_still(due))

    gevent.joinall([gevent.spawn(publish) for _ in range(2)], raise_error=True)
    process.turn_seconds = None
    assert len(late) == 600
    assert max(late) < 0.001
