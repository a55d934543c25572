"""Publishes that wait at the same moment, as one MPUB."""

from __future__ import annotations

import struct
from typing import Any

import gevent
import pytest

from gnsq_like import Producer
from gnsq_like.errors import InvalidBody, InvalidName, NotSent, OutcomeUnknown, PublishRefused
from tests.simulation import Cluster, simulated
from tests.support.daemons import KINDS, running_nsqd
from tests.support.hub import settle
from tests.support.nsqds import identified, run_out_of_time
from tests.support.peer import OK, PATIENCE, Peer, ScriptedNsqd


def make(nsqd: ScriptedNsqd, **options: Any) -> Producer:
    options = {"own_thread": False, "batching": True, "timeout": PATIENCE, **options}
    return Producer(nsqd.address, **options)


def take_batch(peer: Peer) -> tuple[bytes, list[bytes]]:
    """The topic and bodies of the next command."""
    word, topic = peer.line().split(b" ")
    body = peer.body()
    if word == b"PUB":
        return topic, [body]
    assert word == b"MPUB"
    [count] = struct.unpack_from(">i", body)
    bodies: list[bytes] = []
    position = 4
    for _ in range(count):
        [size] = struct.unpack_from(">i", body, position)
        bodies.append(body[position + 4 : position + 4 + size])
        position += 4 + size
    assert position == len(body)
    return topic, bodies


def start(producer: Producer, count: int, topic: str = "t") -> list[Any]:
    return [gevent.spawn(producer.publish, topic, b"%d" % number) for number in range(count)]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_one_mpub_for_each_topic(nsqd):
    producer = make(nsqd)
    waiting = start(producer, 10, "one") + start(producer, 5, "two")
    peer = identified(nsqd)
    assert take_batch(peer) == (b"one", numbers(10))
    assert take_batch(peer) == (b"two", numbers(5))
    peer.send(OK + OK)
    gevent.joinall(waiting, raise_error=True, timeout=PATIENCE)
    assert producer.stats()["confirmed"] == 15
    producer.close()


def test_one_alone_is_a_pub(nsqd):
    producer = make(nsqd)
    [waiting] = start(producer, 1)
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", b"0")
    peer.send(OK)
    waiting.get(timeout=PATIENCE)
    producer.close()


@pytest.mark.parametrize(("option", "value"), [("max_batch_count", 4), ("max_batch_bytes", 4 + 4 * (4 + 1))])
def test_a_batch_is_bounded(nsqd, option, value):
    producer = make(nsqd, **{option: value})
    waiting = start(producer, 10)
    peer = identified(nsqd)
    assert [take_batch(peer)[1] for _ in range(3)] == [numbers(10)[:4], numbers(10)[4:8], numbers(10)[8:]]
    peer.send(OK * 3)
    gevent.joinall(waiting, raise_error=True, timeout=PATIENCE)
    producer.close()


def test_a_message_that_does_not_fit_begins_the_next_batch(nsqd):
    producer = make(nsqd, max_batch_bytes=4 + (4 + 4) + (4 + 6))
    waiting = [gevent.spawn(producer.publish, "t", body) for body in (b"1234", b"1234567", b"1")]
    peer = identified(nsqd)
    assert [take_batch(peer)[1] for _ in range(2)] == [[b"1234"], [b"1234567", b"1"]]
    peer.send(OK * 2)
    gevent.joinall(waiting, raise_error=True, timeout=PATIENCE)
    producer.close()


def test_linger_gathers_what_comes_later(nsqd):
    producer = make(nsqd, linger=1)
    first = start(producer, 2)
    settle()  # without linger they would have left
    second = start(producer, 2)
    peer = identified(nsqd)
    assert take_batch(peer)[1] == [b"0", b"1", b"0", b"1"]
    peer.send(OK)
    gevent.joinall(first + second, raise_error=True, timeout=PATIENCE)
    producer.close()


def test_linger_does_not_outlast_a_deadline(nsqd):
    producer = make(nsqd, linger=60)
    waiting = gevent.spawn(producer.publish, "t", b"urgent", timeout=5)
    peer = identified(nsqd)
    assert take_batch(peer)[1] == [b"urgent"]
    peer.send(OK)
    waiting.get(timeout=PATIENCE)
    producer.close()


