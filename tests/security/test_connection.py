"""Upgraded connections against a scripted nsqd: what comes in one piece, what is broken, what is too much."""

from __future__ import annotations

import json
import random
import ssl
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import gevent
import pytest
from gevent.event import Event

from gnsq_like.connection.connection import Connection
from gnsq_like.errors import (
    ConnectionFailed,
    ConnectionLost,
    NSQError,
    OutcomeUnknown,
    ProtocolError,
    TLSError,
    is_incurable,
)
from gnsq_like.options import ConnectionOptions
from gnsq_like.transport.compression import Deflate, Snappy
from gnsq_like.transport.layered import CodecStack
from gnsq_like.transport.tls import Tls
from gnsq_like.wire import commands
from gnsq_like.wire.frames import RESPONSE, RawMessage, encode_frame, encode_message
from tests.support.certificates import client_context, server_context, stranger
from tests.support.daemons import wait_for
from tests.support.peer import HEARTBEAT, OK, PATIENCE, Peer, ScriptedNsqd, scripted_nsqd

MESSAGE: RawMessage = (1_000_000_000, 1, b"0123456789abcdef", b"body")
CODECS = {"snappy": Snappy, "deflate": Deflate}


@pytest.fixture
def nsqd() -> Iterator[ScriptedNsqd]:
    with scripted_nsqd() as server:
        yield server


class Client:
    """A connection that is being made in a greenlet, and what it says."""

    def __init__(self, nsqd: ScriptedNsqd, zone: str = "", **options: Any) -> None:
        self.messages: list[RawMessage] = []
        self.ended = Event()
        self.error: NSQError | None = None
        self.connection = Connection(
            nsqd.address.replace("]", f"%{zone}]") if zone else nsqd.address,
            ConnectionOptions(**options),
            on_messages=lambda _, messages: self.messages.extend(messages),
            on_close=self._on_close,
        )
        self.connecting = gevent.spawn(self.connection.connect)

    def _on_close(self, _: Connection, error: NSQError | None) -> None:
        self.error = error
        self.ended.set()

    def connected(self) -> Connection:
        self.connecting.get(timeout=PATIENCE)
        return self.connection

    def lost(self) -> NSQError:
        assert self.ended.wait(PATIENCE)
        assert self.error is not None
        return self.error


def answer(**fields: Any) -> bytes:
    return encode_frame(RESPONSE, json.dumps({"version": "1.3.0", "max_rdy_count": 2500, **fields}).encode())


def take_identify(peer: Peer) -> dict[str, Any]:
    assert peer.take(4) == b"  V2"
    assert peer.line() == b"IDENTIFY"
    fields: dict[str, Any] = json.loads(peer.body())
    return fields


