"""Log handlers that wait for ever, and filters that raise: nothing but the log waits, and nothing is left half-done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import gevent
import pytest
from gevent.event import Event

from gnsq_like import Message, Producer
from gnsq_like.errors import NotSent, NSQError
from tests.simulation import Cluster, simulated

#: Virtual seconds: backoff, a connection that is dialled again, and a heartbeat interval or two.
_PATIENCE = 10.0
_PACKAGE = logging.getLogger("gnsq_like")


class Handler(logging.Handler):
    """A log handler that calls ``act`` with the number of each record of the client."""

    def __init__(self, act: Callable[[int], object]) -> None:
        super().__init__(logging.DEBUG)
        self._act = act
        self.count = 0

    def createLock(self) -> None:
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        if record.name == "gnsq_like.nsqd":
            return True
        self.count += 1
        self._act(self.count)
        return True


@contextmanager
def logged_to(handler: Handler) -> Iterator[None]:
    level = _PACKAGE.level
    _PACKAGE.addHandler(handler)
    _PACKAGE.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        _PACKAGE.removeHandler(handler)
        _PACKAGE.setLevel(level)


def _live(cluster: Cluster, topic: str, *, stop: float = 1.0) -> None:
    """A Reader backs off and recovers, loses its connection, and has a message overdue; it handles all that comes."""
    handled: list[bytes] = []
    failed: list[bytes] = []

    def handle(message: Message) -> None:
        if message.body == b"fails" and not failed:
            failed.append(message.body)
            raise RuntimeError("meant")
        if message.body == b"late" and message.attempts == 1:
            gevent.sleep(3)
        handled.append(message.body)

    reader = cluster.reader(
        topic,
        "c",
        handle,
        max_in_flight=10,
        concurrency=10,
        default_requeue_delay=0.1,
        backoff_multiplier=0.05,
        heartbeat_interval=1,
        max_redial_delay=1.0,
    )
    nsqd = cluster.nsqds[0].process

    def consume(body: bytes) -> None:
        nsqd.run(cluster.publish, topic, body)
        cluster.wait(lambda: body in handled, _PATIENCE)

    consume(b"first")
    consume(b"fails")
    cluster.wait(lambda: reader.stats()["backoff_level"] == 0, _PATIENCE)
    for connection in cluster.world.network.open_connections([cluster.world.main]):
        connection.cut()
    cluster.wait(lambda: reader.stats()["reconnects"], _PATIENCE)
    consume(b"late")
    consume(b"after the loss")
    reconnects = reader.stats()["reconnects"]
    gevent.sleep(5)  # heartbeats are answered
    assert reader.stats()["reconnects"] == reconnects
    consume(b"last")
    began = cluster.now
    assert reader.stop(stop) == 0
    assert cluster.now - began < stop + 2.5


def _publish(cluster: Cluster, topic: str) -> None:
    """A Producer notices that its nsqd is killed, fails at once, and publishes again when it is back."""
    nsqd = cluster.nsqds[0]
    timeout = 2.0
    with Producer(cluster.tcp_addresses, own_thread=False, timeout=timeout, fail_fast=True) as producer:

        def publish() -> bool:
            began = cluster.now
            try:
                producer.publish(topic, b"x")
            except NSQError:
                return False
            finally:
                assert cluster.now - began < timeout + 0.1
            return True

        assert publish()
        nsqd.kill()
        assert not publish()
        cluster.wait(lambda: producer.stats()["away"], _PATIENCE)
        with pytest.raises(NotSent, match="unreachable"):
            producer.publish(topic, b"x")
        nsqd.start()
        cluster.wait(lambda: not producer.stats()["away"], _PATIENCE)
        assert all(publish() for _ in range(5))
        began = cluster.now
    assert cluster.now - began < 1.5  # hooks and words get a second


@simulated()
def test_a_producer_works_on_with_a_log_handler_that_waits_for_ever(cluster: Cluster) -> None:
    assert _records_while_a_handler_waits(cluster, _publish) > 2


@simulated(timeout=600)
def test_a_filter_that_raises_at_any_record_of_a_producer_leaves_nothing_half_done(cluster: Cluster) -> None:
    _with_each_record_raising(cluster, _publish)


def _records_while_a_handler_waits(cluster: Cluster, work: Callable[[Cluster, str], object]) -> int:
    """Work while the handler waits; returns the number of records that it gets, most of them once it goes on."""
    gate = Event()
    handler = Handler(lambda number: gate.wait())
    with logged_to(handler):
        work(cluster, "t")
        gate.set()
        gevent.sleep(1)  # virtual time: the dispatcher says what has waited
    return handler.count


def _with_each_record_raising(cluster: Cluster, work: Callable[[Cluster, str], object]) -> None:
    counting = Handler(int)
    with logged_to(counting):
        work(cluster, "t0")
    for number in range(1, counting.count + 3):

        def act(count: int, number: int = number) -> None:
            if count == number:
                raise RuntimeError("of the filter")

        with logged_to(Handler(act)):
            work(cluster, f"t{number}")
    assert counting.count > 2


@simulated(msg_timeout=2.0)
def test_a_reader_works_on_with_a_log_handler_that_waits_for_ever(cluster: Cluster) -> None:
    assert _records_while_a_handler_waits(cluster, _live) > 3


@simulated(msg_timeout=2.0, timeout=600)
def test_a_filter_that_raises_at_any_record_of_a_reader_leaves_nothing_half_done(cluster: Cluster) -> None:
    _with_each_record_raising(cluster, _live)