def test_close_sends_what_lingers(nsqd):
    producer = make(nsqd, linger=60, timeout=100)
    waiting = start(producer, 3)
    settle()
    closing = gevent.spawn(producer.close)
    peer = identified(nsqd)
    assert take_batch(peer)[1] == numbers(3)
    peer.send(OK)
    assert closing.get(timeout=PATIENCE) is True
    gevent.joinall(waiting, raise_error=True, timeout=PATIENCE)


def test_a_refused_batch_is_sent_singly(nsqd):
    producer = make(nsqd)
    waiting = start(producer, 4)
    peer = identified(nsqd)
    assert take_batch(peer)[1] == numbers(4)
    peer.error("E_BAD_MESSAGE MPUB message too big 3 > 2")
    peer.close()
    peer = identified(nsqd)
    for number in range(4):
        assert (peer.line(), peer.body()) == (b"PUB t", b"%d" % number)
    peer.send(OK)
    peer.error("E_BAD_MESSAGE PUB message too big 3 > 2")
    peer.close()
    peer = identified(nsqd)
    for number in (2, 3):
        assert (peer.line(), peer.body()) == (b"PUB t", b"%d" % number)
        peer.send(OK)
    gevent.joinall(waiting, timeout=PATIENCE)
    assert [type(greenlet.exception) for greenlet in waiting] == [type(None), PublishRefused, type(None), type(None)]
    producer.close()


def test_an_mpub_that_failed_half_way_is_unknown(nsqd):
    """nsqd stores the messages one by one, and E_MPUB_FAILED does not say how many."""
    producer = make(nsqd)
    waiting = start(producer, 2)
    peer = identified(nsqd)
    take_batch(peer)
    peer.error("E_MPUB_FAILED MPUB failed disk full")
    gevent.joinall(waiting, timeout=PATIENCE)
    for greenlet in waiting:
        assert isinstance(greenlet.exception, OutcomeUnknown)
        assert "disk full" in str(greenlet.exception)
    producer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_offender_fails_at_a_whole_nsqd(kind):
    with (
        running_nsqd(kind, max_msg_size=100) as nsqd,
        Producer(nsqd.tcp_address, own_thread=False, batching=True) as producer,
    ):
        waiting = [
            gevent.spawn(producer.publish, "t", bytes(101) if number == 30 else b"%d" % number) for number in range(100)
        ]
        gevent.joinall(waiting, timeout=PATIENCE)
        assert [number for number, greenlet in enumerate(waiting) if greenlet.exception] == [30]
        assert isinstance(waiting[30].exception, PublishRefused)


def test_each_has_its_own_deadline(nsqd):
    producer = make(nsqd)
    hasty = gevent.spawn(producer.publish, "t", b"hasty", timeout=PATIENCE / 2)
    patient = gevent.spawn(producer.publish, "t", b"patient")
    peer = identified(nsqd)
    assert take_batch(peer)[1] == [b"hasty", b"patient"]
    run_out_of_time(producer, PATIENCE / 2)
    with pytest.raises(OutcomeUnknown):
        hasty.get(timeout=PATIENCE)
    peer.send(OK)
    patient.get(timeout=PATIENCE)
    producer.close()


def test_a_member_out_of_time_is_left_out(nsqd):
    producer = make(nsqd)
    hasty = gevent.spawn(producer.publish, "t", b"hasty", timeout=0.05)
    killed = gevent.spawn(producer.publish, "t", b"killed")
    patient = gevent.spawn(producer.publish, "t", b"patient")
    server = nsqd.accept()  # connected, but no answer to IDENTIFY yet
    killed.kill()
    with pytest.raises(NotSent):
        hasty.get(timeout=PATIENCE)
    server.identify(version="1.3.0")
    assert take_batch(server)[1] == [b"patient"]
    server.send(OK)
    patient.get(timeout=PATIENCE)
    producer.close()


