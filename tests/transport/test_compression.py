"""The codecs: any bytes in, data or ProtocolError out, in bounded pieces."""

import random
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import snappy
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.errors import ProtocolError
from gnsq_like.transport.compression import Codec, Deflate, Snappy

MAKERS = [Snappy, *(pytest.param(lambda level=level: Deflate(level), id=f"deflate-{level}") for level in range(1, 10))]
BOTH: list[Callable[[], Codec]] = [Snappy, Deflate]

HEADER = b"\xff\x06\x00\x00sNaPpY"
DATA = b"FIN 0123456789abcdef\n" * 50 + bytes(range(256)) * 300 + random.Random(5).randbytes(70_000)


def everything(codec: Codec, data: bytes, max_bytes: int = 65536) -> bytes:
    pieces = [codec.decompress(data, max_bytes)]
    while codec.pending:
        pieces.append(codec.decompress(b"", max_bytes))
    assert all(len(piece) <= max_bytes for piece in pieces)
    return b"".join(pieces)


def chunk(kind: int, payload: bytes) -> bytes:
    return bytes([kind]) + len(payload).to_bytes(3, "little") + payload


@pytest.mark.parametrize("make", MAKERS)
def test_what_was_packed_is_unpacked_at_once(make: Callable[[], Codec]) -> None:
    ours, theirs = make(), make()
    for data in (b"x", DATA, b"", b"OK" * 3, memoryview(DATA)):
        assert everything(theirs, ours.compress(data)) == bytes(data)
        assert not theirs.pending


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_packed_is_what_others_read(make: Callable[[], Codec]) -> None:
    codec = make()
    wire = codec.compress(DATA) + codec.compress(b"end")
    if isinstance(codec, Snappy):
        assert bytes(snappy.StreamDecompressor().decompress(wire)) == DATA + b"end"
    else:
        assert wire.endswith(b"\x00\x00\xff\xff")
        assert zlib.decompressobj(-15).decompress(wire) == DATA + b"end"


def test_the_bytes_that_nsqd_answers_with() -> None:
    # docs/internals 1.3: the OK after the switch to snappy.
    wire = bytes.fromhex("ff060000734e61507059010e000026982bcf00000006000000004f4b")
    assert everything(Snappy(), wire) == b"\x00\x00\x00\x06\x00\x00\x00\x00OK"


@pytest.mark.parametrize("make", BOTH)
def test_split_at_every_byte(make: Callable[[], Codec]) -> None:
    data = b"".join(DATA[at : at + 40] for at in range(0, 4000, 400))
    packer = make()
    wire = packer.compress(data) + packer.compress(b"tail")
    for at in range(len(wire) + 1):
        codec = make()
        assert everything(codec, wire[:at]) + everything(codec, wire[at:]) == data + b"tail"
    codec = make()
    assert b"".join(everything(codec, wire[at : at + 1]) for at in range(len(wire))) == data + b"tail"


@pytest.mark.parametrize("make", BOTH)
@given(data=st.binary(max_size=3000), cuts=st.lists(st.integers(0, 3000), max_size=8), most=st.integers(65536, 300_000))
def test_any_data_split_anyhow(make: Callable[[], Codec], data: bytes, cuts: list[int], most: int) -> None:
    packer, codec = make(), make()
    wire = b"".join(packer.compress(data * repeat) for repeat in (1, 0, 40))
    edges = [0, *sorted(cuts), len(wire)]
    pieces = [everything(codec, wire[a:b], most) for a, b in zip(edges, edges[1:], strict=False)]
    assert b"".join(pieces) == data * 41


def data_or_error(codec: Codec, pieces: list[bytes]) -> None:
    """Data or ProtocolError; after the error, that error again."""
    try:
        for piece in pieces:
            everything(codec, piece)
    except ProtocolError as exc:
        assert not codec.pending
        with pytest.raises(ProtocolError) as again:
            codec.decompress(b"more")
        assert again.value is exc


@pytest.mark.parametrize("make", BOTH)
@given(data=st.binary(max_size=2000), flips=st.lists(st.tuples(st.integers(0), st.integers(1, 255)), min_size=1))
def test_changed_bytes_are_data_or_the_protocol_error(
    make: Callable[[], Codec], data: bytes, flips: list[tuple[int, int]]
) -> None:
    wire = bytearray(make().compress(data + data))
    for at, mask in flips:
        if wire:
            wire[at % len(wire)] ^= mask
    data_or_error(make(), [bytes(wire)])


