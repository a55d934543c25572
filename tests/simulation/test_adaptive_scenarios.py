"""RDY that follows the traffic: the latency and the throughput that it gives, with the output buffer of nsqd.

nsqd writes what it has in its buffer when a connection has as many messages in flight as RDY, or when its ticker
ticks, every 25 ms.
"""

from __future__ import annotations

from random import Random

import gevent
import pytest

from gnsq_like.policy.charge import SURE
from gnsq_like.policy.level import ROUNDS
from tests.simulation import Cluster
from tests.simulation.scene import SOON, Scene, scenario

SHARE = 200
#: Round trips until a flood has its share: rounds alike, eight in which the burst doubles, and a part of one before.
RUN_UP = SURE + 8 + 1


def trickle(scene: Scene, rate: float, seconds: float, at_once: int = 1) -> None:
    """Publish at random times, and forget what was handled before."""
    scene.log.clear()
    random, end = Random(1), scene.now + seconds
    while scene.now < end:
        scene.nsqds[0].publish(at_once)
        gevent.sleep(random.expovariate(rate / at_once))
    scene.run(1.0)


def quantile(scene: Scene, part: float) -> float:
    """Of the seconds from publish to handler."""
    return scene.delays[int(part * scene.handled)]


@pytest.mark.parametrize(("rate", "seconds"), [(20, 0.0), (100, 0.05), (1000, 0.005)])
@scenario
def test_messages_that_trickle_come_at_once(cluster: Cluster, rate: int, seconds: float) -> None:
    scene = Scene(cluster, 1, SHARE, seconds=seconds, adaptive=True)
    before = scene.rdys_sent
    trickle(scene, rate, max(1.0, 500 / rate))
    assert quantile(scene, 0.5) < 0.001
    assert quantile(scene, 0.99) < (0.005 if rate > 20 else 0.02)
    assert scene.delays[-1] < 0.0255
    assert (scene.rdys_sent - before) / scene.handled < (2.2 if seconds else 0.8)


@scenario
def test_without_the_controller_they_lie_in_nsqds_buffer(cluster: Cluster) -> None:
    scene = Scene(cluster, 1, SHARE)
    trickle(scene, 100, 5.0)
    assert quantile(scene, 0.5) > 0.01
    assert scene.delays[-1] < 0.0255


@scenario
def test_small_heaps_come_within_two_milliseconds_for_most(cluster: Cluster) -> None:
    scene = Scene(cluster, 1, SHARE, seconds=0.005, adaptive=True)
    trickle(scene, 200, 5.0, at_once=10)
    assert quantile(scene, 0.5) < 0.002
    assert quantile(scene, 0.99) < 0.006


@scenario
def test_after_a_flood_the_trickle_comes_at_once_again(cluster: Cluster) -> None:
    scene = Scene(cluster, 1, SHARE, seconds=0.005, adaptive=True)
    scene.nsqds[0].publish(1500)
    scene.run(1.0)
    assert scene.handled == 1500
    trickle(scene, 100, 5.0)
    assert quantile(scene, 0.5) < 0.001
    assert quantile(scene, 0.99) < 0.01


@pytest.mark.parametrize(("latency", "seconds"), [(0.0001, 0.005), (0.001, 0.0), (0.01, 0.05)])
@scenario
def test_a_flood_runs_as_fast_as_without_the_controller(cluster: Cluster, latency: float, seconds: float) -> None:
    cluster.world.network.latency = latency
    took, random, count = [], Random(1), 2000
    for adaptive in (False, True):
        scene = Scene(cluster, 1, SHARE, adaptive=adaptive)
        scene.handle = lambda _message: (seconds * (0.5 + random.random()), "finish")
        sent = scene.rdys_sent
        scene.nsqds[0].publish(count)
        took.append(cluster.wait(lambda scene=scene: scene.finished == count))  # type: ignore[misc]
        # At most 111 for the 2,000 messages, with handlers of 2.5 to 7.5 ms.
        assert scene.rdys_sent - sent < 0.06 * count
    # The run-up is no loss of throughput.
    assert took[1] - RUN_UP * 2 * latency < took[0] / 0.95


