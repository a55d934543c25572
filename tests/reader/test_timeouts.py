"""Messages that the Reader touches until they are answered, and those that are lost, in virtual time."""

from __future__ import annotations

import time

import gevent

from gnsq_like import Message
from tests.simulation import Cluster, simulated
from tests.support.messages import Source, make_message


@simulated(msg_timeout=1.0)
def test_a_message_is_touched_until_it_is_answered(cluster: Cluster) -> None:
    """The other one, for which nobody asked, is not, and comes again."""
    came: list[bytes] = []

    def handler(message: Message) -> None:
        came.append(message.body)
        if message.body == b"touched":
            message.touch_until_answered()
        gevent.sleep(10)

    reader = cluster.reader("t", "c", handler, max_in_flight=3, max_backoff_duration=0)
    cluster.publish("t", b"touched", b"other")
    gevent.sleep(1.5)
    assert sorted(came) == [b"other", b"other", b"touched"]
    cluster.wait(lambda: reader.stats()["finished"])
    assert came.count(b"touched") == 1


@simulated(msg_timeout=0.6, max_msg_timeout=0.9)
def test_it_ends_where_nsqd_takes_no_more(cluster: Cluster) -> None:
    held: list[Message] = []

    def handler(message: Message) -> None:
        message.enable_async()
        message.touch_until_answered()
        held.append(message)

    reader = cluster.reader("t", "c", handler, max_redial_delay=60)
    cluster.publish("t", b"x")
    cluster.wait(lambda: held)
    gevent.sleep(0.89)
    assert not held[0].is_lost
    gevent.sleep(0.02)
    assert held[0].is_lost
    cluster.nsqds[0].stop()
    cluster.wait(lambda: held[0].answer == "LOST")
    assert not reader.stats()["in_flight"]


@simulated(msg_timeout=1.0)
def test_a_touch_shortly_before_the_deadline_is_sent(cluster: Cluster) -> None:
    """So shortly that the handler's place is already kept for it."""
    came: list[int] = []

    def handler(message: Message) -> None:
        came.append(message.attempts)
        gevent.sleep(0.95)
        assert message.is_overdue
        message.touch()
        gevent.sleep(0.5)

    reader = cluster.reader("t", "c", handler, max_backoff_duration=0)
    cluster.publish("t", b"x")
    cluster.wait(lambda: reader.stats()["finished"])
    gevent.sleep(5)
    assert came == [1]


@simulated(msg_timeout=1.0)
def test_a_message_whose_time_ends_while_it_waits_is_not_handled(cluster: Cluster) -> None:
    """It keeps its place until nsqd has certainly taken it back, and is handled when it comes again."""
    came: list[tuple[bytes, int]] = []

    def handler(message: Message) -> None:
        came.append((message.body, message.attempts))
        gevent.sleep(0.95 if message.body == b"first" else 0)

    reader = cluster.reader("t", "c", handler, max_in_flight=2, concurrency=1, max_backoff_duration=0)
    cluster.publish("t", b"first", b"waits")
    gevent.sleep(0.98)
    assert reader.stats()["in_flight"] == 1
    cluster.wait(lambda: reader.stats()["finished"] == 2)
    assert came == [(b"first", 1), (b"waits", 2)]
    cluster.wait(lambda: reader.stats()["lost"] == 1)
    assert reader.stats()["in_flight"] == 0


def test_a_message_is_lost_with_its_connection_or_its_time() -> None:
    assert make_message(received_at=time.monotonic() - 61).is_lost
    source = Source()
    message = make_message(source=source, received_at=time.monotonic())
    assert not message.is_lost
    source.alive = False
    assert message.is_lost
    message.finish()
    assert not message.is_lost
