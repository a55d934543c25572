"""Text as Go writes and reads it."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.server.shared import gotext


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        (b"t", b'"t"'),
        (b"", b'""'),
        (b'a"\\\n\t\x00\x7f', b'"a\\"\\\\\\n\\t\\x00\\x7f"'),
        ("é€😀".encode(), '"é€😀"'.encode()),
        (b"\xff\xc3(", b'"\\xff\\xc3("'),
        ("\u200b\U000e0001".encode(), b'"\\u200b\\U000e0001"'),
    ],
)
def test_quoting_as_go_does(text: bytes, quoted: bytes) -> None:
    assert gotext.quote(text) == quoted


@pytest.mark.parametrize(
    ("text", "number"),
    [(b"", 0), (b"007", 7), (b"18446744073709551617", 1), (b"-1", None), (b"1.0", None), ("٣".encode(), None)],
)
def test_numbers_as_nsqd_reads_them(text: bytes, number: int | None) -> None:
    assert gotext.parse_uint64(text) == number


def test_milliseconds_wrap_as_go_durations() -> None:
    assert gotext.seconds_from_ms(1500) == 1.5
    assert gotext.seconds_from_ms((1 << 63) // 1_000_000 + 1) < 0


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")), st.lists))
def test_json_is_compact_and_has_gos_escapes(value: Any) -> None:
    text = gotext.to_json(value)
    assert json.loads(text) == value
    assert not re.search("[<>&\u2028\u2029]", text.decode())


def test_json_replaces_what_is_not_utf8() -> None:
    assert gotext.to_json({"<&>": "\udcff"}) == b'{"\\u003c\\u0026\\u003e":"\\ufffd"}'


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0.0ns"), (1000, "1000.0ns"), (3000, "3.0us"), (100_600_000, "100.6ms"), (2.5e9, "2.5s"), (7.2e12, "7200.0s")],
)
def test_latencies_as_nsq_writes_them(nanoseconds: float, text: str) -> None:
    assert gotext.nanoseconds(nanoseconds) == text


def test_a_log_line_shows_text_and_no_control_characters() -> None:
    assert gotext.printable('E_INVALID "é" \x1b[2J\n'.encode() + b"\xff") == 'E_INVALID "é" \\x1b[2J\\n\\xff'
