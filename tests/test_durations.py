"""Durations as text: Go's spelling exactly, and what more is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.durations import format_duration, parse_duration
from gnsq_like.errors import UsageError

UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@given(st.integers(0, 10**15))
def test_what_is_written_is_read_back(nanoseconds: int) -> None:
    text = format_duration(nanoseconds / 1e9)
    assert round(parse_duration(text) * 1e9) == nanoseconds
    assert format_duration(-nanoseconds / 1e9) == (f"-{text}" if nanoseconds else "0s")


@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(list(UNITS))), min_size=1, max_size=5))
def test_parts_add_up_in_any_case_and_with_blanks(parts: list[tuple[int, str]]) -> None:
    seconds = sum(amount * UNITS[unit] for amount, unit in parts)
    close_together = "".join(f"{amount}{unit}" for amount, unit in parts)
    apart = " ".join(f" {amount} {unit.upper()}" for amount, unit in parts)
    assert parse_duration(close_together) == pytest.approx(seconds)
    assert parse_duration(apart) == pytest.approx(seconds)


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
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("text", "seconds"), [("1.5h", 5400), (".5s", 0.5), ("2.s", 2), ("0", 0), ("1h30m", 5400)])
def test_fractions_and_zero_as_go_reads_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", " ", "s", "soon", "5", "1.5", "-1s", "+1s", "1h30", "1e3s", "\u0665s", "1,5s"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="it must be a duration such as"):
        parse_duration(text)


def test_a_bare_number_may_have_a_unit_by_default() -> None:
    assert parse_duration("90", default_unit="s") == 90
    assert parse_duration(" 1.5 ", default_unit="ms") == 0.0015
    assert parse_duration("2m", default_unit="s") == 120
    with pytest.raises(UsageError):
        parse_duration("", default_unit="s")
