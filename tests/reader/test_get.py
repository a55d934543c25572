"""Messages one by one with a timeout, from the Reader's own thread and from others."""

from __future__ import annotations

import threading
import time

import gevent
import pytest

from gnsq_like import Message, Producer, Reader, ReaderGroup
from gnsq_like.errors import ConnectionFailed, NotRunning
from gnsq_like.reader.reader import running_of
from tests.support.daemons import running_nsqd, wait_for
from tests.support.peer import ScriptedNsqd
from tests.support.reading import ID, answer_cls, finished, ignore, reading, serve


def test_a_message_or_none(nsqd: ScriptedNsqd) -> None:
    with reading([nsqd], None, max_in_flight=2) as reader:
        peer = serve(nsqd)
        assert reader.get(0) is None
        assert reader.get(0.01) is None
        waiting = gevent.spawn(reader.get)
        peer.messages(ID % 1, ID % 2)
        first, second = waiting.get(), reader.get(10)
        assert second is not None
        assert [first.id, second.id] == [(ID % 1).decode(), (ID % 2).decode()]
        running = running_of(reader)
        assert running is not None
        assert not running.handlers.is_worker(gevent.getcurrent())
        peer.close()
        wait_for(lambda: first.answer == second.answer == "LOST")
    with pytest.raises(NotRunning, match="stopped"):
        reader.get(0)


def test_a_wait_ends_with_the_reader(nsqd: ScriptedNsqd) -> None:
    reader = reading([nsqd], None)
    with pytest.raises(NotRunning, match="new"):
        reader.get()
    reader.start()
    waiting = gevent.spawn(reader.get)
    gevent.idle()
    reader.stop(0)
    with pytest.raises(NotRunning, match="stop"):
        waiting.get()


def test_a_handler_takes_them_all(nsqd: ScriptedNsqd) -> None:
    with reading([nsqd], ignore) as reader:
        with pytest.raises(NotRunning, match="without a handler"):
            reader.get(0)
        with pytest.raises(NotRunning, match="with a handler"):
            next(iter(reader))


def test_it_raises_why_the_reader_gave_up(nsqd: ScriptedNsqd) -> None:
    reader = reading([nsqd], None)
    reader.start()
    peer = nsqd.accept()
    peer.identify()
    peer.line()
    peer.error("E_BAD_CHANNEL SUB channel name is not valid")
    with pytest.raises(ConnectionFailed):
        reader.get(30)


def test_a_wait_that_is_over_leaves_nothing_behind(nsqd: ScriptedNsqd) -> None:
    with reading([nsqd], None) as reader:
        peer = serve(nsqd)
        for _ in range(10):
            reader.get(0.001)
        assert reader._running is not None
        loops = reader._running.handlers._loops
        assert loops is not None
        assert not loops._turns
        gevent.spawn(answer_cls, peer)


def test_what_is_given_up_is_not_handed_out(nsqd: ScriptedNsqd) -> None:
    given_up: list[Message] = []
    options = {"max_attempts": 3, "on_giving_up": given_up.append, "max_in_flight": 2}
    with reading([nsqd], None, **options) as reader:
        peer = serve(nsqd)
        peer.messages(ID % 1, attempts=4)
        peer.messages(ID % 2, attempts=3)
        message = reader.get(30)
        assert message is not None
        assert message.id == (ID % 2).decode()
        assert [each.id for each in given_up] == [(ID % 1).decode()]
        message.finish()
        gevent.spawn(answer_cls, peer)


def test_threads_share_a_reader_that_has_a_thread_of_its_own() -> None:
    bodies: list[bytes] = []
    with running_nsqd() as nsqd:
        with Producer(nsqd.tcp_address) as producer:
            producer.multi_publish("t", [b"%d" % number for number in range(200)])
        reader = Reader("t", "c", nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=20)

        def take() -> None:
            while (message := reader.get(2)) is not None:
                bodies.append(message.body)
                message.finish()

        with ReaderGroup(reader, own_thread=True):
            threads = [threading.Thread(target=take) for _ in range(4)]
            for thread in threads:
                thread.start()
            wait_for(lambda: len(bodies) == 200)
            wait_for(lambda: finished(nsqd))
            for thread in threads:
                gevent.get_hub().threadpool.apply(thread.join)
    assert sorted(bodies, key=int) == [b"%d" % number for number in range(200)]


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_an_interrupted_caller_takes_no_message(timeout: float | None) -> None:
    with running_nsqd("process") as nsqd, Producer(nsqd.tcp_address) as producer:
        reader = Reader("t", "c", nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=1)
        with ReaderGroup(reader, own_thread=True):
            for _ in range(3):
                with pytest.raises(gevent.Timeout), gevent.Timeout(0.05):
                    reader.get(timeout)
            running = running_of(reader)
            assert running is not None
            goes_on = threading.Event()
            running.hub_handle.call(goes_on.wait)  # the Reader's thread has not begun to look for a message
            with pytest.raises(gevent.Timeout), gevent.Timeout(0.05):
                reader.get(timeout)
            goes_on.set()
            producer.publish("t", b"first")
            message = reader.get(30)
            assert message is not None
            assert message.attempts == 1
            message.finish()
            producer.publish("t", b"x")
            interrupted = gevent.spawn(reader.get, timeout)
            gevent.sleep(0)
            while reader.stats()["in_flight"] == 0 or reader.stats()["waiting"]:
                time.sleep(0.001)  # this thread's hub does not run, and does not get the message
            interrupted.kill()
            message = reader.get(30)
            assert message is not None
            assert message.body == b"x"
            message.finish()
            wait_for(lambda: finished(nsqd))