def receive(peer: Peer, layers: CodecStack, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += layers.decode(b"" if layers.pending else peer.sock.recv(65536))
    return data


def start_tls(peer: Peer, context: ssl.SSLContext | None = None) -> CodecStack:
    tls = Tls(context or server_context(), server_side=True)
    while not tls.handshake(peer.sock.recv(65536)):
        peer.send(tls.take_output())
    layers = CodecStack()
    layers.tls = tls
    return layers


def asked(codec: str | None) -> dict[str, Any]:
    """The option that asks for this codec."""
    return {codec: True} if codec else {}


def upgraded(nsqd: ScriptedNsqd, codec: str, **options: Any) -> tuple[Client, Peer, CodecStack]:
    """A connection with a codec, and nsqd's side of it."""
    client = Client(nsqd, **asked(codec), **options)
    peer = nsqd.accept()
    assert take_identify(peer)[codec] is True
    layers = CodecStack()
    layers.codec = CODECS[codec]()
    peer.send(answer(**{codec: True}) + layers.encode(OK))
    client.connected()
    return client, peer, layers


@pytest.mark.parametrize("codec", CODECS)
def test_answer_ok_and_more_in_one_piece(nsqd: ScriptedNsqd, codec: str) -> None:
    client = Client(nsqd, **asked(codec))
    peer = nsqd.accept()
    take_identify(peer)
    layers = CodecStack()
    layers.codec = CODECS[codec]()
    peer.send(answer(**{codec: True}) + layers.encode(OK + HEARTBEAT))
    connection = client.connected()
    assert receive(peer, layers, 4) == commands.NOP
    reply = connection.publish(commands.pub("t", b"x"))
    receive(peer, layers, 6)
    peer.send(layers.encode(OK))
    assert reply.wait(PATIENCE)
    connection.close()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_two_oks_cut_anywhere(nsqd: ScriptedNsqd, codec: str, cut: int) -> None:
    client = Client(nsqd, tls_v1=True, ssl_context=client_context(), **asked(codec))
    peer = nsqd.accept()
    take_identify(peer)
    peer.send(answer(tls_v1=True, **{codec: True}))
    layers = start_tls(peer)
    assert layers.tls is not None
    inner = CODECS[codec]()
    # The OK in TLS and the one in the codec, and a heartbeat, in one TLS record or two, cut by nothing in mind.
    data = OK + inner.compress(OK + HEARTBEAT)
    peer.send(layers.tls.encrypt(data[:cut]) + layers.tls.encrypt(data[cut:]))
    layers.codec = inner
    client.connected()
    assert receive(peer, layers, 4) == commands.NOP
    client.connection.close()


def test_auth_after_the_upgrades_and_messages_behind_its_answer(nsqd: ScriptedNsqd) -> None:
    client = Client(nsqd, snappy=True, auth_secret="secret")
    peer = nsqd.accept()
    take_identify(peer)
    layers = CodecStack()
    layers.codec = Snappy()
    peer.send(answer(snappy=True, auth_required=True) + layers.encode(OK))
    command = commands.auth("secret")
    assert receive(peer, layers, len(command)) == command
    granted = encode_frame(RESPONSE, b'{"identity":"bob","identity_url":"","permission_count":1}')
    peer.send(layers.encode(granted + HEARTBEAT))
    connection = client.connected()
    assert connection.authorized is not None
    assert connection.authorized.identity == "bob"
    assert receive(peer, layers, 4) == commands.NOP
    assert "secret" not in repr(connection) + repr(connection.options)
    connection.close()


@pytest.mark.parametrize("codec", CODECS)
def test_input_that_the_codec_cannot_read_ends_the_connection(nsqd: ScriptedNsqd, codec: str) -> None:
    client, peer, layers = upgraded(nsqd, codec)
    command = commands.pub("t", b"x")
    reply = client.connection.publish(command)
    receive(peer, layers, len(command))
    peer.send(layers.encode(encode_message(*MESSAGE)))
    wait_for(lambda: client.messages == [MESSAGE])
    peer.send(b"\xfe\xff" * 50 if codec == "deflate" else b"\x02\x00\x00\x00")
    error = client.lost()
    assert isinstance(error, ConnectionLost)
    assert isinstance(error.__cause__, ProtocolError)
    assert codec in str(error)
    assert isinstance(reply.error, OutcomeUnknown)
    assert peer.ended()


def test_nsqd_hears_why_its_certificate_is_refused(nsqd: ScriptedNsqd) -> None:
    client = Client(nsqd, tls_v1=True, ssl_context=client_context(stranger()))
    peer = nsqd.accept()
    take_identify(peer)
    peer.send(answer(tls_v1=True))
    with pytest.raises(TLSError, match="unknown ca"):
        start_tls(peer)
    with pytest.raises(ConnectionFailed) as caught:
        client.connected()
    assert isinstance(caught.value.__cause__, TLSError)
    assert caught.value.__cause__.kind == "unknown_ca"
    assert peer.ended()


def test_a_certificate_names_an_ipv6_address_without_its_zone() -> None:
    with scripted_nsqd("::1") as nsqd:
        client = Client(nsqd, zone="1", tls_v1=True, ssl_context=client_context())
        peer = nsqd.accept()
        take_identify(peer)
        peer.send(answer(tls_v1=True))
        layers = start_tls(peer, server_context("::1"))
        peer.send(layers.encode(OK))
        assert "%1" in client.connected().address
        client.connection.close()


def test_tls_that_breaks_ends_the_connection(nsqd: ScriptedNsqd) -> None:
    client = Client(nsqd, tls_v1=True, ssl_context=client_context())
    peer = nsqd.accept()
    take_identify(peer)
    peer.send(answer(tls_v1=True))
    layers = start_tls(peer)
    peer.send(layers.take_output() + layers.encode(OK))
    client.connected()
    peer.send(OK)
    error = client.lost()
    assert isinstance(error.__cause__, TLSError)
    assert "TLS" in str(error)


@pytest.mark.parametrize("codec", CODECS)
def test_a_frame_that_unpacks_to_too_much_ends_the_connection(nsqd: ScriptedNsqd, codec: str) -> None:
    client, peer, layers = upgraded(nsqd, codec, max_frame_bytes=100_000)
    peer.send(layers.encode(encode_frame(RESPONSE, bytes(200_000))))
    error = client.lost()
    assert isinstance(error.__cause__, ProtocolError)
    assert "max_frame_bytes=100000" in str(error)


@pytest.mark.parametrize("codec", CODECS)
def test_much_through_a_codec_takes_little_memory(nsqd: ScriptedNsqd, codec: str) -> None:
    """A small version of benchmarks/upgrades.py, which takes 100 MB through a real nsqd."""
    client, peer, layers = upgraded(nsqd, codec)
    body = random.Random(6).randbytes(5_000) * 4
    count = received = 0

    def count_them(_: Connection, messages: list[RawMessage]) -> None:
        nonlocal count, received
        count += len(messages)
        received += sum(len(body) for *_, body in messages)

    def has_come(expected: int) -> bool:
        return count == expected

    client.connection._on_messages = count_them
    tracemalloc.start()
    try:
        for round_number in range(1, 21):
            peer.send(layers.encode(encode_message(*MESSAGE[:3], body) * 50))
            wait_for(partial(has_come, 50 * round_number))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert received == 20_000_000
    assert peak < 6_000_000
    client.connection.close()


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (b"\x00\x00\x00\x06\x00\x00\x00\x00OK", "not TLS"),
        (encode_frame(1, b"E_IDENTIFY_FAILED IDENTIFY failed"), "not TLS"),
        (b"", "closed the connection at TLS"),
    ],
)
def test_an_nsqd_that_promises_tls_and_does_not_do_it(nsqd: ScriptedNsqd, reply: bytes, says: str) -> None:
    client = Client(nsqd, tls_v1=True, verify=False)
    peer = nsqd.accept()
    take_identify(peer)
    peer.send(answer(tls_v1=True))
    peer.sock.recv(65536)
    peer.send(reply)
    if not reply:
        peer.close()
    with pytest.raises(ConnectionFailed, match=says):
        client.connected()


