"""Bodies of HTTP requests: read to their end and not beyond, whatever the client sends."""

import io
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.httpd.body import BadBody, Body


def chunked(data: bytes) -> tuple[Body, io.BytesIO]:
    file = io.BytesIO(data)
    return Body(file, 0, True), file


def sized(data: bytes, content_length: int) -> tuple[Body, io.BytesIO]:
    file = io.BytesIO(data)
    return Body(file, content_length, False), file


def test_a_body_of_a_given_length() -> None:
    body, file = sized(b"abcdefg", 5)
    assert (body.read(2), body.ended) == (b"ab", False)
    assert (body.read(10), body.ended) == (b"cde", True)
    assert (body.read(), body.read(1)) == (b"", b"")
    assert file.read() == b"fg"
    assert sized(b"", 0)[0].ended


@pytest.mark.parametrize(
    "data",
    [
        b"5\r\nabcde\r\n0\r\n\r\n",
        b"1\r\na\r\n4\r\nbcde\r\n0\r\n\r\n",
        b"0005  \r\nabcde\r\n00;x\r\n\r\n",
        b'5;a="b;c"\r\nabcde\r\n0\r\nA: b\r\nC-d:\r\n\r\n',
    ],
)
@pytest.mark.parametrize("limit", [-1, 5, 6, 100])
def test_chunks(data: bytes, limit: int) -> None:
    body, file = chunked(data + b"next")
    assert body.read(limit) == b"abcde"
    assert body.read() == b""
    assert body.ended
    assert file.read() == b"next"


def test_a_limit_inside_of_a_chunk() -> None:
    body, file = chunked(b"5\r\nabcde\r\n0\r\n\r\nnext")
    assert (body.read(3), body.ended) == (b"abc", False)
    body.drop()
    assert body.ended
    assert file.read() == b"next"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"5",
        b"5\r\n",
        b"5\r\nabc",
        b"5\r\nabcde",
        b"5\r\nabcde\r\n",
        b"5\r\nabcde\r\n0\r\n",
        b"5\r\nabcde\r\n0\r\nA: b\r\n",
        b"5\nabcde\r\n0\r\n\r\n",
        b"5;a\nabcde\r\n0\r\n\r\n",
        b"5;a\rb\r\nabcde\r\n0\r\n\r\n",
        b"5 ;a\r\nabcde\r\n0\r\n\r\n",
        b" 5\r\nabcde\r\n0\r\n\r\n",
        b"+5\r\nabcde\r\n0\r\n\r\n",
        b"-5\r\nabcde\r\n0\r\n\r\n",
        b"0x5\r\nabcde\r\n0\r\n\r\n",
        b"5_0\r\nabcde\r\n0\r\n\r\n",
        b"\r\nabcde\r\n0\r\n\r\n",
        b"00000000000000005\r\nabcde\r\n0\r\n\r\n",
        b"4\r\nabcde\r\n0\r\n\r\n",
        b"5\r\nabcde\n0\r\n\r\n",
        b"5\r\nabcde0\r\n\r\n",
        b"5\r\nabcde\r\n0\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"5\r\nabcde\r\n0\r\nA: b\n\r\n",
        b"5\r\nabcde\r\n0\r\n\n",
        b"5\r\nabcde\r\n0\r\nA : b\r\n\r\n",
        b"5;" + b"x" * 5000 + b"\r\nabcde\r\n0\r\n\r\n",
        b"5\r\nabcde\r\n0\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
    ],
)
@pytest.mark.parametrize("read", [Body.read, Body.drop])
def test_chunks_that_are_cut_off_or_malformed(data: bytes, read: Callable[[Body], object]) -> None:
    body, _ = chunked(data)
    with pytest.raises(BadBody):
        read(body)
    assert not body.ended
    assert not body.skip()
    with pytest.raises(BadBody):
        body.read()


def test_a_body_that_is_cut_off() -> None:
    body, _ = sized(b"abc", 5)
    with pytest.raises(BadBody):
        body.read(10)
    assert not body.skip()


def test_little_is_skipped_and_much_is_not() -> None:
    body, file = sized(b"x" * 262143 + b"next", 262143)
    assert body.skip()
    assert file.read() == b"next"
    body, file = sized(b"x" * 262144, 262144)
    assert not body.skip()
    assert file.tell() == 0
    assert not chunked(b"10000\r\n" + b"x" * 65536 + b"\r\n" + b"40000\r\n" + b"x" * 262144 + b"\r\n0\r\n\r\n")[
        0
    ].skip()
    assert chunked(b"10000\r\n" + b"x" * 65536 + b"\r\n" + b"0\r\n\r\n")[0].skip()


def test_the_client_is_invited_once_and_only_when_its_body_is_read() -> None:
    invited: list[bool] = []
    body = Body(io.BytesIO(b"abc"), 3, False, lambda: invited.append(True))
    assert not body.skip()
    assert invited == []
    assert body.read() == b"abc"
    assert body.read() == b""
    assert invited == [True]


@given(st.lists(st.binary(min_size=1), max_size=5), st.integers(1, 50), st.binary())
def test_chunks_of_any_size_come_back(chunks: list[bytes], limit: int, tail: bytes) -> None:
    body, file = chunked(b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n" + tail)
    found = b""
    while piece := body.read(limit):
        assert len(piece) <= limit
        found += piece
    assert found == b"".join(chunks)
    assert file.read() == tail
