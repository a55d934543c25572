"""A socket under layers, with the same layers of the other end at the other end of a socket pair."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise

import gevent
import pytest
from gevent import socket

from gnsq_like.connection.write_buffer import WriteBuffer
from gnsq_like.errors import ProtocolError
from gnsq_like.transport.compression import Codec, Deflate, Snappy
from gnsq_like.transport.layered import CodecStack, LayeredTransport
from gnsq_like.transport.tcp import TcpTransport
from gnsq_like.transport.tls import Tls
from tests.support.certificates import client_context, server_context
from tests.support.daemons import wait_for
from tests.support.peer import PATIENCE


class End:
    """The other end: what it sends and gets, decoded."""

    def __init__(self, sock: socket.socket, layers: CodecStack) -> None:
        self.sock = sock
        self.sock.settimeout(PATIENCE)
        self.layers = layers

    def send(self, data: bytes) -> None:
        self.sock.sendall(self.layers.encode(data))

    def take(self, count: int, at_once: int = 65536) -> bytes:
        """All that comes until ``count`` bytes are there."""
        data = b""
        while len(data) < count:
            data += self.layers.decode(b"" if self.layers.pending else self.sock.recv(at_once))
        return data


def tls_pair() -> tuple[Tls, Tls]:
    client, server = Tls(client_context(), server_hostname="127.0.0.1"), Tls(server_context(), server_side=True)
    client.handshake()
    server.handshake(client.take_output())
    assert client.handshake(server.take_output())
    assert server.handshake(client.take_output())
    return client, server


def layers_of(tls: bool, codec: Callable[[], Codec] | None) -> tuple[CodecStack, CodecStack]:
    ours, theirs = CodecStack(), CodecStack()
    if tls:
        client, server = tls_pair()
        ours.tls = client
        theirs.tls = server
    if codec is not None:
        ours.codec = codec()
        theirs.codec = codec()
    return ours, theirs


Pair = tuple[LayeredTransport, End]
KINDS = {
    "tls": (True, None),
    "snappy": (False, Snappy),
    "deflate": (False, Deflate),
    "tls-snappy": (True, Snappy),
    "tls-deflate": (True, Deflate),
}


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    mine, other = socket.socketpair()
    ours, theirs = layers_of(*request.param)
    transport = LayeredTransport(TcpTransport(mine), ours)
    yield transport, End(other, theirs)
    transport.close()
    other.close()


def receive(transport: LayeredTransport) -> bytes:
    with gevent.Timeout(PATIENCE):
        while (data := transport.receive_now()) is None:
            transport.wait()
    return data


def test_both_ways(pair: Pair) -> None:
    transport, end = pair
    for data in (b"FIN 0123456789abcdef\n", b"x" * 30_000, random.Random(1).randbytes(30_000)):
        assert transport.send_now(data) == len(data)
        assert transport.unsent == 0
        assert end.take(len(data)) == data
        end.send(data)
        received = b""
        while len(received) < len(data):
            received += receive(transport)
        assert received == data
    assert transport.receive_now() is None


def test_what_comes_a_byte_at_a_time(pair: Pair) -> None:
    transport, end = pair
    wire = end.layers.encode(b"a heartbeat")
    reader = gevent.spawn(receive, transport)
    for at in range(len(wire)):
        end.sock.sendall(wire[at : at + 1])
        gevent.sleep(0)
    assert reader.get(timeout=PATIENCE) == b"a heartbeat"


def test_the_end_of_the_stream(pair: Pair) -> None:
    transport, end = pair
    end.send(b"last words")
    end.sock.sendall(end.layers.close())
    end.sock.shutdown(socket.SHUT_WR)
    assert receive(transport) == b"last words"
    assert receive(transport) == b""
    assert transport.receive_now() == b""
    assert transport.has_input()


def test_a_deflate_stream_that_ends_is_the_end_though_the_socket_stays_open() -> None:
    mine, other = socket.socketpair()
    layers = CodecStack()
    layers.codec = Deflate()
    transport = LayeredTransport(TcpTransport(mine), layers)
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    other.sendall(packer.compress(b"last words") + packer.flush())
    assert receive(transport) == b"last words"
    assert transport.receive_now() == b""
    assert receive(transport) == b""
    transport.close()
    other.close()


def test_a_peer_whose_bytes_decode_to_nothing_does_not_keep_the_hub() -> None:
    mine, other = socket.socketpair()
    layers = CodecStack()
    layers.codec = Deflate()
    transport = LayeredTransport(TcpTransport(mine), layers)
    other.sendall(b"\x00\x00\x00\xff\xff" * 30_000)  # more than one read takes
    assert transport.receive_now() is None
    assert transport.has_input()
    transport.close()
    other.close()


def test_input_that_cannot_be_is_the_protocol_error(pair: Pair) -> None:
    transport, end = pair
    end.sock.sendall(b"\xfe" * 100)
    for _ in range(2):
        with pytest.raises(ProtocolError):
            receive(transport)
        end.sock.sendall(b"more")


def test_what_unpacks_to_much_comes_in_pieces_and_lets_the_hub_have_its_turn(pair: Pair) -> None:
    transport, end = pair
    size = 3_000_000
    writer = gevent.spawn(end.send, bytes(size))
    turns = 0

    def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            gevent.sleep(0)

    answers = 0

    def count_answers() -> None:
        nonlocal answers
        one, other = socket.socketpair()
        with one, other:
            while True:
                one.send(b"x")
                socket.wait_read(other.fileno())  # recv would not wait: the byte is there
                other.recv(1)
                answers += 1

    greenlets = [writer, gevent.spawn(count_turns), gevent.spawn(count_answers)]
    received: list[int] = []
    turns_between: list[int] = []

    def read() -> None:
        nonlocal turns
        while True:
            transport.wait()
            data = transport.receive_now()
            if data:
                assert set(data) == {0}
                received.append(len(data))
                turns_between.append(turns)
                turns = 0
            if transport.layers.pending:
                assert transport.has_input()

    greenlets.append(gevent.spawn(read))
    wait_for(lambda: sum(received) == size)
    assert len(received) >= 11
    assert max(received) <= 256 * 1024
    # A piece may come because one is left, and the next in the same turn because the socket has more.
    assert all(map(any, pairwise(turns_between)))
    # The hub looks at the sockets, too: the answer comes in one round and is heard in that or the next.
    assert answers >= len(received) // 2
    gevent.killall(greenlets)


def test_a_kernel_that_takes_little_gets_all_in_order(pair: Pair) -> None:
    transport, end = pair
    transport._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    broken: list[BaseException] = []
    write_buffer = WriteBuffer(transport, gevent.get_hub().loop, broken.append)
    noise = random.Random(7)
    pieces = [noise.randbytes(noise.choice([5, 5000, 300_000])) for _ in range(20)]
    for number, piece in enumerate(pieces):
        (write_buffer.put_now if number % 2 else write_buffer.put)(piece)
    expected = b"".join(pieces)
    wait_for(lambda: write_buffer.stalled_since is not None)
    assert transport.unsent
    # What is encoded counts as sent, although the kernel did not take all of it.
    assert 0 < write_buffer.sent_count < len(expected)
    assert end.take(len(expected), at_once=50_000) == expected
    wait_for(lambda: write_buffer.stalled_since is None)
    assert transport.unsent == 0
    assert write_buffer.sent_count == write_buffer.put_count == len(expected)
    write_buffer.put(b"and goes on")
    assert end.take(11) == b"and goes on"
    write_buffer.close()
    assert broken == []


def test_what_goes_slowly_is_told_from_what_does_not_go(pair: Pair) -> None:
    transport, end = pair
    broken: list[BaseException] = []
    write_buffer = WriteBuffer(transport, gevent.get_hub().loop, broken.append)
    write_buffer.put_now(random.Random(8).randbytes(3_000_000))
    since, unsent = write_buffer.stalled_since, transport.unsent
    assert since is not None
    end.sock.recv(1_000_000)
    write_buffer.flush()
    assert 0 < transport.unsent < unsent
    assert write_buffer.stalled_since is not None
    assert write_buffer.stalled_since > since
    since, unsent = write_buffer.stalled_since, transport.unsent
    write_buffer.flush()
    assert (write_buffer.stalled_since, transport.unsent) == (since, unsent)
    write_buffer.close()
    assert broken == []


def test_what_the_kernel_has_taken_is_not_kept(pair: Pair) -> None:
    transport, end = pair
    data = random.Random(5).randbytes(1_000_000)
    reader = gevent.spawn(end.take, len(data))
    transport.send_now(data)
    assert isinstance(transport._wire.obj, bytes)
    assert len(transport._wire.obj) >= len(data)
    while transport.unsent:
        transport.send_now(b"")
        gevent.sleep(0)
    assert reader.get(timeout=PATIENCE) == data
    assert transport._wire.obj == b""


def test_nothing_is_taken_while_something_is_unsent(pair: Pair) -> None:
    transport, end = pair
    data = random.Random(3).randbytes(3_000_000)
    assert transport.send_now(data) == len(data)
    unsent = transport.unsent
    assert unsent > 0
    assert transport.send_now(b"next") == 0
    reader = gevent.spawn(end.take, len(data))
    while transport.unsent:
        transport.send_now(b"")
        gevent.sleep(0)
    assert reader.get(timeout=PATIENCE) == data
    assert transport.send_now(b"next") == 4
    assert end.take(4) == b"next"


def test_a_write_that_fails_took_nothing(pair: Pair) -> None:
    transport, end = pair
    end.sock.close()
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        transport.send_now(b"x")


def everything_sent(end: End) -> bytes:
    """What comes until the end, as it is on the wire."""
    data = b""
    while piece := end.sock.recv(65536):
        data += piece
    return data


def test_close_says_goodbye_where_tls_has_one(pair: Pair) -> None:
    transport, end = pair
    transport.close()
    transport.close()
    goodbye = everything_sent(end)
    assert bool(goodbye) == (end.layers.tls is not None)
    if end.layers.tls is not None:
        assert end.layers.tls.decrypt(goodbye) == b""
        assert end.layers.tls.ended


def test_abandon_in_a_forked_child_writes_nothing(pair: Pair) -> None:
    transport, end = pair
    transport.abandon()
    assert everything_sent(end) == b""


def test_a_goodbye_never_lands_behind_half_a_record(pair: Pair) -> None:
    transport, end = pair
    data = random.Random(4).randbytes(3_000_000)
    transport.send_now(data)
    assert transport.unsent > 0
    sent = end.sock.recv(1_000_000)  # so that there is room for a goodbye
    reader = gevent.spawn(everything_sent, end)
    transport.close()
    sent += reader.get(timeout=PATIENCE)
    received = end.layers.decode(sent)
    while end.layers.pending:
        received += end.layers.decode()
    assert len(received) < len(data)
    assert data.startswith(received)
    assert end.layers.tls is None or not end.layers.tls.ended


def test_without_layers_bytes_are_what_they_are() -> None:
    stack = CodecStack()
    assert stack.encode(memoryview(b"FIN")) == b"FIN"
    assert stack.decode(b"OK") == b"OK"
    assert not stack.pending
    assert stack.take_output() == stack.close() == b""
