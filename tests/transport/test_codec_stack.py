"""TLS and a codec as one pair of bytes-to-bytes functions, without a socket."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.errors import ProtocolError
from gnsq_like.transport.codec_stack import CodecStack
from gnsq_like.transport.compression import Codec, Deflate, Snappy
from gnsq_like.transport.tls import Tls
from tests.support.certificates import client_context, server_context
from tests.support.scale import examples

#: A piece of what is decoded is no larger.
PIECE = 256 * 1024


def decoded(stack: CodecStack, wire: bytes) -> bytes:
    data = stack.decode(wire)
    while stack.pending:
        data += stack.decode()
    return data


def tls_pair() -> tuple[Tls, Tls]:
    client, server = Tls(client_context(), server_hostname="127.0.0.1"), Tls(server_context(), server_side=True)
    client.handshake()
    server.handshake(client.take_output())
    assert client.handshake(server.take_output())
    assert server.handshake(client.take_output())
    return client, server


def test_without_layers_bytes_are_what_they_are() -> None:
    stack = CodecStack()
    assert stack.encode(memoryview(b"FIN")) == b"FIN"
    assert stack.decode(b"OK") == b"OK"
    assert not stack.pending
    assert stack.take_output() == stack.close() == b""


@examples(0.5)
@given(
    st.sampled_from([Snappy, Deflate]),
    st.lists(st.binary(max_size=2000), max_size=5),
    st.integers(min_value=1, max_value=500),
)
def test_what_a_codec_encodes_is_decoded_however_it_is_cut(make: type[Codec], pieces: list[bytes], step: int) -> None:
    ours, theirs = CodecStack(), CodecStack()
    ours.put_codec(make())
    theirs.put_codec(make())
    wire = b"".join(map(ours.encode, pieces))
    received = b"".join(decoded(theirs, wire[at : at + step]) for at in range(0, len(wire), step))
    assert received == b"".join(pieces)


@pytest.mark.parametrize("make", [Snappy, Deflate])
def test_a_codec_lies_inside_of_tls(make: type[Codec]) -> None:
    client, server = tls_pair()
    ours, theirs = CodecStack(), CodecStack()
    ours.put_tls(client)
    theirs.put_tls(server)
    ours.put_codec(make())
    theirs.put_codec(make())
    assert decoded(theirs, ours.encode(b"FIN 0123456789abcdef\n" * 100)) == b"FIN 0123456789abcdef\n" * 100
    # TLS's own goodbye goes around the codec, and is the end of both.
    goodbye = ours.close()
    with pytest.raises(EOFError):
        theirs.decode(goodbye)


def test_tls_begins_anew_and_forgets_the_codec() -> None:
    client, server = tls_pair()
    stack, theirs = CodecStack(), CodecStack()
    stack.put_codec(Snappy())
    stack.put_tls(client)
    theirs.put_tls(server)
    assert decoded(theirs, stack.encode(b"plain inside")) == b"plain inside"


@pytest.mark.parametrize("make", [Snappy, Deflate])
def test_little_that_unpacks_to_much_comes_in_pieces(make: type[Codec]) -> None:
    ours, theirs = CodecStack(), CodecStack()
    ours.put_codec(make())
    theirs.put_codec(make())
    sizes = [len(theirs.decode(ours.encode(bytes(3_000_000))))]
    while theirs.pending:
        sizes.append(len(theirs.decode()))
    assert sum(sizes) == 3_000_000
    assert max(sizes) <= PIECE


def test_a_deflate_stream_that_ends_is_the_end() -> None:
    stack = CodecStack()
    stack.put_codec(Deflate())
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    assert stack.decode(packer.compress(b"last words") + packer.flush()) == b"last words"
    assert stack.pending  # the end is still to be asked for
    with pytest.raises(EOFError):
        stack.decode()


@pytest.mark.parametrize("make", [Snappy, Deflate])
def test_bytes_that_cannot_be_are_the_protocol_error(make: type[Codec]) -> None:
    stack = CodecStack()
    stack.put_codec(make())
    with pytest.raises(ProtocolError):
        stack.decode(b"\xfe" * 100)