@pytest.mark.parametrize(
    ("spread", "turn", "seconds"), [(0.0, 0.005, 0.05), (0.5, 0.002, 0.0), (0.9, 0.002, 0.05), (0.9, 0.005, 0.0)]
)
@scenario
def test_a_flood_in_a_process_that_reads_late_reaches_the_share_too(
    cluster: Cluster, seconds: float, turn: float, spread: float
) -> None:
    """Turns of the hub take ``turn`` seconds, or up to ``spread`` of that more or less."""
    took, random, count = [], Random(1), 4000
    for adaptive in (False, True):
        scene = Scene(cluster, 1, SHARE, adaptive=adaptive, seconds=seconds)
        cluster.world.main.turn_seconds = lambda: turn * (1 + spread * random.uniform(-1, 1))
        sent = scene.rdys_sent
        scene.nsqds[0].publish(count)
        took.append(cluster.wait(lambda scene=scene: scene.finished == count))  # type: ignore[misc]
        assert scene.rdys_sent - sent < 0.05 * count
        cluster.world.main.turn_seconds = None
    # A round takes up to three turns. The last of so many begins a trial; some more reach the share, and then it is as
    # fast as ever.
    assert took[1] - (ROUNDS + 12) * 3 * turn < took[0] / 0.8


@scenario
def test_timers_that_are_late_do_not_make_a_burst_grow(cluster: Cluster) -> None:
    """At this rate a burst of 64 takes three milliseconds, a little longer than twice patience."""
    scene, random = Scene(cluster, 1, SHARE, seconds=0.0, adaptive=True), Random(2)
    cluster.world.main.timers_late = lambda: random.uniform(0.0, 0.001)
    cluster.world.process("publisher").spawn(trickle, scene, 20_000, 0.25).join()
    assert quantile(scene, 0.9) < 0.002
    assert quantile(scene, 0.99) < 0.004


@scenario
def test_messages_handled_at_once_in_a_process_that_reads_late_pile_up_nowhere(cluster: Cluster) -> None:
    """Three hundred a second, of which each turn could take several: rounds of one message are too few.

    Here rounds are never alike, so it takes a hundred of them, about a second, until a trial shows that.
    """
    scene, random = Scene(cluster, 1, SHARE, seconds=0.0, adaptive=True), Random(2)
    cluster.world.main.turn_seconds = lambda: random.uniform(0.0025, 0.0075)
    cluster.world.process("publisher").spawn(trickle, scene, 300, 10.0).join()
    cluster.world.main.turn_seconds = None
    assert quantile(scene, 0.5) < 0.025
    assert quantile(scene, 0.9) < 0.04
    assert quantile(scene, 0.99) < 0.4  # those of the first second


@scenario
def test_a_connection_whose_messages_end_is_silent_as_soon_as_ever(cluster: Cluster) -> None:
    """Looks at its last round do not count as time in which the process stood still."""
    took = []
    for adaptive in (False, True):
        scene = Scene(cluster, 4, 10, seconds=0.4, adaptive=adaptive, low_rdy_idle_timeout=10.0)
        for nsqd in scene.nsqds[:2]:
            nsqd.keep_busy()
        for nsqd in scene.nsqds[2:]:
            nsqd.publish(40)
        cluster.wait(lambda scene=scene: not any(nsqd.waiting for nsqd in scene.nsqds[2:]), 60)  # type: ignore[misc]
        took.append(cluster.wait(lambda scene=scene: sorted(scene.rdys[:2]) == [4, 5], 60))  # type: ignore[misc]
    assert took[1] == pytest.approx(took[0], abs=0.5)


@pytest.mark.parametrize("seconds", [0.0, 0.05])
@scenario
def test_a_flood_reaches_the_share_within_the_run_up(cluster: Cluster, seconds: float) -> None:
    scene = Scene(cluster, 1, SHARE, seconds=seconds, adaptive=True)
    [nsqd] = scene.nsqds
    nsqd.publish(20_000)
    assert cluster.wait(lambda: nsqd.rdy == SHARE) < RUN_UP * 2 * cluster.world.network.latency
    sent = scene.rdys_sent
    scene.run(0.004)
    assert scene.rdys_sent == sent


@scenario
def test_a_batch_fills_up_though_nothing_is_answered(cluster: Cluster) -> None:
    scene = Scene(cluster, 1, 100, seconds=1000.0, adaptive=True)
    trickle(scene, 200, 2.0)
    assert scene.nsqds[0].in_flight == 100
    assert scene.rdys == [100]


@scenario
def test_a_rate_limit_takes_the_place_of_the_controller(cluster: Cluster) -> None:
    """Tokens bound what nsqd may send: the share, whatever is in flight."""
    scene = Scene(cluster, 1, 10, adaptive=True)
    assert scene.rdys == [1]
    scene.reader.rate_limit = 10_000.0
    scene.nsqds[0].publish()
    scene.run(1.0)
    assert scene.rdys == [10]
    scene.reader.rate_limit = None
    scene.run(SOON)
    assert scene.rdys == [1]