@pytest.mark.parametrize("codec", [None, "snappy"])
def test_a_peer_that_says_much_and_nothing_meets_the_deadline(nsqd: ScriptedNsqd, codec: str | None) -> None:
    client = Client(nsqd, connect_timeout=2.0, **asked(codec))  # enough to get as far as the codec
    peer = nsqd.accept()
    take_identify(peer)
    babble = HEARTBEAT
    if codec:
        peer.send(answer(snappy=True) + b"\xff\x06\x00\x00sNaPpY")
        babble = b"\xfe\x04\x00\x00\0\0\0\0"  # padding

    def talk() -> None:
        with suppress(OSError):
            while True:
                peer.send(babble)
                gevent.sleep(0)

    talking = gevent.spawn(talk)
    with pytest.raises(ConnectionFailed, match=f"no answer to {codec or 'IDENTIFY'} in time"):
        client.connected()
    talking.get(timeout=PATIENCE)


def test_a_handshake_that_never_ends_meets_the_deadline(nsqd: ScriptedNsqd) -> None:
    client = Client(nsqd, tls_v1=True, verify=False, connect_timeout=2.0)  # enough to get as far as TLS
    peer = nsqd.accept()
    take_identify(peer)
    peer.send(answer(tls_v1=True))
    with pytest.raises(ConnectionFailed, match="no answer to TLS in time"):
        client.connected()
    assert peer.ended()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tls_root_ca_file": "/nowhere/ca.pem"}, "cannot use tls_root_ca_file='/nowhere/ca.pem': No such file"),
        ({"tls_root_ca_file": __file__}, "cannot use tls_root_ca_file=.*no certificate or crl found"),
        ({"tls_cert": __file__}, "cannot use tls_cert=.*no certificate, or not its key"),
        ({"server_hostname": lambda _: 1 / 0}, "server_hostname.*raised ZeroDivisionError"),
        ({"server_hostname": lambda _: 5}, "returned 5, not a name"),
        ({"server_hostname": lambda _: "a..b"}, "server_hostname='a..b': .*label"),
        ({"server_hostname": lambda _: ""}, "returned '', not a name"),
        ({"ssl_context": ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)}, "client socket with a PROTOCOL_TLS_SERVER context"),
    ],
)
def test_tls_options_that_cannot_be_used(nsqd: ScriptedNsqd, options: dict[str, Any], says: str) -> None:
    client = Client(nsqd, tls_v1=True, **options)
    peer = nsqd.accept()
    take_identify(peer)
    peer.send(answer(tls_v1=True))
    with pytest.raises(ConnectionFailed, match=says) as caught:
        client.connected()
    assert is_incurable(caught.value)


def test_a_unix_socket_has_no_name_to_check(tmp_path: Any) -> None:
    for options, fine in (({}, False), ({"server_hostname": "127.0.0.1"}, True)):
        with scripted_nsqd(path=str(tmp_path / f"nsqd-{fine}")) as nsqd:
            client = Client(nsqd, tls_v1=True, ssl_context=client_context(), **options)
            peer = nsqd.accept()
            take_identify(peer)
            peer.send(answer(tls_v1=True))
            if not fine:
                with pytest.raises(ConnectionFailed, match="server_hostname="):
                    client.connected()
                continue
            layers = start_tls(peer)
            peer.send(layers.take_output() + layers.encode(OK))
            client.connected().close()
