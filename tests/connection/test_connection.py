"""One connection against a scripted nsqd, byte by byte."""

from __future__ import annotations

import gc
import socket as plain
import struct
import time
import weakref
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent import socket
from gevent.event import Event
from gevent.queue import Empty

from gnsq_like.connection.connection import Connection
from gnsq_like.errors import (
    ConnectionFailed,
    ConnectionLost,
    InvalidName,
    InvalidOption,
    NotRunning,
    NsqdError,
    OutcomeUnknown,
    ProtocolError,
    UsageError,
)
from gnsq_like.options import ConnectionOptions
from gnsq_like.transport.tcp import TcpTransport
from gnsq_like.wire import commands
from gnsq_like.wire.frames import MESSAGE, RawMessage, encode_frame, encode_message
from tests.support.connected import PeerInAThread, Sink, Watcher, confirmed, connect
from tests.support.daemons import wait_for
from tests.support.nsqds import identified
from tests.support.peer import CLOSE_WAIT, OK, PATIENCE, ScriptedNsqd, scripted_nsqd

ID = b"0123456789abcdef"
OTHER_ID = b"fedcba9876543210"


# -- coming about -------------------------------------------------------------------------------------


def test_a_constructor_does_nothing() -> None:
    greenlets = gevent.get_hub()
    connection = Connection("127.0.0.1:1")
    assert not connection.alive
    assert "not connected" in repr(connection)
    assert gevent.get_hub() is greenlets


@pytest.mark.parametrize("name", ["on_messages", "on_answers", "on_error", "on_close"])
def test_callbacks_that_cannot_be_called_are_refused(name: str) -> None:
    async def asynchronous(*_: object) -> None: ...

    for wrong in (3, lambda: None, asynchronous):
        arguments: dict[str, Any] = {name: wrong}
        with pytest.raises(InvalidOption, match=f"invalid option {name}="):
            Connection("127.0.0.1:1", **arguments)


def test_connect_sends_the_options_and_keeps_the_answer(nsqd: ScriptedNsqd) -> None:
    connection = Connection(nsqd.address, ConnectionOptions(client_id="me", msg_timeout=2.5, heartbeat_interval=10))
    script = gevent.spawn(lambda: nsqd.accept().identify(version="1.3.0", max_rdy_count=7, msg_timeout=2500))
    negotiated = connection.connect()
    fields = script.get(timeout=PATIENCE)
    assert fields["client_id"] == "me"
    assert fields["msg_timeout"] == 2500
    assert fields["heartbeat_interval"] == 10_000
    assert fields["feature_negotiation"] is True
    assert (negotiated.max_rdy_count, negotiated.msg_timeout) == (7, 2.5)
    assert connection.alive
    connection.close()


def test_a_close_while_it_connects_is_not_forgotten(nsqd: ScriptedNsqd, watcher: Watcher) -> None:
    connection = Connection(nsqd.address, **watcher.callbacks())
    connecting = gevent.spawn(connection.connect)
    peer = nsqd.accept()
    connection.close()
    peer.identify()
    with pytest.raises(ConnectionFailed, match="closed while it was connecting"):
        connecting.get(timeout=PATIENCE)
    assert peer.ended()
    assert not connection.alive
    assert watcher.ends == []


def test_what_was_closed_before_does_not_connect(nsqd: ScriptedNsqd) -> None:
    connection = Connection(nsqd.address)
    connection.close()
    with pytest.raises(NotRunning, match="make a new one"):
        connection.connect()
    assert "closed" in repr(connection)


@pytest.mark.parametrize("kind", ["ipv6", "unix"])
def test_other_kinds_of_addresses(kind: str, tmp_path: Path) -> None:
    where = {"address": "::1"} if kind == "ipv6" else {"path": str(tmp_path / "nsqd.sock")}
    with scripted_nsqd(**where) as server:
        connection, peer = connect(server)
        reply = connection.publish(commands.pub("t", b"x"))
        assert peer.line() == b"PUB t"
        peer.send(OK)
        confirmed(reply)
        connection.close()
        assert peer.ended()


