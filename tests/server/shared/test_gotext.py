"""Text as Go writes and reads it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.options.text import parse_duration
from gnsq_like.server.shared import gotext


@pytest.mark.parametrize(
    ("text", "number"),
    [(b"", 0), (b"007", 7), (b"18446744073709551617", 1), (b"-1", None), (b"1.0", None), ("٣".encode(), None)],
)
def test_numbers_as_nsqd_reads_them(text: bytes, number: int | None) -> None:
    assert gotext.parse_uint64(text) == number


def test_milliseconds_wrap_as_go_durations() -> None:
    assert gotext.seconds_from_ms(1500) == 1.5
    assert gotext.seconds_from_ms((1 << 63) // 1_000_000 + 1) < 0


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_json_is_compact(value: Any) -> None:
    text = gotext.to_json({"a": value, "b": 1})
    assert json.loads(text) == {"a": value, "b": 1}
    assert text.startswith(b'{"a":')
    assert text.endswith(b',"b":1}')


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0.0ns"), (1000, "1000.0ns"), (3000, "3.0us"), (100_600_000, "100.6ms"), (2.5e9, "2.5s"), (7.2e12, "7200.0s")],
)
def test_latencies_as_nsq_writes_them(nanoseconds: float, text: str) -> None:
    assert gotext.nanoseconds(nanoseconds) == text


def test_a_log_line_shows_text_and_no_control_characters() -> None:
    assert gotext.printable(b'E_INVALID "a" \x1b[2J\n\x7f\xff') == 'E_INVALID "a" \\x1b[2J\\n\\x7f\\xff'


@given(st.integers(0, 10**15))
def test_what_is_written_is_read_back(nanoseconds: int) -> None:
    text = gotext.format_duration(nanoseconds / 1e9)
    assert round(parse_duration(text) * 1e9) == nanoseconds
    assert gotext.format_duration(-nanoseconds / 1e9) == (f"-{text}" if nanoseconds else "0s")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (3, "3s"),
        (0.191384574, "191.384574ms"),
        (2.5e-05, "25µs"),
        (3e-09, "3ns"),
        (1e-10, "0s"),
        (-1e-10, "0s"),
        (61.5, "1m1.5s"),
        (3600, "1h0m0s"),
        (90061.000000001, "25h1m1.000000001s"),
        (-0.25, "-250ms"),
    ],
)
def test_durations_as_go_writes_them(seconds: float, text: str) -> None:
    assert gotext.format_duration(seconds) == text
