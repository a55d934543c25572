"""A Reader with a rate limit: all that passes is counted."""

from __future__ import annotations

from bisect import bisect_right
from itertools import cycle
from random import Random
from typing import Any

import pytest

from gnsq_like.policy.rate_limit import BURST, RAISE_EVERY
from tests.simulation import Cluster
from tests.simulation.scene import SOON, Scene, scenario


class Limited(Scene):
    """A Reader with a rate limit on nsqds; ``backlogs`` are the messages that wait at each."""

    def __init__(self, cluster: Cluster, rate: float, backlogs: list[int], **options: Any) -> None:
        options = {"max_in_flight": 200, "seconds": 0.0, **options}
        super().__init__(cluster, len(backlogs), rate_limit=rate, **options)
        self.rate = rate
        for nsqd, backlog in zip(self.nsqds, backlogs, strict=True):
            nsqd.publish(backlog)

    def rate_since(self, began: float) -> float:
        return sum(at >= began for at in self.times) / (self.now - began)

    def check(self) -> None:
        """No more messages in any time than the tokens, no more raises of RDY than allowed, and one RDY 0 for each."""
        times, most = self.times, self.rate * BURST + 1
        for index, began in enumerate(times):
            # It suffices to look at the ends of bursts.
            for length in (0.0, 0.01, 0.1, 1.0, 10.0):
                assert bisect_right(times, began + length) - index <= most + self.rate * length + 1e-6
        commands = sorted(at for nsqd in self.nsqds for at, _ in nsqd.rdy_log)
        for index, began in enumerate(commands):
            assert bisect_right(commands, began + 0.999) - index <= 2 / RAISE_EVERY + len(self.nsqds)


@pytest.mark.parametrize(("rate", "nsqds"), [(0.2, 4), (10, 1), (100, 4), (2000, 1)])
@scenario
def test_a_backlog_comes_at_the_rate(cluster: Cluster, rate: float, nsqds: int) -> None:
    seconds = 3.0 if rate > 1000 else max(10.0, 10 / rate)
    scene = Limited(cluster, rate, [int(rate * (seconds + 3)) + 1] * nsqds)
    began = scene.now + 2.0
    scene.run(2.0 + seconds)
    scene.check()
    assert scene.rate_since(began) == pytest.approx(rate, rel=0.02, abs=2 / seconds)
    handled = [nsqd.finished for nsqd in scene.nsqds]
    assert min(handled) >= 0.6 * max(handled) - 2


@pytest.mark.parametrize("seed", range(16))
@scenario
def test_a_backlog_after_a_pause_comes_at_the_rate_that_the_places_allow(cluster: Cluster, seed: int) -> None:
    """Whatever max_in_flight and the handlers' seconds are, also if this process stands still, or the rate changes."""
    random = Random(seed)
    nsqds, places = random.choice([1, 1, 3, 10]), random.choice([3, 20, 200])
    seconds, rate = random.choice([0.0, 0.01, 2.0, 10.0]), random.choice([5, 50, 500])
    scene = Limited(cluster, rate, [0] * nsqds, max_in_flight=places, seconds=seconds)
    scene.run(2.0)
    kind = random.choice(["pause", "late", "rate"])
    if kind == "rate":
        scene.reader.rate_limit = rate / 4
    for nsqd in scene.nsqds:
        nsqd.publish(60 * rate)
    scene.run(3.0)
    if kind == "late":
        cluster.world.main.stand_still(1.5)
    scene.reader.rate_limit = rate
    scene.run(10.0)
    possible = min(rate, places / (seconds + 0.001))
    began = scene.now
    scene.run(20.0 if possible < 100 else 4.0)
    assert scene.rate_since(began) >= 0.9 * possible - 0.2


