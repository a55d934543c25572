"""The tables and the JSON of all commands.

A Grid is a table's columns: which of them fit, and how wide each is. It writes lines of rich text, which a console
colours if it is a terminal, and if NO_COLOR is not set. A colour says that something is well, unusual or wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import click
from rich.cells import set_cell_size
from rich.console import Console
from rich.text import Text

from gnsq_like.cli.tool_options import printable

#: A cell: numbers are shown with separators, and on the right; None as a dash.
Cell = str | int | float | None
#: Blanks between two columns.
_GAP = 2
#: Columns of which a cell may be coloured, and what is merely unusual in them; a STATE other than these is wrong.
_COLOURED = ("STATE", "PAUSED")
_UNUSUAL = re.compile(r"yes|((topic |partly )*paused|no consumers|many retries|no channel|on no nsqd|[ ×\d,])+")


class Grid:
    """The columns of a table that fit, and how wide each is.

    :param rows: texts; those that are looked at for the widths
    :param width: columns of the terminal; None for any
    :param dispensable: the headings that a table wider than that does without, from the first on
    :param right: the headings whose cells are on the right
    :param least: least widths, by heading
    :param longest: characters of a cell that are shown at most
    """

    def __init__(
        self,
        headings: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        width: int | None = None,
        dispensable: Iterable[str] = (),
        right: Collection[str] = (),
        least: Mapping[str, int] | None = None,
        longest: int | None = None,
    ) -> None:
        self._headings = headings
        self._right = right
        self._longest = longest
        widths = [max(len(name), (least or {}).get(name, 0)) for name in headings]
        for row in rows:
            widths = [max(least, len(self._cut(cell))) for least, cell in zip(widths, row, strict=True)]
        #: The places of the columns that are shown.
        self._shown = [*range(len(headings))]
        for name in dispensable:
            if width is None or sum(widths[at] + _GAP for at in self._shown) - _GAP <= width:
                break
            self._shown.remove(headings.index(name))
        #: What is shown, by heading: how wide each column is, and its first cell.
        self.widths = {headings[at]: widths[at] for at in self._shown}
        self.starts = {
            name: sum([*self.widths.values()][:number]) + _GAP * number for number, name in enumerate(self.widths)
        }

    def _cut(self, cell: str) -> str:
        cell = printable(cell)
        return f"{cell[: self._longest - 1]}…" if self._longest and len(cell) > self._longest else cell

    def heading(self, marks: Mapping[str, str] | None = None) -> Text:
        """The headings, and a mark after some of them."""
        return self._line([name + (marks or {}).get(name, "") for name in self._headings], "bold", coloured=False)

    def line(self, row: Sequence[str], style: str = "") -> Text:
        """A row."""
        return self._line(row, style, coloured=True)

    def _line(self, row: Sequence[str], style: str, *, coloured: bool) -> Text:
        line = Text(style=style)
        for at in self._shown:
            name, cell = self._headings[at], self._cut(row[at])
            width = self.widths[name]
            text = cell.rjust(width) if name in self._right else cell
            colour = _colour(cell) if coloured and name in _COLOURED else ""
            line.append(" " * _GAP * bool(line)).append(set_cell_size(text, width), colour)
        return line

    def column_at(self, place: int) -> str:
        """The heading of the column at this cell."""
        return [name for name, start in self.starts.items() if start <= place][-1]


def _colour(cell: str) -> str:
    if cell in ("", "-", "no", "OK"):
        return "green" if cell == "OK" else ""
    return "yellow" if _UNUSUAL.fullmatch(cell) else "bold red"


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def table_lines(
    headings: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    width: int | None = None,
    dispensable: Sequence[str] = (),
) -> list[Text]:
    """A table: its headings and its rows; see :class:`Grid`."""
    found = [*rows]
    right = {name for at, name in enumerate(headings) if any(isinstance(row[at], int | float) for row in found)}
    texts = [[_text(cell) for cell in row] for row in found]
    grid = Grid(headings, texts, width=width, dispensable=dispensable, right=right)
    return [grid.heading(), *map(grid.line, texts)]


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], dispensable: Sequence[str] = ()) -> None:
    """Print a table: on a terminal without the columns that do not fit, elsewhere whole."""
    console = Console()
    width = console.width if console.is_terminal else None
    for line in table_lines(headings, rows, width=width, dispensable=dispensable):
        line.rstrip()
        console.print(line, soft_wrap=True)


def print_json(value: object) -> None:
    """Print a value, with its dataclasses as objects."""
    click.echo(json.dumps(value, indent=2, default=_as_dict))


def _as_dict(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{value!r} has no JSON")


def warn(errors: Iterable[BaseException]) -> None:
    """Print errors that did not prevent an answer, one line each, on stderr."""
    console = Console(stderr=True)
    for error in errors:
        text = printable(" ".join(str(error).split()))
        console.print(Text.assemble(("Warning:", "yellow"), " ", text), soft_wrap=True)


def yes_or_no(value: bool) -> str:
    return "yes" if value else "no"
