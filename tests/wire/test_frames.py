"""The decoder: whole, byte by byte, with a tail, and on any bytes at all."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.errors import ProtocolError
from gnsq_like.wire.frames import (
    ERROR,
    MESSAGE,
    RESPONSE,
    Frame,
    FrameDecoder,
    encode_frame,
    encode_message,
    encode_messages,
)

raw_messages = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**16 - 1),
    st.binary(min_size=16, max_size=16),
    st.binary(max_size=80),
)
other_frames = st.just(Frame(RESPONSE, b"OK")) | st.builds(
    Frame, st.sampled_from([RESPONSE, ERROR, 3, -1]), st.binary(max_size=60)
)
streams = st.lists(st.one_of(raw_messages, other_frames), max_size=12)


def encode(stream):
    return b"".join(encode_frame(*item) if isinstance(item, Frame) else encode_message(*item) for item in stream)


def flatten(items):
    """The frames of a decoder's answer, runs of messages taken apart."""
    flat = []
    for item in items:
        flat.extend(item if isinstance(item, list) else [item])
    return flat


def pieces(data, cuts):
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:stop] for start, stop in zip(bounds, bounds[1:], strict=False)]


@given(streams)
def test_what_was_encoded_is_decoded(stream):
    assert flatten(FrameDecoder().feed(encode(stream))) == stream


@given(st.lists(raw_messages))
def test_several_messages_are_encoded_one_after_the_other(messages):
    assert encode_messages(messages) == encode(messages)


@given(streams)
def test_messages_that_follow_each_other_are_one_run(stream):
    items = FrameDecoder().feed(encode(stream))
    kinds = [isinstance(item, list) for item in items]
    assert not any(first and second for first, second in zip(kinds, kinds[1:], strict=False))
    assert all(items)


@given(streams)
def test_byte_by_byte(stream):
    decoder = FrameDecoder()
    found = []
    for byte in encode(stream):
        found += flatten(decoder.feed(bytes([byte])))
    assert found == stream
    assert decoder.is_empty


@given(streams, st.lists(st.integers(0, 10_000), max_size=20))
def test_however_it_is_split(stream, cuts):
    decoder = FrameDecoder()
    found = []
    for piece in pieces(encode(stream), cuts):
        found += flatten(decoder.feed(piece))
    assert found == stream


@given(streams, raw_messages, st.integers(0, 200))
def test_with_a_tail(stream, last, kept):
    tail = encode_message(*last)
    tail = tail[: kept % len(tail)]
    decoder = FrameDecoder()
    assert flatten(decoder.feed(encode(stream) + tail)) == stream
    assert decoder.is_empty == (not tail)
    assert flatten(decoder.feed(encode_message(*last)[len(tail) :])) == [last]


@pytest.mark.parametrize("size", [3, 0, -1, -(2**31), 1001, 2**31 - 1])
@pytest.mark.parametrize("frame_type", [RESPONSE, MESSAGE, 99])
@pytest.mark.parametrize("tail", [b"", b"x" * 40])
def test_a_size_that_cannot_be_is_the_protocol_error(size, frame_type, tail):
    good = encode_frame(RESPONSE, b"OK")
    decoder = FrameDecoder(max_frame_bytes=1000)
    assert decoder.feed(good + struct.pack(">ii", size, frame_type) + tail) == [Frame(RESPONSE, b"OK")]
    assert str(size) in str(decoder.error)
    assert decoder.is_empty
    with pytest.raises(ProtocolError):
        decoder.feed(good)


def test_sizes_at_the_bounds_are_taken():
    decoder = FrameDecoder(max_frame_bytes=1000)
    least = encode_frame(RESPONSE, b"")
    most = encode_frame(ERROR, b"x" * 996)
    biggest_message = encode_message(1, 1, b"i" * 16, b"b" * 970)
    assert decoder.feed(least + most + biggest_message) == [
        Frame(RESPONSE, b""),
        Frame(ERROR, b"x" * 996),
        [(1, 1, b"i" * 16, b"b" * 970)],
    ]


@pytest.mark.parametrize("size", range(4, 30))
@pytest.mark.parametrize("tail", [0, 40])
def test_a_message_frame_too_short_for_its_head_is_the_protocol_error(size, tail):
    decoder = FrameDecoder()
    assert decoder.feed(struct.pack(">ii", size, MESSAGE) + b"x" * (size - 4 + tail)) == []
    assert decoder.error is not None


def test_a_frame_in_many_pieces_is_joined_once():
    """Linear in the bytes: the pieces of one large frame are kept, not copied again at each piece."""
    body = bytes(1_000_000)
    data = encode_messages([(7, 1, b"i" * 16, body)])
    decoder = FrameDecoder()
    decoder.feed(data[:40])
    held = decoder._pieces
    for start in range(40, len(data) - 1000, 1000):
        assert decoder.feed(data[start : start + 1000]) == []
        assert decoder._pieces is held
    [run] = decoder.feed(data[start + 1000 :])
    assert run == [(7, 1, b"i" * 16, body)]


@given(streams)
def test_what_a_decoder_wants_is_of_one_frame(stream):
    decoder = FrameDecoder()
    found = []
    data = encode(stream)
    while data:
        wants = decoder.wants
        items = flatten(decoder.feed(data[:wants]))
        assert len(items) <= 1
        assert decoder.is_empty == bool(items)
        found += items
        data = data[wants:]
    assert found == stream


PORT = "; is this the port of nsqd's TCP protocol (4150)?"


@pytest.mark.parametrize(
    ("begin", "says"),
    [
        (struct.pack(">ii", 3, RESPONSE), "invalid frame size 3; the minimum is 4"),
        (struct.pack(">ii", 1001, RESPONSE), "frame of 1001 bytes exceeds max_frame_bytes=1000"),
        (struct.pack(">ii", 29, MESSAGE), "invalid message frame size 29; the minimum is 30"),
        (b"HTTP/1.1 400", "the peer speaks HTTP" + PORT),
        (b"\x15\x03\x01\0\x02\x02\x46", "the peer speaks TLS from the first byte" + PORT),
        (b"\0\0\0\x0eE_BAD_PROTOCOL", "the peer speaks nsqlookupd's TCP protocol" + PORT),
    ],
)
def test_each_fault_has_its_text(begin, says):
    decoder = FrameDecoder(max_frame_bytes=1000)
    assert decoder.feed(begin + b" Bad Request") == []
    assert str(decoder.error) == says


def test_a_frame_as_long_as_ok_is_not_taken_for_the_ok_before_it():
    frames = [Frame(RESPONSE, b"OK"), Frame(ERROR, b"NO"), Frame(RESPONSE, b"no")]
    assert FrameDecoder().feed(encode(frames)) == frames
