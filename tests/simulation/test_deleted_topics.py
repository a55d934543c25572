"""A topic that is deleted while a Reader cannot reach its nsqd stays deleted: SUB would create it again."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from gnsq_like import Message, Reader
from gnsq_like.errors import NSQError
from tests.simulation import Cluster, simulated
from tests.simulation.cluster import Daemon

_pair = simulated(nsqds=2, nsqlookupds=2)

_PATTERN = re.compile("^t$")
#: Seconds for which it cannot be reached and in which way, and what the Reader has: the topic's name, or a pattern.
_cases = pytest.mark.parametrize(
    ("seconds", "how", "topic"),
    [(1.0, "refused", "t"), (3.0, "full", _PATTERN), (9.0, "full", "t"), (30.0, "refused", _PATTERN)],
    ids=["1-refused-name", "3-full-pattern", "9-full-name", "30-refused-pattern"],
)


def cut_off(cluster: Cluster, nsqd: Daemon, how: str) -> dict[int, None]:
    """Cut the test's connections to an nsqd, and refuse new ones, or fill its backlogs.

    :returns: the ports, to be cleared at the end
    """
    network = cluster.world.network
    closed: dict[int, None] = getattr(network, how)
    for address in (nsqd.tcp_address, nsqd.http_address):
        closed[int(address.rpartition(":")[2])] = None
    for connection in network.open_connections([cluster.world.main]):
        if connection.server.port in closed:
            connection.cut()
    return closed


class Outage:
    """A Reader of a topic on two nsqds, the first of which it cannot reach from now on.

    :param how: what happens to its dials: they are refused, or the ports' backlogs are full
    :param connected: whether the Reader was connected to it before
    """

    def __init__(self, cluster: Cluster, topic: Any, how: str, *, connected: bool = True) -> None:
        self.cluster = cluster
        for number in range(2):
            cluster.publish("t", b"x", nsqd=number)
        self.nsqd = cluster.nsqds[0]
        self.how = how
        if not connected:
            self.begin()
        self.reader: Reader = cluster.reader(topic, "c", _ignore)
        cluster.wait(lambda: self.connections == (2 if connected else 1))
        if connected:
            cluster.sleep(10.0)
            self.begin()
        else:
            cluster.sleep(2.0)

    def begin(self) -> None:
        self.closed = cut_off(self.cluster, self.nsqd, self.how)

    def end(self) -> None:
        self.closed.clear()

    @property
    def connections(self) -> int:
        return len(self.reader.stats()["connections"])

    def delete_topic(self) -> None:
        daemon = self.nsqd.daemon
        self.nsqd.process.run(lambda: daemon.delete_topic(daemon.broker.topics["t"]))

    @property
    def has_topic(self) -> bool:
        return "t" in self.nsqd.daemon.broker.topics


def _ignore(message: Message) -> None: ...


@_cases
@pytest.mark.parametrize("other", ["right", "stale", "hanging", "first dial"])
@_pair
def test_a_topic_that_was_deleted_in_an_outage_stays_deleted(
    cluster: Cluster, topic: Any, seconds: float, how: str, other: str
) -> None:
    """One nsqlookupd knows of the deletion; the other may not, or not answer. "first dial": it was never connected."""
    outage = Outage(cluster, topic, how, connected=other != "first dial")
    if other == "stale":
        cluster.world.network.part_both_ways(outage.nsqd.process, cluster.nsqlookupds[1].process)
    elif other == "hanging":
        cluster.nsqlookupds[1].process.stand_still(200.0)
    cluster.sleep(seconds / 2)
    outage.delete_topic()
    cluster.sleep(seconds / 2)
    outage.end()
    cluster.always(lambda: not outage.has_topic, "the topic stays deleted")
    cluster.sleep(90.0)
    assert outage.connections == 1


@_cases
@pytest.mark.parametrize("lookupds", ["right", "hanging", "stopped", "all hanging"])
@_pair
def test_an_nsqd_is_connected_again_after_an_outage(
    cluster: Cluster, topic: Any, seconds: float, how: str, lookupds: str
) -> None:
    """Also while one nsqlookupd hangs, or all hang or are stopped."""
    outage = Outage(cluster, topic, how)
    if lookupds == "hanging":
        cluster.nsqlookupds[1].process.stand_still(200.0)
    elif lookupds == "all hanging":
        for daemon in cluster.nsqlookupds:
            daemon.process.stand_still(200.0)
    elif lookupds == "stopped":
        for daemon in cluster.nsqlookupds:
            daemon.stop()
    cluster.sleep(seconds)
    outage.end()
    cluster.wait(lambda: outage.connections == 2, seconds=10.0)


@simulated(nsqds=1, nsqlookupds=1)
def test_many_readers_ask_nsqlookupd_once_for_each_retry(cluster: Cluster) -> None:
    """While an nsqd is away and stays listed."""
    asked: Counter[int] = Counter()
    failed: Counter[int] = Counter()

    def start(number: int) -> Reader:
        def authorization() -> str:
            asked[number] += 1
            return "Bearer x"

        def on_error(address: str, error: NSQError) -> None:
            failed[number] += 1

        options = {"lookupd_authorization": authorization, "on_error": on_error, "lookupd_poll_interval": 600.0}
        return cluster.reader("t", f"c{number}", _ignore, **options)

    cluster.publish("t", b"x")
    readers = [start(number) for number in range(30)]
    cluster.wait(lambda: all(reader.stats()["connections"] for reader in readers))
    cluster.sleep(2.0)
    asked.clear()
    closed = cut_off(cluster, cluster.nsqds[0], "refused")
    cluster.sleep(4.0)
    closed.clear()
    cluster.wait(lambda: all(reader.stats()["connections"] for reader in readers))
    assert min(failed.values()) >= 3
    # Two rounds after the loss, the first of which comes too soon to be believed, and one before the try that succeeds.
    assert all(count <= failed[number] + 3 for number, count in asked.items())
