"""Tables of text."""

from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.cli.tables import Cell, table_lines

HEADINGS = ("NAME", "DEPTH", "NOTE")
ROWS: list[list[Cell]] = [["a", 1_234_567, "x"], ["longer", 8, None]]


def test_numbers_are_on_the_right() -> None:
    assert table_lines(HEADINGS, ROWS) == ["NAME        DEPTH  NOTE", "a       1,234,567  x", "longer          8  -"]


def test_columns_that_do_not_fit_are_left_out() -> None:
    assert table_lines(HEADINGS, ROWS, width=23, dispensable=("NOTE",))[0] == "NAME        DEPTH  NOTE"
    assert table_lines(HEADINGS, ROWS, width=22, dispensable=("NOTE",))[0] == "NAME        DEPTH"
    assert table_lines(HEADINGS, ROWS, width=1, dispensable=("NOTE", "DEPTH"))[1:] == ["a", "longer"]


@given(st.lists(st.tuples(st.text("ab", max_size=20), st.integers(0, 10**9), st.text("cd", max_size=20))))
def test_every_width_is_kept_once_all_but_one_column_may_go(rows: list[tuple[str, int, str]]) -> None:
    lines = table_lines(HEADINGS, rows, width=40, dispensable=("DEPTH", "NOTE"))
    assert len(lines) == len(rows) + 1
    assert max(map(len, lines)) <= 40
