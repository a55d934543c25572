"""The tables of all commands."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gnsq_like.cli.tables import Cell, table_lines

HEADINGS = ("NAME", "DEPTH", "NOTE")
ROWS: list[list[Cell]] = [["a", 1_234_567, "x"], ["longer", 8, None]]


def lines(rows: list[list[Cell]], width: int | None = None, dispensable: tuple[str, ...] = ()) -> list[str]:
    return [each.plain.rstrip() for each in table_lines(HEADINGS, rows, width=width, dispensable=dispensable)]


def test_numbers_are_on_the_right() -> None:
    assert lines(ROWS) == ["NAME        DEPTH  NOTE", "a       1,234,567  x", "longer          8  -"]


def test_columns_that_do_not_fit_are_left_out() -> None:
    assert lines(ROWS, 23, ("NOTE",))[0] == "NAME        DEPTH  NOTE"
    assert lines(ROWS, 22, ("NOTE",))[0] == "NAME        DEPTH"
    assert lines(ROWS, 1, ("NOTE", "DEPTH"))[1:] == ["a", "longer"]


def test_text_that_could_harm_a_terminal_is_not_shown() -> None:
    assert lines([["a\x1b[2Jb", 1, "c\rd"]])[1].split() == ["a?[2Jb", "1", "c?d"]


@pytest.mark.parametrize(
    ("state", "colour"),
    [
        ("OK", "\x1b[32m"),
        ("topic paused", "\x1b[33m"),
        ("no consumers ×2", "\x1b[33m"),
        ("stuck", "\x1b[1;31m"),
        ("paused, stuck", "\x1b[1;31m"),
        ("no answer", "\x1b[1;31m"),
        ("http://a:1/ping: refused", "\x1b[1;31m"),
        ("-", ""),
    ],
)
def test_a_colour_says_how_bad_it_is_on_a_terminal_without_no_color(state: str, colour: str) -> None:
    for environment, wanted in [({}, colour), ({"NO_COLOR": "1"}, "")]:
        found = io.StringIO()
        console = Console(file=found, force_terminal=True, _environ={"TERM": "xterm-256color", **environment})
        console.print(table_lines(["STATE", "REASON"], [[state, "stuck"]])[1], soft_wrap=True)
        assert found.getvalue().count("\x1b[3") + found.getvalue().count("\x1b[1;3") == bool(wanted)
        assert wanted in found.getvalue()


@given(st.lists(st.tuples(st.text("ab", max_size=20), st.integers(0, 10**9), st.text("cd", max_size=20))))
def test_every_width_is_kept_once_all_but_one_column_may_go(rows: list[tuple[str, int, str]]) -> None:
    found = table_lines(HEADINGS, rows, width=40, dispensable=("DEPTH", "NOTE"))
    assert len(found) == len(rows) + 1
    assert max(len(each.plain.rstrip()) for each in found) <= 40
