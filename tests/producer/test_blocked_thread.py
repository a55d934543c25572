"""Publishes from other threads keep their deadlines while the thread of the connections is blocked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest

from gnsq_like import Producer
from gnsq_like.errors import NotSent, OutcomeUnknown
from tests.support.daemons import wait_for
from tests.support.nsqds import answer_all, answer_one, beat, identified, unanswered
from tests.support.peer import OK, PATIENCE, ScriptedNsqd

#: What the blocked thread executes: a call in C that releases the GIL, or Python code, which is preempted.
BLOCKS = ["C", "Python"]
#: Seconds in which the thread is blocked, even on a machine that stands still meanwhile; a publish waits for them all.
STILL_TIME = 3.0
MODES: dict[str, dict[str, Any]] = {"single": {}, "batching": {"batching": True}, "replicas": {"replicas": 2}}


@contextmanager
def blocked(producer: Producer, how: str) -> Iterator[None]:
    """The thread of the producer's connections does nothing else until the end."""
    begun, released = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        if how == "C":
            released.wait()
        while not released.is_set():
            pass

    producer._started().hub_handle.call(block)
    assert begun.wait(PATIENCE)
    try:
        yield
    finally:
        released.set()


def publisher(producer: Producer, caller: str) -> Callable[..., Any]:
    """Starts a publish in a greenlet of this thread, or in a thread without a hub; has ``get()``."""
    if caller == "a greenlet":
        return lambda *arguments, **options: gevent.spawn(producer.publish, *arguments, **options)
    pool = gevent.get_hub().threadpool
    return lambda *arguments, **options: pool.apply_async(producer.publish, arguments, options)


@pytest.fixture
def producers() -> Iterator[Callable[..., Producer]]:
    made: list[Producer] = []

    def make(*addresses: str, **options: Any) -> Producer:
        made.append(Producer(addresses, own_thread=True, timeout=PATIENCE, **options))
        return made[-1]

    yield make
    for producer in made:
        producer.close(timeout=0)


@pytest.mark.parametrize(
    ("mode", "how", "caller"),
    [("single", "C", "a greenlet"), ("single", "Python", "a thread"), ("batching", "C", "a thread")]
    + [("batching", "Python", "a greenlet"), ("replicas", "Python", "a thread")],
)
def test_what_was_not_sent_is_not_sent_later_either(
    producers: Callable[..., Producer], nsqd: ScriptedNsqd, other: ScriptedNsqd, mode: str, how: str, caller: str
) -> None:
    addresses = [nsqd.address, other.address] if mode == "replicas" else [nsqd.address]
    producer = producers(*addresses, **MODES[mode])
    publish = publisher(producer, caller)
    first = publish("t", b"first")
    peer = identified(nsqd)
    answer_one(peer, b"first")
    first.get(timeout=PATIENCE)
    with blocked(producer, how), pytest.raises(NotSent, match="the thread of the connections does not respond"):
        publish("t", b"late", timeout=0.1).get(timeout=PATIENCE)
    following = publish("t", b"following")
    answer_one(peer, b"following")
    following.get(timeout=PATIENCE)
    stats = producer.stats()
    assert (stats["confirmed"], stats["not_sent"], stats["unknown"]) == (2, 1, 0)


@pytest.mark.parametrize("how", BLOCKS)
def test_what_waits_for_a_connection_is_not_sent_later_either(
    producers: Callable[..., Producer], nsqd: ScriptedNsqd, how: str
) -> None:
    producer = producers(nsqd.address)
    publish = publisher(producer, "a thread")
    patient = publish("t", b"patient")
    peer = nsqd.accept()
    assert (peer.take(4), peer.line()) == (b"  V2", b"IDENTIFY")  # the publish is queued, and the connection not made
    peer.body()
    late = publish("t", b"late", timeout=STILL_TIME)
    wait_for(lambda: producer.stats()["waiting"] == 2)
    with blocked(producer, how):
        peer.send(OK)
        with pytest.raises(NotSent, match="does not respond"):
            late.get(timeout=PATIENCE)
    following = publish("t", b"following")
    for body, result in ((b"patient", patient), (b"following", following)):
        answer_one(peer, body)
        result.get(timeout=PATIENCE)


def test_nor_is_what_a_killed_caller_has_published(producers: Callable[..., Producer], nsqd: ScriptedNsqd) -> None:
    """Although the thread of the connections may have nsqd's answer before it is told that the caller is gone."""
    producer = producers(nsqd.address)
    publish = publisher(producer, "a greenlet")
    killed = publish("t", b"killed")
    peer = nsqd.accept()
    assert (peer.take(4), peer.line()) == (b"  V2", b"IDENTIFY")
    peer.body()
    with blocked(producer, "C"):
        [queued] = producer._started().queue
        killed.kill()
        # Which of the two comes first is up to the kernel, so only this shows that it does not matter.
        assert queued.done
        peer.send(OK)
    following = publish("t", b"following")
    answer_one(peer, b"following")
    following.get(timeout=PATIENCE)


@pytest.mark.parametrize(
    ("mode", "caller"), [("single", "a thread"), ("batching", "a greenlet"), ("replicas", "a thread")]
)
def test_what_was_sent_is_unknown_and_says_where(
    producers: Callable[..., Producer], nsqd: ScriptedNsqd, other: ScriptedNsqd, mode: str, caller: str
) -> None:
    addresses = [nsqd.address, other.address] if mode == "replicas" else [nsqd.address]
    producer = producers(*addresses, **MODES[mode])
    publish = publisher(producer, caller)
    first = publish("t", b"first")
    peer = identified(nsqd)
    answer_one(peer, b"first")
    first.get(timeout=PATIENCE)
    waiting = publish("t", b"x", timeout=STILL_TIME)
    assert (peer.line(), peer.body()) == (b"PUB t", b"x")
    beat(peer)
    if mode == "replicas":
        # The copy at the other is confirmed, and only that here is not.
        wait_for(lambda: other.bodies == [b"first", b"x"] and unanswered(producer, other.address) == 0, "the copy")
    assert unanswered(producer, nsqd.address) == 1
    with blocked(producer, "C"), pytest.raises(OutcomeUnknown, match="does not respond") as caught:
        waiting.get(timeout=PATIENCE)
    assert caught.value.address == nsqd.address
    peer.send(OK)
    gevent.spawn(answer_all, peer)
    producer.publish("t", b"following")
    assert producer.stats()["unknown"] == 1


def test_async_results_keep_their_deadlines(producers: Callable[..., Producer], nsqd: ScriptedNsqd) -> None:
    producer = producers(nsqd.address, max_pending_count=2)
    waiting = gevent.spawn(producer.publish, "t", b"first")
    answer_one(identified(nsqd), b"first")
    waiting.get(timeout=PATIENCE)
    with blocked(producer, "C"):
        patient = producer.publish_async("t", b"x")
        # The last one waits for room.
        results = [producer.publish_async("t", b"x", timeout=0.1) for _ in range(2)]
        with pytest.raises(gevent.Timeout):
            patient.get(timeout=0)
        for result in results:
            with pytest.raises(NotSent, match="does not respond"):
                result.get(timeout=PATIENCE)


def test_close_does_not_wait_for_it(
    producers: Callable[..., Producer], nsqd: ScriptedNsqd, caplog: pytest.LogCaptureFixture
) -> None:
    producer = producers(nsqd.address)
    waiting = gevent.spawn(producer.publish, "t", b"first")
    answer_one(identified(nsqd), b"first")
    waiting.get(timeout=PATIENCE)
    with blocked(producer, "C"):
        assert producer.close(timeout=0) is False
    assert "does not respond" in caplog.text
