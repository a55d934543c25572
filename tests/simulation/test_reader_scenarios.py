"""A Reader over time: hubs that are late, deadlines, and stops under load."""

from __future__ import annotations

from collections import Counter

import gevent
import pytest

from gnsq_like import Message
from tests.simulation import Cluster, simulated
from tests.simulation.scene import Scene, scenario

# --- a hub that is late, and handlers that block


@pytest.mark.parametrize("turn", [0.01, 0.03])
@scenario
def test_turns_that_end_late_go_on(cluster: Cluster, turn: float) -> None:
    scene = Scene(cluster, 2, 1, low_rdy_idle_timeout=0.2)
    scene.run(1.0)
    before = [len(nsqd.rdy_log) for nsqd in scene.nsqds]
    cluster.world.main.turn_seconds = lambda: turn
    scene.run(3.0)
    cluster.world.main.turn_seconds = None
    assert all(len(nsqd.rdy_log) >= count + 10 for nsqd, count in zip(scene.nsqds, before, strict=True))


@simulated()
def test_handlers_that_block_for_many_heartbeats_lose_no_connection(cluster: Cluster) -> None:
    reader = cluster.reader("t", "c", lambda _: gevent.sleep(30), max_in_flight=50, heartbeat_interval=1)
    cluster.publish("t", *[b"%d" % number for number in range(50)])
    cluster.wait(lambda: reader.stats()["finished"] == 50)
    assert reader.stats()["reconnects"] == 0


# --- deadlines


@simulated(msg_timeout=3.0, max_msg_timeout=1.0)
def test_a_cap_below_msg_timeout_does_not_make_the_timer_spin(cluster: Cluster) -> None:
    """A timer that is always due turns in circles, which ends the simulation."""
    reader = cluster.reader("t", "c", lambda _: gevent.sleep(1.3))
    cluster.publish("t", b"x")
    cluster.wait(lambda: reader.stats()["finished"] == 1)


@simulated(msg_timeout=2.0)
def test_a_message_is_overdue_shortly_before_its_deadline(cluster: Cluster) -> None:
    """Where that is short, by a tenth of it and by a round trip, as nsqd's clock is ahead, and RDY takes its way."""
    cluster.world.network.latency = 0.15
    held: list[Message] = []

    def handler(message: Message) -> None:
        held.append(message)
        gevent.sleep(1.7)

    cluster.reader("t", "c", handler, max_backoff_duration=0, adaptive_rdy=False)
    cluster.publish("t", b"x")
    cluster.wait(lambda: held)
    assert cluster.wait(lambda: held[0].is_overdue) == pytest.approx(2.0 - 0.2 - 0.3, abs=0.01)


@pytest.mark.parametrize("repeat", range(5))
@simulated(msg_timeout=2.0)
def test_a_message_that_is_answered_when_deadlines_are_looked_at_is_not_overdue(cluster: Cluster, repeat: int) -> None:
    """Its handler and that look are due in one turn of the hub, whichever comes first."""
    late: list[Message] = []
    reader = cluster.reader("t", "c", lambda _: gevent.sleep(1.79), on_timeout=late.append, adaptive_rdy=False)
    gevent.sleep(repeat)
    cluster.publish("t", b"x")
    gevent.sleep(1.5)
    cluster.world.main.stand_still(0.4)
    cluster.wait(lambda: reader.stats()["finished"] == 1)
    assert late == []


@simulated(msg_timeout=1.0)
def test_a_touched_message_does_not_hide_the_deadline_of_the_next(cluster: Cluster) -> None:
    """Two handlers outlive msg_timeout, the first of them touches: the second keeps its place all the same."""
    held: list[Message] = []

    def handler(message: Message) -> None:
        held.append(message)
        if message is held[0]:
            message.touch_until_answered()
        gevent.sleep(5)

    reader = cluster.reader("t", "c", handler, max_in_flight=2, max_backoff_duration=0, adaptive_rdy=False)
    cluster.publish("t", b"touches", b"outlives")
    cluster.wait(lambda: len(held) == 2)
    gevent.sleep(0.99)
    assert [message.is_overdue for message in held] == [False, True]
    assert [each["share"] for each in reader.stats()["connections"].values()] == [1]


# --- stops


@simulated(nsqds=2)
def test_stopping_under_load_finishes_what_was_handled_and_loses_nothing(cluster: Cluster) -> None:
    cluster.world.network.latency = 0.005
    total = 2000
    for number in range(2):
        cluster.publish("t", *[b"%d %d" % (number, each) for each in range(total // 2)], nsqd=number)
    handled: Counter[bytes] = Counter()

    def handler(message: Message) -> None:
        gevent.sleep(0.001)
        handled[message.body] += 1

    rounds = 0
    while len(handled) < total:
        rounds += 1
        before = handled.total()
        reader = cluster.reader("t", "c", handler, max_in_flight=50)
        cluster.wait(lambda before=before: handled.total() >= min(total, before + 300))  # type: ignore[misc]
        assert reader.stop() == 0
        assert reader.stats()["finished"] == handled.total() - before
    assert rounds > 3
    assert handled.total() == total
    gevent.sleep(1)  # nsqd reads the last answers
    for nsqd in cluster.nsqds:
        [channel] = nsqd.daemon.broker.topics["t"].channels.values()
        assert (channel.depth, len(channel.in_flight)) == (0, 0)