def test_a_connection_connects_once(nsqd: ScriptedNsqd) -> None:
    connection, _ = connect(nsqd)
    with pytest.raises(NotRunning):
        connection.connect()
    connection.close()
    with pytest.raises(NotRunning):
        connection.connect()


def test_a_connection_whose_identify_failed_does_not_dial_again(nsqd: ScriptedNsqd) -> None:
    connection = Connection(nsqd.address)
    gevent.spawn(lambda: nsqd.accept().error("E_BAD_BODY IDENTIFY msg timeout (1) is invalid"))
    with pytest.raises(ConnectionFailed):
        connection.connect()
    with pytest.raises(NotRunning, match="can connect only once"):
        connection.connect()
    with pytest.raises(Empty):
        nsqd.accept(timeout=0)


def test_a_refused_sub_is_an_error(nsqd: ScriptedNsqd, watcher: Watcher) -> None:
    connection, peer = connect(nsqd, watcher)
    asked = gevent.spawn(connection.subscribe, "t", "c")
    peer.line()
    peer.error("E_SUB_FAILED SUB failed exiting")
    with pytest.raises(ConnectionFailed, match="E_SUB_FAILED") as caught:
        asked.get(timeout=PATIENCE)
    assert isinstance(caught.value.__cause__, NsqdError)
    assert watcher.ended.wait(PATIENCE)
    assert not connection.alive


def test_a_sub_that_is_never_answered(nsqd: ScriptedNsqd) -> None:
    connection, _ = connect(nsqd)
    with pytest.raises(ConnectionFailed, match="no answer to SUB"):
        connection.subscribe("t", "c", timeout=0.05)
    connection.close()


def test_a_bad_name_sends_nothing(nsqd: ScriptedNsqd) -> None:
    connection, peer = connect(nsqd)
    with pytest.raises(InvalidName):
        connection.subscribe("bad name", "c")
    connection.set_rdy(1)
    assert peer.line() == b"RDY 1"
    connection.close()


def test_a_second_sub_at_once_is_refused_and_the_first_is_answered(nsqd: ScriptedNsqd) -> None:
    connection, peer = connect(nsqd)
    first = gevent.spawn(connection.subscribe, "t", "c")
    assert peer.line() == b"SUB t c"
    with pytest.raises(NotRunning):
        connection.subscribe("t", "c")
    peer.send(OK)
    first.get(timeout=PATIENCE)
    connection.close()


# -- receiving ----------------------------------------------------------------------------------------


def test_answers_are_commands_in_their_order(nsqd: ScriptedNsqd) -> None:
    connection, peer = connect(nsqd, subscribe=True)
    connection.set_rdy(5)
    connection.touch(ID)
    connection.requeue(ID, 1.5)
    connection.finish(OTHER_ID)
    connection.finish_many([])
    assert [peer.line() for _ in range(4)] == [
        b"RDY 5",
        b"TOUCH " + ID,
        b"REQ " + ID + b" 1500",
        b"FIN " + OTHER_ID,
    ]
    connection.close()


@pytest.mark.parametrize("count", [-1, 2501])
def test_an_rdy_that_nsqd_would_not_take_is_refused_here(nsqd: ScriptedNsqd, count: int) -> None:
    connection, _ = connect(nsqd, subscribe=True)
    with pytest.raises(UsageError):
        connection.set_rdy(count)
    assert connection.alive
    connection.close()


def test_cls_is_answered_and_messages_can_still_be_finished(nsqd: ScriptedNsqd) -> None:
    connection, peer = connect(nsqd, subscribe=True)
    asked = gevent.spawn(connection.close_subscription)
    assert peer.line() == b"CLS"
    peer.send(CLOSE_WAIT)
    asked.get(timeout=PATIENCE)
    connection.finish(ID)
    assert peer.line() == b"FIN " + ID
    connection.close()


