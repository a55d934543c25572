"""Messages that the Reader touches until they are answered, on an nsqd whose times are short."""

from __future__ import annotations

import time

import gevent
from gevent.event import Event

from gnsq_like import Message
from tests.support.daemons import wait_for
from tests.support.messages import Source, make_message
from tests.support.peer import ScriptedNsqd
from tests.support.reading import ID, answer_cls, reading, serve, until


def test_a_message_is_touched_until_it_is_answered(nsqd: ScriptedNsqd) -> None:
    """The other one, for which nobody asked, is not."""
    done = Event()

    def handler(message: Message) -> None:
        if message.id.endswith("1"):
            message.touch_until_answered()
        done.wait()

    with reading([nsqd], handler, max_in_flight=2, concurrency=2):
        peer = serve(nsqd, msg_timeout=1000)
        peer.messages(ID % 1, ID % 2)
        lines = [line for _ in range(3) for line in until(peer, b"TOUCH")]
        done.set()
        lines += until(peer, b"FIN " + ID % 1)
        assert {line for line in lines if line.startswith(b"TOUCH")} == {b"TOUCH " + ID % 1}
        peer.messages(ID % 3)
        assert not any(line.startswith(b"TOUCH") for line in until(peer, b"FIN " + ID % 3))
        gevent.spawn(answer_cls, peer)


def test_it_ends_where_nsqd_takes_no_more(nsqd: ScriptedNsqd) -> None:
    held: list[Message] = []

    def handler(message: Message) -> None:
        message.enable_async()
        message.touch_until_answered()
        held.append(message)

    with reading([nsqd], handler) as reader:
        peer = serve(nsqd, msg_timeout=600, max_msg_timeout=900)
        peer.messages(ID % 1)
        until(peer, b"TOUCH")
        wait_for(lambda: held and held[0].is_lost)  # its time is over
        assert not held[0]._is_touched
        peer.close()
        wait_for(lambda: held[0].answer == "LOST")
        assert held[0].is_lost
        assert not reader.stats()["in_flight"]


def test_a_message_is_lost_with_its_connection_or_its_time() -> None:
    assert make_message(received_at=time.monotonic() - 61).is_lost
    source = Source()
    message = make_message(source=source, received_at=time.monotonic())
    assert not message.is_lost
    source.alive = False
    assert message.is_lost
    message.finish()
    assert not message.is_lost