@given(
    chunks=st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]), st.binary(max_size=40), st.integers(-3, 3)),
        max_size=5,
    )
)
def test_chunks_of_any_kind_are_data_or_the_protocol_error(chunks: list[tuple[int, bytes, int]]) -> None:
    wire = HEADER
    for kind, payload, lie in chunks:
        wire += bytes([kind]) + max(0, len(payload) + lie).to_bytes(3, "little") + payload
    data_or_error(Snappy(), [wire])


@pytest.mark.parametrize(
    ("wire", "says"),
    [
        (b"\x00\x00\x00\x06\x00\x00\x00\x00OK", "identifier is missing"),
        (HEADER + chunk(0x02, b"a"), "unknown type 0x02"),
        (HEADER + chunk(0xFF, b"sNaPpy"), "sNaPpy"),
        (chunk(0xFF, b"longer name"), "0xff with 11 bytes"),
        (HEADER + b"\x01\x05\x00\x01", "0x01 with 65541 bytes"),
        (HEADER + b"\x00\xff\xff\xff", "0x00 with 16777215 bytes"),
        (HEADER + chunk(0x00, b"sumx" + b"\xff\xff\xff\xff\x0f" + b"a"), "decompresses to more than 65536"),
        (HEADER + chunk(0x00, b"sumx" + b"\x81\x80\x04" + b"a"), "decompresses to more than 65536"),
        (HEADER + chunk(0x01, b"\x00\x00\x00\x00abc"), "checksum"),
    ],
)
def test_what_snappy_refuses(wire: bytes, says: str) -> None:
    # The heads are judged before the rest of the chunk is there.
    with pytest.raises(ProtocolError, match=says):
        everything(Snappy(), wire)


def test_snappy_skips_what_may_be_skipped() -> None:
    packer = Snappy()
    first, second = packer.compress(b"first"), packer.compress(b"second")
    wire = first + chunk(0xFE, b"\x00" * 300) + HEADER + chunk(0x80, b"whatever") + second
    assert everything(Snappy(), wire) == b"firstsecond"
    codec = Snappy()
    assert b"".join(everything(codec, wire[at : at + 1]) for at in range(len(wire))) == b"firstsecond"


def test_padding_is_not_kept() -> None:
    codec = Snappy()
    codec.decompress(HEADER + b"\xfe\xff\xff\xff")
    block = bytes(65536)
    codec.decompress(block)
    tracemalloc.start()
    try:
        for _ in range(254):
            codec.decompress(block)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    assert not codec.pending


@pytest.mark.parametrize("max_bytes", [65536, 1_000_000])
@pytest.mark.parametrize("make", BOTH)
def test_a_bomb_comes_in_pieces(make: Callable[[], Codec], max_bytes: int) -> None:
    bomb = b"".join(map(make().compress, [bytes(30_000_000)]))
    codec = make()
    tracemalloc.start()
    try:
        size = len(codec.decompress(bomb, max_bytes))
        pieces = 1
        while codec.pending:
            piece = codec.decompress(b"", max_bytes)
            assert len(piece) <= max_bytes
            size += len(piece)
            pieces += 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size == 30_000_000
    assert pieces >= 30
    assert peak < 3 * len(bomb) + 4 * max_bytes + 200_000


def test_the_end_of_a_deflate_stream() -> None:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    wire = packer.compress(b"the last") + packer.flush()
    codec = Deflate()
    assert everything(codec, wire) == b"the last"
    assert codec.ended
    assert codec.decompress() == b""
    with pytest.raises(ProtocolError, match="after the end"):
        codec.decompress(b"x")
    with pytest.raises(ProtocolError, match="after the end"):
        Deflate().decompress(wire + b"x")


@pytest.mark.parametrize("max_bytes", [1, 100, 257, 258, 259, 1000])
def test_deflate_gives_all_that_came_wherever_the_input_is_cut(max_bytes: int) -> None:
    wire = Deflate().compress(
        bytes(10_000)
    )  # long matches, of which zlib keeps the rest to itself when a piece is full
    for cut in range(1, len(wire)):
        codec = Deflate()
        unpacked = codec.decompress(wire[:cut], max_bytes)
        while codec.pending:
            unpacked += codec.decompress(b"", max_bytes)
        assert unpacked == Deflate().decompress(wire[:cut])