def test_a_second_cls_at_once_is_refused_and_the_first_is_answered(nsqd: ScriptedNsqd) -> None:
    connection, peer = connect(nsqd, subscribe=True)
    first = gevent.spawn(connection.close_subscription)
    assert peer.line() == b"CLS"
    with pytest.raises(NotRunning):
        connection.close_subscription()
    peer.send(CLOSE_WAIT)
    first.get(timeout=PATIENCE)
    connection.close()


def test_input_that_never_ends_lets_the_hub_have_its_turn() -> None:
    """Reads come full all the time, and each pass takes 1 ms; another socket must not wait for the end of it."""
    far, near = plain.socketpair()
    passes: list[int] = []
    served_at: list[int] = []

    def on_messages(_: Connection, messages: list[RawMessage]) -> None:
        passes.append(len(messages))
        if len(passes) == 50:
            far.send(b"x")
        until = time.monotonic() + 0.001
        while time.monotonic() < until:
            pass

    def other() -> None:
        other_socket.recv(1)
        served_at.append(len(passes))

    frames = encode_message(1, 1, ID, bytes(1000)) * 20_000
    with far, PeerInAThread(lambda peer: peer.sendall(frames)) as nsqd:
        other_socket = socket.socket(fileno=near.detach())
        gevent.spawn(other)
        connection = Connection(nsqd.address, on_messages=on_messages)
        connection.connect()
        assert isinstance(connection._transport, TcpTransport)
        connection._transport._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        nsqd.go.set()
        wait_for(lambda: sum(passes) == 20_000, timeout=60)
        connection.close()
        other_socket.close()
    assert len(passes) > 200
    assert served_at[0] < 100, served_at


# -- the end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset", "shutdown"])
def test_a_peer_that_goes_away(nsqd: ScriptedNsqd, watcher: Watcher, how: str) -> None:
    connection, peer = connect(nsqd, watcher, subscribe=True)
    peer.sock.shutdown(socket.SHUT_WR) if how == "shutdown" else getattr(peer, how)()
    assert watcher.ended.wait(PATIENCE)
    [error] = watcher.ends
    assert isinstance(error, ConnectionLost)
    assert connection.error is error
    assert nsqd.address in str(error)
    assert not connection.alive
    # Late answers change nothing and raise nothing.
    assert connection.finish(ID) is False
    assert connection.set_rdy(1) is False
    with pytest.raises(ConnectionLost):
        connection.publish(commands.pub("t", b"x"))


@pytest.mark.parametrize("how", ["close", "reset"])
def test_an_error_that_is_kept_does_not_keep_the_connection(nsqd: ScriptedNsqd, watcher: Watcher, how: str) -> None:
    connection, peer = connect(nsqd, watcher, subscribe=True)
    getattr(peer, how)()
    assert watcher.ended.wait(PATIENCE)
    kept = watcher.ends
    gone = weakref.ref(connection)
    del connection
    wait_for(lambda: gc.collect() >= 0 and gone() is None)
    assert isinstance(kept[0], ConnectionLost)


def test_closing_writes_what_is_queued_and_tells_once(nsqd: ScriptedNsqd, watcher: Watcher) -> None:
    connection, peer = connect(nsqd, watcher, subscribe=True)
    connection.finish(ID)
    connection.close()
    connection.close()
    assert watcher.ends == [None]
    assert peer.line() == b"FIN " + ID
    assert peer.ended()


@pytest.mark.parametrize(
    "data",
    [struct.pack(">ii", 3, 0), struct.pack(">ii", 2**31 - 1, MESSAGE), encode_frame(9, b""), OK],
    ids=["too short", "too long", "unknown type", "an answer to nothing"],
)
def test_bytes_that_cannot_be_end_the_connection_with_a_clear_error(
    nsqd: ScriptedNsqd, watcher: Watcher, data: bytes
) -> None:
    _, peer = connect(nsqd, watcher)
    peer.send(data)
    assert watcher.ended.wait(PATIENCE)
    [error] = watcher.ends
    assert error is not None
    assert isinstance(error.__cause__, ProtocolError)
    assert peer.ended()


