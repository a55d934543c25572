"""A client that makes much work does not keep the others waiting."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import gevent
import pytest

from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.raw import Client, http, mpub_body, sized, topic_stats
from tests.support.upgraded import upgrade

#: The work of some twenty turns on a quick machine; more on others.
MANY = 300_000


@pytest.fixture
def nsqd() -> Iterator[Running]:
    with running_nsqd() as running:
        yield running


@contextmanager
def watched(nsqd: Running) -> Iterator[set[int]]:
    """How many messages the topic "many" had whenever another client got a response."""
    seen: set[int] = set()

    def publish() -> None:
        with Client(nsqd.tcp_address) as client:
            while True:
                client.publish("other", b"x")
                topic = nsqd.daemon.broker.topics.get("many")
                seen.add(topic.message_count if topic is not None else 0)

    publisher = gevent.spawn(publish)
    wait_for(lambda: seen)
    try:
        yield seen
    finally:
        publisher.kill()


def by_mpub(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.publish("many", *[b"x"] * MANY)


def by_http(nsqd: Running) -> None:
    assert http(nsqd.http_address, "POST", "/mpub?topic=many", b"x\n" * MANY).status == 200


def by_one_compressed_read(nsqd: Running) -> None:
    # Less than what is decompressed at once; a NOP between two PUBs, because a run of them is one piece of work.
    commands = (b"PUB many\n" + sized(b"x") + b"NOP\n") * 10_000
    with Client(nsqd.tcp_address) as client:
        upgrade(client, codec="deflate")
        client.send(commands)
        wait_for(lambda: (topic_stats(nsqd.http_address, "many") or {}).get("message_count") == 10_000)


@pytest.mark.parametrize("publish", [by_mpub, by_http, by_one_compressed_read])
def test_others_have_their_responses_meanwhile(nsqd: Running, publish: Callable[[Running], None]) -> None:
    with watched(nsqd) as seen:
        publish(nsqd)
    count = nsqd.daemon.broker.topics["many"].message_count
    assert count in (MANY, 10_000)
    assert len(seen - {0, count}) >= 3


def test_a_topic_that_is_deleted_during_a_publish_gets_no_more_of_it(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        client.send(b"MPUB many\n", mpub_body(*[b"x"] * MANY))
        topics = nsqd.daemon.broker.topics
        wait_for(lambda: "many" in topics and topics["many"].message_count)
        nsqd.daemon.delete_topic(topics["many"])
        client.expect_fatal(b"E_MPUB_FAILED MPUB failed exiting")
        assert "many" not in topics


def test_a_bomb_of_a_client_that_is_gone_is_not_executed(nsqd: Running) -> None:
    with Client(nsqd.tcp_address) as client:
        upgrade(client, codec="deflate")
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = [packer.compress(b"NOP\n" * 250_000) for _ in range(64)]
        packed += [packer.compress(b"PUB end\n" + sized(b"x")), packer.flush(zlib.Z_SYNC_FLUSH)]
        client.sock.sock.sendall(b"".join(packed))
    wait_for(lambda: not nsqd.daemon.clients)
    assert "end" not in nsqd.daemon.broker.topics
