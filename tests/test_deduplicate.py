"""Copies are dropped, and nothing but copies."""

from contextlib import suppress
from typing import Any

import gevent
import pytest
from gevent.event import Event

from gnsq_like import Deduplicate, Message, Producer, Reader, Requeue
from gnsq_like.deduplicate import MemoryStore
from gnsq_like.errors import InvalidOption, NSQError
from tests.support.daemons import running_nsqd, wait_for
from tests.support.messages import make_message


def body_of(message: Message) -> bytes:
    return message.body


def test_a_copy_is_dropped():
    handled: list[Message] = []
    it = Deduplicate(handled.append, key=body_of, window=60)
    first, copy, other = make_message(b"x"), make_message(b"x"), make_message(b"y")
    for message in (first, copy, other):
        it(message)
    assert handled == [first, other]
    assert it.dropped_count == 1


@pytest.mark.parametrize("how", ["raise", "Timeout", "False", "requeue", "async"])
def test_what_was_not_handled_leaves_no_trace(how):
    calls: list[Message] = []

    def handler(message):
        calls.append(message)
        if len(calls) > 1:
            return None
        if how == "raise":
            raise RuntimeError
        if how == "Timeout":
            raise gevent.Timeout
        if how == "requeue":
            message.requeue()
        if how == "async":
            message.enable_async()
        return how != "False"

    it = Deduplicate(handler, key=body_of, window=60)
    with suppress(RuntimeError, gevent.Timeout):
        it(make_message(b"x"))
    it(make_message(b"x"))
    assert len(calls) == 2


def test_a_copy_that_comes_meanwhile_is_requeued_without_backoff():
    begun, go = Event(), Event()
    calls: list[Message] = []

    def handler(message):
        calls.append(message)
        begun.set()
        go.wait()

    it = Deduplicate(handler, key=body_of, window=60, busy_delay=3)
    first = gevent.spawn(it, make_message(b"x"))
    begun.wait()
    with pytest.raises(Requeue) as caught:
        it(make_message(b"x"))
    assert (caught.value.delay, caught.value.backoff) == (3, False)
    go.set()
    first.get(timeout=30)
    it(make_message(b"x"))
    assert len(calls) == 1


def test_the_window_ends():
    now = [0.0]
    store = MemoryStore(clock=lambda: now[0])
    handled: list[Message] = []
    it = Deduplicate(handled.append, key=body_of, window=10, store=store)
    it(make_message(b"x"))
    now[0] = 9.9
    it(make_message(b"x"))
    assert len(handled) == 1
    now[0] = 10.1
    it(make_message(b"x"))
    assert len(handled) == 2
    now[0] = 30.0
    it(make_message(b"y"))
    assert len(store) == 1


def test_memory_is_bounded():
    store = MemoryStore(limit=100)
    for number in range(1000):
        store.remember(number, 60)
    assert len(store) == 100
    assert store.seen(999) and store.seen(900) and not store.seen(899)


def test_a_store_that_fails():
    class Broken:
        def seen(self, key):
            return False

        def remember(self, key, window):
            raise ConnectionError

    handled: list[Message] = []
    it = Deduplicate(handled.append, key=body_of, window=60, store=Broken())
    it(make_message(b"x"))
    assert len(handled) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "id"},
        {"window": 0},
        {"window": "1"},
        {"busy_delay": "1"},
        {"busy_delay": -1},
        {"store": {}},
        {"store": 0},
    ],
)
def test_wrong_arguments(wrong):
    with pytest.raises(InvalidOption):
        Deduplicate(print, **{"key": body_of, "window": 1, **wrong})
    with pytest.raises(InvalidOption):
        MemoryStore(0)


def test_replicas_and_deduplicate_together():
    handled: list[bytes] = []
    with running_nsqd("ours", node_id=1) as one, running_nsqd("ours", node_id=2) as two:
        addresses = [one.tcp_address, two.tcp_address]
        it = Deduplicate(lambda message: handled.append(message.body), key=body_of, window=60, busy_delay=0)
        with (
            Producer(addresses, replicas=2) as producer,
            Reader("t", "c", it, nsqd_tcp_addresses=addresses, max_in_flight=20) as reader,
        ):
            for number in range(50):
                producer.publish("t", b"%d" % number)
            wait_for(lambda: reader.stats()["finished"] == 100)
    assert sorted(handled, key=int) == [b"%d" % number for number in range(50)]
    assert it.dropped_count == 50


@pytest.mark.parametrize("original", ["succeeds", "fails"])
def test_a_copy_that_comes_meanwhile_uses_up_no_attempts(original: str) -> None:
    begun, go = Event(), Event()
    handled: list[int] = []
    given_up: list[Message] = []

    def handler(message: Message) -> None:
        handled.append(message.attempts)
        if len(handled) == 1:
            begun.set()
            go.wait()
            if original == "fails":
                raise ValueError("meant")

    it = Deduplicate(handler, key=body_of, window=60, busy_delay=0)
    options: dict[str, Any] = {
        "max_attempts": 2,
        "max_in_flight": 2,
        "max_backoff_duration": 0,
        "default_requeue_delay": 60,
    }
    with running_nsqd() as nsqd, Producer(nsqd.tcp_address) as producer:
        producer.multi_publish("t", [b"x", b"x"])
        with Reader(
            "t", "c", it, nsqd_tcp_addresses=nsqd.tcp_address, on_giving_up=given_up.append, **options
        ) as reader:
            begun.wait()
            wait_for(lambda: reader.stats()["requeued"] >= 10)
            go.set()
            wait_for(lambda: reader.stats()["finished"] == (1 if original == "fails" else 2))
    assert given_up == []
    assert len(handled) == (2 if original == "fails" else 1)


def test_a_handler_that_nothing_runs_has_handled_nothing():
    async def asynchronous(message: Message) -> None: ...

    with pytest.raises(InvalidOption, match="async def"):
        Deduplicate(asynchronous, key=body_of, window=60)  # type: ignore[arg-type]
    hidden: Any = lambda message: asynchronous(message)  # noqa: E731
    it = Deduplicate(hidden, key=body_of, window=60)
    with pytest.raises(NSQError, match="it returned a coroutine"):
        it(make_message(b"x"))
    assert not it.store.seen(b"x")