@pytest.mark.parametrize(("rate", "nsqds"), [(1, 4), (100, 4), (200, 30)])
@scenario
def test_one_busy_nsqd_of_several_gets_the_rate(cluster: Cluster, rate: int, nsqds: int) -> None:
    scene = Limited(cluster, rate, [10 * rate + 50, *[0] * (nsqds - 1)])
    began = scene.now + 3.0
    scene.run(8.0)
    scene.check()
    assert scene.rate_since(began) == pytest.approx(rate, rel=0.1, abs=0.4)


@pytest.mark.parametrize(("rate", "nsqds", "longest"), [(1, 4, 6.0), (50, 4, 3.0), (100, 10, 8.0)])
@scenario
def test_the_first_message_of_a_silent_nsqd_beside_a_busy_one(
    cluster: Cluster, rate: int, nsqds: int, longest: float
) -> None:
    scene = Limited(cluster, rate, [100 * rate, *[0] * (nsqds - 1)])
    scene.run(12.0)
    for nsqd in scene.nsqds[1:]:
        nsqd.publish()
        assert cluster.wait(lambda nsqd=nsqd: nsqd.finished) < longest  # type: ignore[misc]
    scene.check()


@pytest.mark.parametrize("max_in_flight", [1, 50])
@scenario
def test_slow_handlers_keep_max_in_flight_and_the_rate(cluster: Cluster, max_in_flight: int) -> None:
    scene = Limited(cluster, 100, [5000, 5000], max_in_flight=max_in_flight, seconds=0.05)
    began = scene.now + 5.0
    scene.run(15.0)
    scene.check()
    assert scene.most_running <= max_in_flight
    assert scene.rate_since(began) >= 0.75 * min(100, max_in_flight / 0.05)


@scenario
def test_redeliveries_count(cluster: Cluster) -> None:
    """Each handler outlives its message's time, so that each message comes again."""
    scene = Limited(cluster, 5, [100], seconds=3.0, msg_timeout=2.0, max_in_flight=100)
    scene.run(20.0)
    scene.check()
    assert scene.nsqds[0].timed_out > 10


@scenario
def test_sparse_messages_need_no_commands_and_no_wait(cluster: Cluster) -> None:
    scene = Limited(cluster, 100, [0, 0])
    scene.run(5.0)
    nsqds = cycle(scene.nsqds)
    for _ in range(50):
        next(nsqds).publish()
        scene.run(0.1)
    sent, first = scene.rdys_sent, scene.handled
    for _ in range(50):
        next(nsqds).publish()
        scene.run(0.1)
    assert scene.rdys_sent == sent
    assert scene.handled - first == 50
    assert max(scene.delays) < 0.03  # nsqd's output_buffer_timeout
    scene.check()


@scenario
def test_backoff_tests_with_one_message_and_within_the_rate(cluster: Cluster) -> None:
    scene = Limited(cluster, 2, [0], backoff=True, max_in_flight=10)
    scene.verdicts = ["requeue", "requeue"]
    scene.nsqds[0].publish(200)
    began = scene.now + 30.0
    scene.run(60.0)
    scene.check()
    assert scene.rate_since(began) == pytest.approx(2, rel=0.1)


@scenario
def test_max_in_flight_zero_and_back(cluster: Cluster) -> None:
    scene = Limited(cluster, 50, [5000])
    scene.run(3.0)
    scene.set_max_in_flight(0)
    scene.run(SOON)
    count = scene.handled
    scene.run(3.0)
    assert scene.handled == count
    scene.set_max_in_flight(100)
    scene.run(10.0)
    assert scene.handled - count >= 480
    scene.check()


@scenario
def test_connections_that_come_and_go(cluster: Cluster) -> None:
    random = Random(3)
    scene = Limited(cluster, 50, [20_000] * 3, spare=16)
    began = scene.now
    connected = list(scene.nsqds)
    while scene.now < began + 10.0 and scene.spare:
        scene.run(random.random())
        if len(connected) > 1 and random.random() < 0.5:
            connected.pop(random.randrange(len(connected))).lose()
        else:
            connected.append(scene.join(10_000))
    assert scene.handled == pytest.approx(50 * (scene.now - began), rel=0.1)
