"""Standard input as messages: a line each, and nothing waits for what has not come."""

from __future__ import annotations

import io
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.contrib.shared.standard_input import publish_lines
from gnsq_like.errors import InvalidBody, NSQError
from tests.support.daemons import wait_for


@given(st.lists(st.binary(max_size=40_000).map(lambda line: line.replace(b"\n", b"")), max_size=8))
def test_each_line_is_a_message_however_long(lines: list[bytes]) -> None:
    published: list[bytes] = []
    publish_lines(io.BytesIO(b"\n".join(lines)), published.append)
    assert published == [line for line in lines if line]


def test_lines_are_published_as_they_come() -> None:
    published: list[bytes] = []
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream:
        thread = threading.Thread(target=publish_lines, args=(stream, published.append))
        thread.start()
        os.write(writing, b"first\nsec")
        wait_for(lambda: published, "the first line, though the second is not complete")
        os.write(writing, b"ond")
        os.close(writing)
        thread.join(60)
    assert published == [b"first", b"second"]


def test_those_before_a_failure_are_published_and_counted() -> None:
    published: list[bytes] = []

    def publish(body: bytes) -> None:
        if body == b"bad":
            raise InvalidBody("it is bad")
        published.append(body)

    with pytest.raises(NSQError, match="it is bad; 2 messages were published before"):
        publish_lines(io.BytesIO(b"1\n2\nbad\n4\n"), publish)
    assert published == [b"1", b"2"]
    with pytest.raises(InvalidBody):
        publish_lines(io.BytesIO(b"bad\n"), publish)
