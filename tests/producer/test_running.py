"""What a Producer is made of while it runs: made by its first publish, and ended by close()."""

from __future__ import annotations

from collections.abc import Callable

import gevent

from gnsq_like import Producer
from tests.support.nsqds import answer_one, identified
from tests.support.peer import PATIENCE, ScriptedNsqd

Make = Callable[..., Producer]


def test_the_first_publish_makes_it_and_close_ends_it(make: Make, other: ScriptedNsqd) -> None:
    producer = make(other.address)
    assert producer._running is None
    producer.publish("t", b"x")
    running = producer._running
    assert running is not None
    producer.publish("t", b"y")
    assert producer._running is running
    assert producer.close()
    assert running.pool.stopped
    assert producer._running is None


def test_it_drains_what_is_pending_for_so_long_and_no_longer(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address)
    waiting = gevent.spawn(producer.publish, "t", b"x")
    peer = identified(nsqd)
    running = producer._started()
    assert running.hub_handle.run(running.drain, 0.01, timeout=PATIENCE) is False
    draining = gevent.spawn(running.hub_handle.run, running.drain, PATIENCE, timeout=PATIENCE)
    answer_one(peer, b"x")
    assert draining.get(timeout=PATIENCE) is True
    waiting.get(timeout=PATIENCE)
