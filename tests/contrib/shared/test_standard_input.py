"""Standard input as messages: how it is divided, and that nothing waits for what has not come."""

from __future__ import annotations

import io
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.contrib.shared.standard_input import publish_input
from gnsq_like.errors import InvalidBody, InvalidOption, NSQError
from gnsq_like.testing import RecordingProducer
from tests.support.daemons import wait_for


def published(data: bytes, *, null: bool = False, whole: bool = False, defer: float | None = None) -> list[bytes]:
    producer = RecordingProducer()
    publish_input(io.BytesIO(data), producer, "t", defer=defer, null=null, whole=whole)
    assert {each.defer for each in producer.outbox} <= {defer}
    return [each.body for each in producer.outbox]


@pytest.mark.parametrize("defer", [None, 1.5])
@pytest.mark.parametrize(
    ("data", "null", "whole", "expected"),
    [
        (b"one\ntwo\n", False, False, [b"one", b"two"]),
        (b"one\n\n\ntwo", False, False, [b"one", b"two"]),
        (b"a\0b\n", False, False, [b"a\0b"]),
        (b"one\nline\0two\0", True, False, [b"one\nline", b"two"]),
        (b"one\ntwo\n", False, True, [b"one\ntwo\n"]),
        (b"", False, False, []),
    ],
)
def test_how_it_is_divided(data: bytes, null: bool, whole: bool, expected: list[bytes], defer: float | None) -> None:
    assert published(data, null=null, whole=whole, defer=defer) == expected


@given(st.lists(st.binary(max_size=40_000).map(lambda line: line.replace(b"\n", b"")), max_size=8))
def test_each_line_is_a_message_however_long(lines: list[bytes]) -> None:
    assert published(b"\n".join(lines)) == [line for line in lines if line]


def test_lines_are_published_as_they_come() -> None:
    producer = RecordingProducer()
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream:
        arguments = {"defer": None, "null": False, "whole": False}
        thread = threading.Thread(target=publish_input, args=(stream, producer, "t"), kwargs=arguments)
        thread.start()
        os.write(writing, b"first\nsec")
        wait_for(lambda: producer.outbox, "the first line, though the second is not complete")
        os.write(writing, b"ond")
        os.close(writing)
        thread.join(60)
    assert [each.body for each in producer.outbox] == [b"first", b"second"]


def test_those_before_a_failure_are_published_and_counted() -> None:
    producer = RecordingProducer(max_msg_bytes=10)
    with pytest.raises(NSQError, match=r"more than the limit.*; 2 messages were published before"):
        publish_input(io.BytesIO(b"1\n2\n" + b"x" * 11 + b"\n4\n"), producer, "t", defer=1.0, null=False, whole=False)
    assert [each.body for each in producer.outbox] == [b"1", b"2"]
    with pytest.raises(InvalidBody):
        publish_input(io.BytesIO(b"x" * 11), producer, "t", defer=None, null=False, whole=False)


def test_both_ways_to_divide_exclude_each_other() -> None:
    with pytest.raises(InvalidOption, match="null"):
        published(b"x", null=True, whole=True)
