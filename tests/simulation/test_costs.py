"""What work costs the process that does it: writes, reads, bytes, callbacks and turns of the hub.

Nothing is measured: the same work costs the same on every machine. A number that rises by more than a tenth above the
one written here fails. ``writes`` are calls of send, ``reads`` calls of recv that found something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from operator import le

import gevent
import pytest

from gnsq_like import Batch, Message, Reader
from tests.simulation import Cluster, simulated

Work = Callable[[Cluster], Callable[[], object]]


def _consuming(count: int, pause: float) -> Work:
    """Consume messages, published one by one with a pause, or all at once."""

    def prepare(cluster: Cluster) -> Callable[[], object]:
        handled: list[bytes] = []
        cluster.reader("t", "c", lambda message: handled.append(message.body), max_in_flight=200)
        publisher = cluster.world.process("publisher")
        gevent.sleep(2)

        def work() -> None:
            if pause:
                publisher.spawn(_publish_slowly, cluster, count, pause)
            else:
                publisher.run(cluster.publish, "t", *[b"x"] * count)
            cluster.wait(lambda: len(handled) == count)
            gevent.sleep(0.5)

        return work

    return prepare


def _pulling(take: Callable[[Reader], Iterator[Message]]) -> Work:
    """Take a hundred messages, published at once, from a Reader without a handler."""

    def prepare(cluster: Cluster) -> Callable[[], object]:
        reader = cluster.reader("t", "c", max_in_flight=200)
        reader.start()
        publisher = cluster.world.process("publisher")
        gevent.sleep(2)

        def work() -> None:
            publisher.run(cluster.publish, "t", *[b"x"] * 100)
            for message in islice(take(reader), 100):
                message.finish()
            gevent.sleep(0.5)

        return work

    return prepare


def _got(reader: Reader) -> Iterator[Message]:
    while (message := reader.get()) is not None:
        yield message


def _batches(cluster: Cluster) -> Callable[[], object]:
    sizes: list[int] = []
    handler = Batch(lambda messages: sizes.append(len(messages)), size=100, interval=0.1)
    cluster.reader("t", "c", handler, max_in_flight=200)
    publisher = cluster.world.process("publisher")
    gevent.sleep(2)

    def work() -> None:
        publisher.run(cluster.publish, "t", *[b"x"] * 1000)
        cluster.wait(lambda: sum(sizes) == 1000)
        gevent.sleep(0.5)

    return work


def _publish_slowly(cluster: Cluster, count: int, pause: float) -> None:
    producer = cluster.producer()
    for _ in range(count):
        gevent.sleep(pause)
        producer.publish("t", b"x")
    producer.close()


def _publishing(count: int, greenlets: int, **options: bool) -> Work:
    def prepare(cluster: Cluster) -> Callable[[], object]:
        producer = cluster.producer(**options)
        producer.publish("t", b"first")

        def publish() -> None:
            for _ in range(count // greenlets):
                producer.publish("t", b"x")

        return lambda: gevent.joinall([gevent.spawn(publish) for _ in range(greenlets)])

    return prepare


def _mpub(cluster: Cluster) -> Callable[[], object]:
    producer = cluster.producer()
    producer.publish("t", b"first")
    return lambda: producer.multi_publish("t", [b"x"] * 100)


def _heartbeats(cluster: Cluster) -> Callable[[], object]:
    cluster.producer(heartbeat_interval=1).publish("t", b"first")
    gevent.sleep(30.5)
    return lambda: gevent.sleep(60)


def _idle_reader(connections: int) -> Work:
    """One Reader, with more connections than it has places."""

    def prepare(cluster: Cluster) -> Callable[[], object]:
        topics = [f"t{number}" for number in range(connections)]
        cluster.reader(topics, "c", lambda message: None, nsqd_tcp_addresses=cluster.tcp_addresses)
        gevent.sleep(10)
        return lambda: gevent.sleep(60)

    return prepare


def _idle(nsqds: int) -> Work:
    def prepare(cluster: Cluster) -> Callable[[], object]:
        addresses = [nsqd.tcp_address for nsqd in cluster.nsqds]
        for number in range(nsqds // len(addresses)):
            cluster.reader(f"t{number}", "c", lambda message: None, nsqd_tcp_addresses=addresses)
        gevent.sleep(30)
        return lambda: gevent.sleep(60)

    return prepare


#: What is done, and its cost: turns of the hub, callbacks, writes, reads, bytes written. A backlog begins with a run-up
#: of 16 rounds, in which the burst grows: each is a read.
COSTS: list[tuple[str, Work, tuple[int, int, int, int, int]]] = [
    ("consume 100 messages, 50 ms apart", _consuming(100, 0.05), (222, 323, 106, 100, 2136)),
    ("consume 1000 messages at once", _consuming(1000, 0.0), (111, 251, 83, 73, 21068)),
    ("consume 1000 messages at once in batches of 100", _batches, (65, 97, 26, 25, 21115)),
    ("get 100 messages", _pulling(_got), (53, 96, 35, 25, 2164)),
    ("iterate over 100 messages", _pulling(iter), (53, 96, 35, 25, 2164)),
    ("publish 100, one by one", _publishing(100, 1), (202, 202, 100, 100, 1100)),
    ("publish 100 from 100 greenlets", _publishing(100, 100), (6, 205, 2, 2, 1100)),
    ("publish 100 from 100 greenlets, batching", _publishing(100, 100, batching=True), (8, 206, 2, 2, 530)),
    ("publish 100 by one MPUB", _mpub, (2, 2, 1, 1, 515)),
    ("60 heartbeats in a minute of a Producer", _heartbeats, (241, 241, 60, 60, 240)),
    ("an idle minute of 1 connection", _idle(1), (123, 125, 2, 2, 8)),
    ("an idle minute of 100 Readers", _idle(100), (123, 12401, 200, 200, 800)),
    ("an idle minute of 50 connections of a Reader", _idle_reader(50), (4123, 7261, 4100, 100, 24400)),
]


@pytest.mark.parametrize(("work", "cost"), [row[1:] for row in COSTS], ids=[row[0] for row in COSTS])
@simulated(shuffle=False)
def test_a_piece_of_work_costs_no_more(cluster: Cluster, work: Work, cost: tuple[int, int, int, int, int]) -> None:
    act = work(cluster)
    before = cluster.world.main.counts.copy()
    act()
    spent = cluster.world.main.counts.since(before)
    found = tuple(spent[name] for name in ("iterations", "callbacks", "writes", "reads", "bytes"))
    most = [each + (each + 9) // 10 for each in cost]
    assert all(map(le, found, most)), f"turns, callbacks, writes, reads and bytes are {found}, and were {cost}"
