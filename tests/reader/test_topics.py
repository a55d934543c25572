"""Readers of several topics, in ``reader/topics.py``: a list, a pattern, topics that come and go,
backoff by topic; ours and real daemons."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest

from gnsq_like import Message, Producer, Reader
from gnsq_like.errors import InvalidName, InvalidOption, NSQError
from gnsq_like.reader.setup import Topics
from gnsq_like.reader.subscription import Subscription
from gnsq_like.reader.topics import MessageCounts, ReaderCounts
from tests.support.daemons import KINDS, Kind, Running, running_nsqd, running_nsqlookupd, wait_for
from tests.support.lookupds import FAST
from tests.support.patient import LookupdClient, NsqdHTTPClient
from tests.support.peer import Peer, ScriptedNsqd, scripted_nsqd
from tests.support.reading import ID, Gate, answer_cls, ignore, reading, serve, until


@contextmanager
def cluster(kind: Kind = "ours") -> Iterator[tuple[Running, Running]]:
    with (
        running_nsqlookupd(kind) as lookupd,
        running_nsqd(kind, lookupd_tcp_addresses=[lookupd.tcp_address]) as nsqd,
    ):
        yield lookupd, nsqd


def topics_at(nsqd: Running) -> set[str]:
    with NsqdHTTPClient(nsqd.http_address) as client:
        return {topic["topic_name"] for topic in client.stats()["topics"] or []}


def subscriptions(address: str) -> int:
    """Those with this nsqd that are alive as objects; earlier tests may have left some with theirs."""
    gc.collect()
    return sum(type(each) is Subscription and address in repr(each) for each in gc.get_objects())


def test_what_may_be_given() -> None:
    assert Topics("t").names == ("t",)
    assert Topics(name for name in ("a", "b", "a")).names == ("a", "b")
    assert (Topics(["a", "b"]).text, Topics(re.compile("^a")).text) == ("a,b", "^a")
    assert Topics("abcdef").in_short == "abcdef"
    assert Topics(list("abcd")).in_short == "a,b,c,d"
    assert Topics(list("abcdef")).in_short == "a,b,c,d and 2 more"
    assert [Topics(each).are_several for each in ("t", ["t"], ["a", "b"], re.compile("t"))] == [
        False,
        False,
        True,
        True,
    ]
    for wrong in ("", ["ok", "not ok"], 5):
        with pytest.raises(InvalidName):
            Topics(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption):
        Topics([])
    with pytest.raises(InvalidOption):
        Topics(re.compile(b"t"))  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="lookupd"):
        Reader(re.compile("t"), "c", ignore, nsqd_tcp_addresses="127.0.0.1:1")


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_of_topics_in_one_window(kind: Kind) -> None:
    gate = Gate()
    seen: Counter[str] = Counter()

    def handler(message: Message) -> None:
        seen[message.topic] += 1
        gate(message)

    with running_nsqd(kind) as nsqd, Producer(nsqd.tcp_address) as producer:
        for topic in ("a", "b", "c"):
            producer.multi_publish(topic, [b"x"] * 20)
        with Reader(["a", "b", "c"], "ch", handler, nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=6) as reader:
            wait_for(lambda: gate.inside == 6)
            by_topic = {name: each["in_flight"] for name, each in reader.stats()["topics"].items()}
            assert by_topic == {topic: seen[topic] for topic in ("a", "b", "c")}
            gate.open.set()
            wait_for(lambda: reader.stats()["finished"] == 60)
            stats = reader.stats()
    assert gate.most_inside == 6
    assert reader.topic == "a,b,c"
    assert sorted(stats["connections"]) == [f"{nsqd.tcp_address}/{topic}" for topic in "abc"]
    assert stats["known"] == [nsqd.tcp_address]
    assert [each["finished"] for each in stats["topics"].values()] == [20, 20, 20]


def test_a_list_is_found_through_nsqlookupd() -> None:
    seen: Counter[str] = Counter()
    with cluster() as (lookupd, nsqd), Producer(nsqd.tcp_address) as producer:
        producer.publish("a", b"x")

        def handler(message: Message) -> None:
            seen[message.topic] += 1

        with Reader(["a", "b"], "ch", handler, lookupd_http_addresses=lookupd.http_address, **FAST):
            wait_for(lambda: seen == {"a": 1})
            producer.publish("b", b"x")
            wait_for(lambda: seen == {"a": 1, "b": 1})


def test_backoff_is_by_topic() -> None:
    changes: list[tuple[int, str]] = []

    def handler(message: Message) -> None:
        if message.topic == "bad":
            raise ValueError("the database of bad is away")

    def on_backoff(level: int, seconds: float, topic: str) -> None:
        changes.append((level, topic))

    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        producer.multi_publish("bad", [b"x"] * 5)
        reader = Reader(
            ["good", "bad"],
            "ch",
            handler,
            nsqd_tcp_addresses=nsqd.tcp_address,
            max_in_flight=10,
            backoff_multiplier=60,
            on_backoff=on_backoff,
        )
        with reader:
            wait_for(lambda: reader.stats()["backoff_level"] == 1)
            producer.multi_publish("good", [b"x"] * 100)
            wait_for(lambda: reader.stats()["topics"]["good"]["finished"] == 100)
            stats = reader.stats()
    assert {name: each["backoff_level"] for name, each in stats["topics"].items()} == {"good": 0, "bad": 1}
    assert stats["connections"][f"{nsqd.tcp_address}/bad"]["rdy"] == 0
    assert stats["connections"][f"{nsqd.tcp_address}/good"]["share"] == 10
    assert changes == [(1, "bad")]


def test_the_share_of_a_topic_in_backoff_goes_to_the_others_at_once() -> None:
    """As soon as RDY 0 is in force, and not when the block is over."""

    def handler(message: Message) -> None:
        if message.body == b"fails":
            raise ValueError("meant")

    # Times that leave nothing else to plan for.
    options: dict[str, Any] = {"max_in_flight": 10, "backoff_multiplier": 60, "low_rdy_idle_timeout": 60}
    with (
        scripted_nsqd() as nsqd,
        Reader(
            ["good", "bad"], "ch", handler, nsqd_tcp_addresses=nsqd.address, adaptive_rdy=False, **options
        ) as reader,
    ):
        peers: dict[bytes, Peer] = {}
        for _ in range(2):
            peer = nsqd.accept()
            peers[peer.subscribe()] = peer
        good, bad = peers[b"SUB good ch"], peers[b"SUB bad ch"]
        until(good, b"RDY 5")
        until(bad, b"RDY 5")
        bad.messages(ID % 3, body=b"fails")
        until(bad, b"REQ")
        until(good, b"RDY 10")
        assert reader.stats()["backoff_level"] == 1
        for peer in (good, bad):
            gevent.spawn(answer_cls, peer)


@pytest.mark.parametrize("kind", KINDS)
def test_topics_of_a_pattern_come_and_go(kind: Kind) -> None:
    """Twelve topics come, are handled and are deleted, while another flows; none is created again by the Reader."""
    seen: Counter[str] = Counter()

    def handler(message: Message) -> None:
        seen[message.topic] += 1

    with (
        cluster(kind) as (lookupd, nsqd),
        Producer(nsqd.tcp_address) as producer,
        Reader(
            re.compile("^event"),
            "ch",
            handler,
            lookupd_http_addresses=lookupd.http_address,
            max_in_flight=20,
            **FAST,
        ) as reader,
        NsqdHTTPClient(nsqd.http_address) as client,
    ):
        for wave in range(3):
            names = [f"event.{wave}.{number}" for number in range(4)]
            for name in ["event.steady", "other", *names]:
                producer.multi_publish(name, [b"x"] * 10)
            wait_for(lambda names=names: all(seen[name] == 10 for name in names))  # type: ignore[misc]
            wait_for(lambda: reader.stats()["in_flight"] == 0)
            for name in names:
                client.delete_topic(name)
            wait_for(lambda: list(reader.stats()["topics"]) == ["event.steady"], timeout=60)
        wait_for(lambda: seen["event.steady"] == 30)
        stats = reader.stats()
        assert (stats["finished"], len(stats["connections"])) == (150, 1)
        assert stats["topics"]["event.steady"]["finished"] == 30
        wait_for(lambda: subscriptions(nsqd.tcp_address) == 1)
        assert topics_at(nsqd) == {"event.steady", "other"}


def test_an_error_that_somebody_keeps_keeps_no_subscription(nsqd: ScriptedNsqd) -> None:
    """As a log does, or a test of one: nsqd closed the connection instead of a reply to SUB, as when a topic goes."""
    errors: list[NSQError] = []
    with reading([nsqd], on_error=lambda _, error: errors.append(error), max_redial_delay=0.1):
        peer = nsqd.accept()
        peer.identify(version="1.3.0", max_rdy_count=2500, output_buffer_timeout=25)
        assert peer.line() == b"SUB t c"
        peer.close()
        peer = serve(nsqd)
        assert errors
        wait_for(lambda: subscriptions(nsqd.address) == 1)
        gevent.spawn(answer_cls, peer)


@pytest.mark.parametrize("topic", ["t", ["t", "u"], re.compile("^t$")], ids=["name", "names", "pattern"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_deleted_topic_stays_deleted_while_a_reader_runs(kind: Kind, topic: Any) -> None:
    """Deleted as nsqadmin does it: on nsqlookupd first, then on each nsqd; a lost connection must not create it."""
    asked: list[None] = []
    seen: Counter[str] = Counter()

    def authorization() -> str:
        asked.append(None)
        return "one more request"

    def handler(message: Message) -> None:
        seen[message.topic] += 1

    with (
        cluster(kind) as (lookupd, nsqd),
        running_nsqd(kind, node_id=2, lookupd_tcp_addresses=[lookupd.tcp_address]) as other,
        LookupdClient(lookupd.http_address) as lookupd_client,
    ):
        nsqds = [NsqdHTTPClient(each.http_address) for each in (nsqd, other)]
        for each in nsqds:
            each.publish("t", b"x")
        wait_for(lambda: len(lookupd_client.lookup("t", missing_ok=True).producers) == 2)
        with Reader(
            topic,
            "ch",
            handler,
            lookupd_http_addresses=lookupd.http_address,
            lookupd_authorization=authorization,
            max_in_flight=2,
        ) as reader:
            wait_for(lambda: seen["t"] == 2 and reader.stats()["in_flight"] == 0)
            lookupd_client.delete_topic("t")
            for each in nsqds:
                each.delete_topic("t")
            wait_for(lambda: not reader.stats()["connections"])
            rounds = len(asked)
            wait_for(lambda: len(asked) >= rounds + 4)
            assert not topics_at(nsqd) | topics_at(other)
            assert not reader.stats()["connections"]
            nsqds[0].publish("t", b"x")
            wait_for(lambda: seen["t"] == 3)
        for each in nsqds:
            each.close()


def test_a_topic_that_only_nsqlookupd_has_forgotten_is_released_after_two_rounds() -> None:
    """With a handler at work: it may still answer."""
    gate = Gate()
    with cluster() as (lookupd, nsqd), Producer(nsqd.tcp_address) as producer:
        producer.multi_publish("t", [b"x"] * 3)
        with (
            Reader(
                re.compile("^t$"),
                "ch",
                gate,
                lookupd_http_addresses=lookupd.http_address,
                max_in_flight=2,
                concurrency=1,
                **FAST,
            ) as reader,
            LookupdClient(lookupd.http_address) as client,
        ):
            gate.entered.wait()
            client.delete_topic("t")
            # The message that no handler had begun went back.
            wait_for(lambda: reader.stats()["in_flight"] == 1 and reader.stats()["requeued"] == 1)
            assert reader.stats()["topics"]["t"]["connections"] == 1
            gate.open.set()
            wait_for(lambda: reader.stats()["topics"] == {})
            assert (reader.stats()["finished"], reader.stats()["connections"]) == (1, {})


def test_the_total_keeps_the_counts_of_topics_that_are_gone() -> None:
    counts = ReaderCounts()
    counts.of("a").received = 3
    counts.of("b").received = 4
    counts.of("b").lost = 1
    assert counts.total == MessageCounts(received=7, lost=1)
    counts.drop("b")
    assert list(counts.by_topic) == ["a"]
    assert counts.total == MessageCounts(received=7, lost=1)
    assert counts.of("b") == MessageCounts()
