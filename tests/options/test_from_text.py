"""Values as text: one function reads them all, whatever they are written in."""

import ast
from pathlib import Path
from types import NoneType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gnsq_like
from gnsq_like.durations import parse_duration
from gnsq_like.errors import UsageError
from gnsq_like.options.from_text import read_size, read_text

ROOT = Path(gnsq_like.__file__).parent


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
    assert words == {"options/from_text.py"}
