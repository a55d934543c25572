"""The relay, with an outbox in memory and real nsqds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from gnsq_like import Producer
from gnsq_like.contrib.shared.outbox.relay import BATCH_COUNT, Relay, RelayThread
from gnsq_like.errors import NotSent
from gnsq_like.testing import FaultProxy
from tests.support.daemons import KINDS, Running, running_nsqd, wait_for
from tests.support.outboxes import Memory, Published
from tests.support.patient import NsqdHTTPClient


@pytest.fixture(params=KINDS)
def nsqd(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running_nsqd(request.param, max_msg_size=1000) as daemon:
        yield daemon


@pytest.fixture
def producer(nsqd: Running) -> Iterator[Producer]:
    with Producer(nsqd.tcp_address, fail_fast=True, max_msg_bytes=2000) as made:
        yield made


def make(store: Memory, producer: Producer) -> Relay:
    return Relay(store, producer, poll_interval=0.05)


def held(nsqd: Running, topic: str) -> int:
    with NsqdHTTPClient(nsqd.http_address) as client:
        return sum(each["message_count"] for each in client.stats(topic=topic)["topics"])


def test_it_publishes_every_row_once(nsqd: Running, producer: Producer) -> None:
    store = Memory()
    for key in ("", "a", "b", "c"):
        store.add("orders", key, *[b"%d" % number for number in range(BATCH_COUNT + 5)])
    store.add("parcels", "a", b"1")
    assert make(store, producer).run_once() == 4 * (BATCH_COUNT + 5) + 1
    assert sorted(store.marked) == [row.id for row in store.rows]
    assert (held(nsqd, "orders"), held(nsqd, "parcels")) == (4 * (BATCH_COUNT + 5), 1)
    assert store.closes == 1


@pytest.mark.parametrize("key", ["", "a"])
def test_a_refused_message_is_kept_back_with_those_of_its_key(nsqd: Running, producer: Producer, key: str) -> None:
    store = Memory()
    store.add("orders", key, b"1", b"x" * 1500, b"2")
    store.add("orders", "other", b"3")
    relay = make(store, producer)
    with RelayThread(relay):
        published = 2 if key else 3
        wait_for(lambda: len(store.marked) == published, "the others")
        wait_for(lambda: relay.stats()["problem"], "the report")
    assert [row.id for row in store.left()] == ([2, 3] if key else [2])
    stats = relay.stats()
    assert list(store.kept_back) == [2]
    assert stats["problem"] == f"message 2 to 'orders' was refused: {store.kept_back[2]}"
    assert (stats["kept_back"], stats["published"], stats["state"]) == (1, published, "stopped")
    assert stats["refused"] >= 1


def test_a_refused_message_is_tried_again(nsqd: Running, producer: Producer) -> None:
    store = Memory()
    store.add("orders", "a", b"x" * 1500, b"2")
    relay = make(store, producer)
    with RelayThread(relay):
        wait_for(lambda: relay.stats()["kept_back"], "the refusal")
        store.rows[0] = store.rows[0]._replace(body=b"1")  # somebody mends it
        wait_for(lambda: store.marked == [1, 2], "both")
        wait_for(lambda: relay.stats()["problem"] is None, "the end of the problem")
    assert relay.stats()["kept_back"] == 0


def test_what_the_producer_refuses_is_kept_back_too(producer: Producer) -> None:
    store = Memory()
    store.add("orders", "", b"1", b"x" * 3000)
    assert make(store, producer).run_once() == 1
    assert [row.id for row in store.left()] == [2]


def test_while_nsqd_is_away_it_tries_again(nsqd: Running, producer: Producer) -> None:
    store = Memory()
    relay = make(store, producer)
    nsqd.stop()
    store.add("orders", "a", b"1", b"2")
    with pytest.raises(NotSent):
        relay.run_once()
    with RelayThread(relay):
        wait_for(lambda: relay.stats()["problem"] and relay.stats()["lag_seconds"] == 7.0, "the problem, and the lag")
        nsqd.start()
        wait_for(lambda: not store.left(), "the messages")
        wait_for(lambda: relay.stats()["problem"] is None, "the end of the problem")
    assert held(nsqd, "orders") == 2


def test_a_failing_database_is_asked_again(producer: Producer) -> None:
    store = Memory()
    store.failures = [OSError("gone"), OSError("gone")]
    store.add("orders", "", b"1")
    relay = make(store, producer)
    with RelayThread(relay):
        wait_for(lambda: not store.left(), "the message")
    assert store.resets == 2
    assert store.closes == 1


def test_it_stands_by_while_another_has_the_database(producer: Producer) -> None:
    store = Memory()
    store.mine = False
    store.add("orders", "", b"1")
    relay = make(store, producer)
    assert relay.run_once() == 0
    with RelayThread(relay):
        wait_for(lambda: relay.stats()["state"] == "standing by", "its state")
        assert store.left()
        store.mine = True
        wait_for(lambda: not store.left(), "the message")
        wait_for(lambda: relay.stats()["state"] == "running", "its state")


def test_a_wake_ends_its_wait(producer: Producer) -> None:
    store = Memory()
    relay = Relay(store, producer, poll_interval=10_000.0)
    with RelayThread(relay):
        wait_for(lambda: relay._prune_at, "its first round")
        store.add("orders", "", b"1")
        relay.wake()
        wait_for(lambda: not store.left(), "the message")
    assert relay.stats()["state"] == "stopped"
    relay.wake()


def test_each_key_is_published_in_order_however_often_it_fails(nsqd: Running) -> None:
    """nsqd's connection is cut again and again, so that batches are repeated; the first of each is in order."""
    store = Memory()
    for number in range(600):
        store.add("orders", f"key{number % 7}", b"%d" % number)
    seen = Published()

    def has_changed(left: int) -> bool:
        return len(store.left()) != left

    with (
        FaultProxy(nsqd.tcp_address, observer=seen) as proxy,
        Producer(proxy.address, fail_fast=True) as producer,
    ):
        relay = make(store, producer)
        with RelayThread(relay):
            while left := len(store.left()):
                wait_for(partial(has_changed, left), "progress")
                proxy.reset()
    assert not store.left()
    firsts = list(dict.fromkeys(seen.bodies))
    for key in range(7):
        assert [int(body) for body in firsts if int(body) % 7 == key] == list(range(key, 600, 7))
