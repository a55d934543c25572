"""Values as text: one function reads them all, whatever they are written in; durations in Go's spelling, and more."""

import ast
from pathlib import Path
from types import NoneType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gnsq_like
from gnsq_like.errors import UsageError
from gnsq_like.options.text import parse_duration, read_size, read_text

ROOT = Path(gnsq_like.__file__).parent
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none()))
def test_a_values_text_is_the_value(value: object) -> None:
    kinds = (bool,) if isinstance(value, bool) else (int, float, NoneType)
    assert read_text(str(value), kinds) == value


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    kinds: tuple[type, ...]
    for kinds in ((int,), (float,), (bool,), (bool, int), (str,), (bool, str), (float, NoneType)):
        try:
            value = read_text(text, kinds)
        except UsageError:
            assert str not in kinds
        else:
            assert isinstance(value, kinds)


@pytest.mark.parametrize(
    ("text", "kinds", "why"),
    [
        ("many", (int,), "it must be a whole number"),
        ("x", (float, NoneType), "it must be a number"),
        ("perhaps", (bool,), "it must be true or false"),
        ("", (bool, int), "it must be true or false or a whole number"),
    ],
)
def test_what_is_refused_says_what_it_must_be(text: str, kinds: tuple[type, ...], why: str) -> None:
    with pytest.raises(UsageError, match=f"^{why}$"):
        read_text(text, kinds)


def test_a_duration_that_is_wrong_says_so() -> None:
    assert read_text("90ms", (float,), parse_duration) == 0.09
    with pytest.raises(UsageError, match="it must be a duration"):
        read_text("90", (float,), parse_duration)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("300M", 300 << 20), ("1.5g", 3 << 29), ("2 KiB", 2048), ("10mb", 10 << 20), ("1T", 1 << 40), ("7b", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "M", "-1M", "3x", "1 0M", "0.1"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="300M"):
        read_size(text)


def test_the_words_for_true_and_false_stand_once() -> None:
    """Whatever else reads options from text has it done here."""
    words = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Set) and {"on", "1"} <= {getattr(each, "value", None) for each in node.elts}
    }
    assert words == {"options/text.py"}


@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(list(UNITS))), min_size=1, max_size=5))
def test_parts_add_up_in_any_case_and_with_blanks(parts: list[tuple[int, str]]) -> None:
    seconds = sum(amount * UNITS[unit] for amount, unit in parts)
    close_together = "".join(f"{amount}{unit}" for amount, unit in parts)
    apart = " ".join(f" {amount} {unit.upper()}" for amount, unit in parts)
    assert parse_duration(close_together) == pytest.approx(seconds)
    assert parse_duration(apart) == pytest.approx(seconds)


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
