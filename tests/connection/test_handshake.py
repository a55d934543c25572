"""IDENTIFY against a scripted nsqd: what is asked for, refused, late or no nsqd at all."""

from __future__ import annotations

import logging
import time

import gevent
import pytest
from gevent import socket

from gnsq_like.connection.connection import Connection
from gnsq_like.errors import (
    ConnectionFailed,
    ConnectionLost,
    NotSent,
    NsqdError,
    ProtocolError,
    PublishError,
    PublishRefused,
)
from gnsq_like.options import ConnectionOptions
from gnsq_like.wire import commands
from gnsq_like.wire.frames import ERROR, RESPONSE, encode_frame
from tests.support.connected import Watcher
from tests.support.peer import HEARTBEAT, OK, PATIENCE, Peer, ScriptedNsqd


def test_a_peer_that_never_answers_identify(nsqd: ScriptedNsqd) -> None:
    connection = Connection(nsqd.address, ConnectionOptions(connect_timeout=0.2))
    with pytest.raises(ConnectionFailed, match="IDENTIFY in time"):
        connection.connect()
    assert nsqd.accept().ended()


def test_a_peer_that_drips_its_answer_does_not_stretch_the_deadline(nsqd: ScriptedNsqd) -> None:
    def drip() -> bool:
        peer = nsqd.accept()
        for byte in encode_frame(RESPONSE, b" " * 1000):
            try:
                peer.send(bytes([byte]))
            except OSError:
                return True
            gevent.sleep(0.02)  # slow is what this peer is: its answer would take 20 s
        return False

    script = gevent.spawn(drip)
    with pytest.raises(ConnectionFailed, match="IDENTIFY in time"):
        Connection(nsqd.address, ConnectionOptions(connect_timeout=0.2)).connect()
    assert script.get(timeout=PATIENCE)


def test_a_peer_that_closes_at_identify(nsqd: ScriptedNsqd) -> None:
    gevent.spawn(lambda: nsqd.accept().sock.shutdown(socket.SHUT_RDWR))
    with pytest.raises(ConnectionFailed):
        Connection(nsqd.address).connect()


def test_a_refused_identify_carries_nsqds_words(nsqd: ScriptedNsqd) -> None:
    gevent.spawn(lambda: nsqd.accept().error("E_BAD_BODY IDENTIFY msg timeout (1) is invalid"))
    with pytest.raises(ConnectionFailed, match="msg timeout") as caught:
        Connection(nsqd.address).connect()
    assert isinstance(caught.value.__cause__, NsqdError)
    assert caught.value.__cause__.code == "E_BAD_BODY"


def test_something_that_is_no_nsqd(nsqd: ScriptedNsqd) -> None:
    gevent.spawn(lambda: nsqd.accept().send(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    with pytest.raises(ConnectionFailed) as caught:
        Connection(nsqd.address).connect()
    assert isinstance(caught.value.__cause__, ProtocolError)


def test_a_caller_that_gives_up_leaves_no_socket(nsqd: ScriptedNsqd) -> None:
    connection = Connection(nsqd.address)
    with gevent.Timeout(0.05, False):
        connection.connect()
    assert nsqd.accept().ended()


def identify_and(nsqd: ScriptedNsqd, *frames: bytes) -> Peer:
    """Answer to IDENTIFY and what follows in one write."""
    peer = nsqd.accept()
    assert peer.take(4) == b"  V2"
    assert peer.line() == b"IDENTIFY"
    peer.body()
    peer.send(b"".join(frames))
    return peer


@pytest.mark.parametrize("frames", [(OK, HEARTBEAT), (HEARTBEAT, OK)])
def test_a_heartbeat_beside_the_answer_to_identify_is_answered(nsqd: ScriptedNsqd, frames: tuple[bytes, ...]) -> None:
    script = gevent.spawn(identify_and, nsqd, *frames)
    connection = Connection(nsqd.address)
    connection.connect()
    assert script.get(timeout=PATIENCE).line() == b"NOP"
    connection.close()


def test_an_error_behind_the_answer_to_identify_ends_it_with_nsqds_words(
    nsqd: ScriptedNsqd, watcher: Watcher, caplog: pytest.LogCaptureFixture
) -> None:
    gevent.spawn(identify_and, nsqd, OK, encode_frame(ERROR, b"E_INVALID go away"))
    connection = Connection(nsqd.address, **watcher.callbacks())
    connection.connect()
    assert not connection.alive
    with pytest.raises(ConnectionLost, match="go away"):
        connection.subscribe("t", "c")
    assert watcher.ended.wait(PATIENCE)
    [error] = watcher.ends
    assert error is not None
    assert "go away" in str(error)
    assert isinstance(error.__cause__, NsqdError)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(("takes", "error"), [(1.0, NotSent), (0.0, PublishRefused)])
def test_permissions_may_have_expired_a_second_after_auth_was_sent(
    nsqd: ScriptedNsqd, takes: float, error: type[PublishError]
) -> None:
    """nsqd counts from its auth server's answer, which may be long before it answers AUTH itself."""

    def script() -> None:
        peer = nsqd.accept()
        peer.identify(version="1.3.0", auth_required=True)
        assert (peer.line(), peer.body()) == (b"AUTH", b"secret")
        gevent.sleep(takes)
        peer.send(encode_frame(RESPONSE, b'{"identity": "bob", "identity_url": "", "permission_count": 1}'))
        assert (peer.line(), peer.body()) == (b"PUB t", b"x")
        peer.error('E_UNAUTHORIZED AUTH failed for PUB on "t" ""')

    running = gevent.spawn(script)
    connection = Connection(nsqd.address, ConnectionOptions(auth_secret=lambda: "secret"))
    connection.connect()
    reply = connection.publish(commands.pub("t", b"x"))
    assert reply.wait(PATIENCE)
    if takes or time.monotonic() - connection._asked_auth_at < 1.0:  # otherwise this machine took the second
        assert isinstance(reply.error, error)
    running.get(timeout=PATIENCE)
    connection.close()


def test_what_comes_behind_the_demand_for_a_secret_is_nsqds_fault(nsqd: ScriptedNsqd) -> None:
    answer = encode_frame(RESPONSE, b'{"version":"1.3.0","auth_required":true}')
    gevent.spawn(lambda: nsqd.accept().send(answer + b"\xff" * 8))
    with pytest.raises(ConnectionFailed, match="invalid frame size") as caught:
        Connection(nsqd.address, ConnectionOptions(auth_secret="secret")).connect()
    assert isinstance(caught.value.__cause__, ProtocolError)