def test_a_batch_without_members_is_not_sent(nsqd):
    producer = make(nsqd)
    waiting = start(producer, 2)
    server = nsqd.accept()  # as above
    gevent.killall(waiting)
    server.identify(version="1.3.0")
    waiting = start(producer, 1, "next")
    assert take_batch(server)[0] == b"next"
    server.send(OK)
    gevent.joinall(waiting, raise_error=True, timeout=PATIENCE)
    assert producer.stats()["not_sent"] == 2
    producer.close()


def test_members_out_of_time_together_end_their_batch(nsqd):
    producer = make(nsqd)
    waiting = start(producer, 2)
    peer = identified(nsqd)
    take_batch(peer)
    run_out_of_time(producer)
    gevent.joinall(waiting, timeout=PATIENCE)
    assert [type(greenlet.exception) for greenlet in waiting] == [OutcomeUnknown] * 2
    peer.send(OK)  # belongs to nobody
    waiting = start(producer, 1)
    assert take_batch(peer)[1] == numbers(1)
    peer.send(OK)
    gevent.joinall(waiting, raise_error=True, timeout=PATIENCE)
    producer.close()


def test_a_member_nobody_waits_for_is_not_sent_again_after_a_refusal(nsqd):
    producer = make(nsqd)
    hasty = gevent.spawn(producer.publish, "t", b"hasty", timeout=PATIENCE / 2)
    waiting = start(producer, 3)
    peer = identified(nsqd)
    take_batch(peer)
    waiting[1].kill()
    run_out_of_time(producer, PATIENCE / 2)
    with pytest.raises(OutcomeUnknown):
        hasty.get(timeout=PATIENCE)
    peer.error("E_BAD_MESSAGE MPUB message too big 3 > 2")
    peer.close()
    peer = identified(nsqd)
    for body in (b"0", b"2"):
        assert take_batch(peer)[1] == [body]
        peer.send(OK)
    gevent.joinall(waiting, timeout=PATIENCE)
    stats = producer.stats()
    assert [stats[name] for name in ("confirmed", "unknown", "not_sent")] == [2, 1, 1]
    producer.close()


def test_a_member_nobody_waits_for_is_counted_when_its_batch_is_sent_without_it(nsqd):
    producer = make(nsqd, retry_unknown=True)
    waiting = start(producer, 3)
    peer = identified(nsqd)
    take_batch(peer)
    waiting[1].kill()
    peer.close()
    peer = identified(nsqd)
    assert take_batch(peer)[1] == [b"0", b"2"]
    peer.send(OK)
    gevent.joinall(waiting, timeout=PATIENCE)
    stats = producer.stats()
    assert [stats[name] for name in ("confirmed", "unknown", "not_sent")] == [2, 1, 0]
    producer.close()


@simulated()
def test_members_of_many_timeouts_end_in_time_whatever_their_batches_wait_for(cluster: Cluster) -> None:
    producer = cluster.producer(batching=True, timeout=10)
    producer.publish("t", b"connects")
    cluster.nsqds[0].process.stand_still(60)
    late: list[float] = []

    def publish(timeout: float) -> None:
        due = cluster.now + timeout
        with pytest.raises(OutcomeUnknown):
            producer.publish("t", b"x", timeout=timeout)
        late.append(cluster.now - due)

    first = [gevent.spawn(publish, timeout) for timeout in (0.06, 0.05, 3.0)]
    gevent.sleep(0.055)  # virtual: between the first two deadlines
    gevent.joinall([*first, gevent.spawn(publish, 0.05), gevent.spawn(publish, 0.2)], raise_error=True)
    assert len(late) == 5
    assert max(late) < 0.021  # deadlines are looked at every 20 ms at most


def test_local_errors_come_at_once(nsqd):
    producer = make(nsqd)
    with pytest.raises(InvalidName):
        producer.publish("no such name", b"x")
    with pytest.raises(InvalidBody):
        producer.publish("t", b"")
    assert producer.stats()["state"] == "new"


def test_a_deferred_publish_joins_no_batch(nsqd):
    producer = make(nsqd)
    waiting = gevent.spawn(producer.publish, "t", b"x", defer=1.5)
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"DPUB t 1500", b"x")
    peer.send(OK)
    waiting.get(timeout=PATIENCE)
    producer.close()