def test_a_fatal_error_ends_the_connection_with_nsqds_words(nsqd: ScriptedNsqd, watcher: Watcher) -> None:
    _, peer = connect(nsqd, watcher)
    peer.error("E_INVALID something new")
    assert watcher.ended.wait(PATIENCE)
    assert "something new" in str(watcher.ends[0])


def test_a_callback_that_raises_ends_the_connection_and_is_logged(
    nsqd: ScriptedNsqd, caplog: pytest.LogCaptureFixture
) -> None:
    ended = Event()

    def on_messages(*_: object) -> None:
        raise RuntimeError("a fault of the owner")

    connection = Connection(nsqd.address, on_messages=on_messages, on_close=lambda *_: ended.set())

    def script() -> None:
        peer = nsqd.accept()
        peer.subscribe()
        peer.messages(ID)

    gevent.spawn(script)
    connection.connect()
    connection.subscribe("t", "c")
    assert ended.wait(PATIENCE)
    assert "a fault of the owner" in caplog.text


def test_an_on_close_that_raises_is_logged_and_the_connection_is_over(
    nsqd: ScriptedNsqd, caplog: pytest.LogCaptureFixture
) -> None:
    def on_close(*_: object) -> None:
        raise RuntimeError("a fault of the owner")

    connection = Connection(nsqd.address, on_close=on_close)
    script = gevent.spawn(identified, nsqd)
    connection.connect()
    publish = connection.publish(commands.pub("t", b"x"))
    script.get(timeout=PATIENCE).close()
    assert publish.wait(PATIENCE)
    wait_for(lambda: "a fault of the owner" in caplog.text)
    assert "on_close raised" in caplog.text
    assert not connection.alive
    assert isinstance(connection.error, ConnectionLost)


def test_close_writes_what_waited_for_the_socket_if_it_takes_it_by_now() -> None:
    sink = Sink()
    with PeerInAThread(sink) as nsqd:
        connection = Connection(nsqd.address)
        connection.connect()
        write_buffer = connection._write_buffer
        assert write_buffer is not None
        while write_buffer.stalled_since is None:
            connection.publish(commands.pub("t", bytes(100_000)))
            gevent.sleep(0)
        connection.finish(ID)
        nsqd.go.set()
        sink.block_until(write_buffer.sent_count)
        connection.close()
    assert sink.received.endswith(b"FIN " + ID + b"\n")


# -- publishing ---------------------------------------------------------------------------------------


def test_publish_never_switches(nsqd: ScriptedNsqd) -> None:
    connection, _ = connect(nsqd)
    ran: list[bool] = []
    greenlet = gevent.spawn(ran.append, True)
    for _ in range(100):
        connection.publish(commands.pub("t", bytes(100_000)))
    assert not ran
    greenlet.join()
    connection.close()


def test_closed_before_its_reader_ran(nsqd: ScriptedNsqd, watcher: Watcher) -> None:
    connection = Connection(nsqd.address, **watcher.callbacks())
    script = gevent.spawn(identified, nsqd)
    connection.connect()
    connection.close()
    peer = script.get(timeout=PATIENCE)
    assert watcher.ends == [None]
    assert peer.ended()


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_killed_reader_ends_its_connection(nsqd: ScriptedNsqd, watcher: Watcher, has_begun: bool) -> None:
    connection, peer = connect(nsqd, watcher)
    reply = connection.publish(commands.pub("t", b"x"))
    if has_begun:
        gevent.sleep(0)
    gevent.kill(connection._reader)
    assert watcher.ended.wait(PATIENCE)
    assert "its greenlet was killed" in str(watcher.ends[0])
    assert isinstance(reply.error, OutcomeUnknown)
    assert peer.ended()
