"""A Reader of several topics: each has its part of the places, whatever the number of its connections."""

from __future__ import annotations

import time
from collections import Counter

import gevent
import pytest

from tests.simulation import Cluster, simulated
from tests.simulation.scene import Scene

#: Topics are on some nsqds only, which nsqlookupd lists.
_listed = simulated(nsqds=0, nsqlookupds=1, mem_queue_size=1_000_000)


def served(cluster: Cluster, max_in_flight: int, nsqds: str, seconds: float) -> Counter[str]:
    """The messages of each topic that are handled; of each nsqd, its only topic is given. All have a backlog."""
    topics = sorted(set(nsqds))
    scene = Scene(cluster, len(nsqds), max_in_flight, seconds=0.1, topics=topics, listed=nsqds, low_rdy_timeout=1.0)
    for nsqd, topic in zip(scene.nsqds, nsqds, strict=True):
        nsqd.publish(2000, topic)
    first = scene.handled
    scene.run(seconds)
    return Counter(message.topic for _, _, message in scene.log[first:])


@pytest.mark.parametrize("max_in_flight", [4, 30])
@_listed
def test_busy_topics_are_served_equally_over_time(cluster: Cluster, max_in_flight: int) -> None:
    """Topic b has most of the connections."""
    got = served(cluster, max_in_flight, "aabbbbbbbbbbcc", 10.0)
    # The remainder of 4 seats is one topic's.
    assert min(got.values()) >= (0.8 if max_in_flight == 30 else 0.45) * max(got.values()), got


@pytest.mark.parametrize("max_in_flight", [1, 2])
@_listed
def test_no_topic_starves_with_fewer_seats_than_topics(cluster: Cluster, max_in_flight: int) -> None:
    got = served(cluster, max_in_flight, "abbbbbbcdd", 40.0)
    assert len(got) == 4
    assert min(got.values()) >= 0.5 * max(got.values()), got


@simulated(nsqds=1)
def test_connections_made_in_a_crowd_take_turns_as_quickly_as_others(cluster: Cluster) -> None:
    """Their handshakes wait for each other; the shortest says how far the nsqd is."""
    topics = [f"t{number}" for number in range(100)]
    network, waits = cluster.world.network, list[float]()
    network.jitter = 1.0
    reader = cluster.reader(
        topics,
        "c",
        lambda message: waits.append(time.monotonic() - float(message.body)),
        max_in_flight=20,
        nsqd_tcp_addresses=cluster.tcp_addresses,
    )
    cluster.wait(lambda: len(reader.stats()["connections"]) == len(topics))
    network.jitter = 0.0
    gevent.sleep(10)
    for topic in topics[:10]:
        cluster.publish(topic, repr(time.monotonic()).encode())
        gevent.sleep(0.25)
    gevent.sleep(5)
    assert len(waits) == 10
    assert max(waits) < 1.2  # a round of silent connections takes a second
