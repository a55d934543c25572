"""The tables and the JSON of all commands.

A table is lines of rich text, which a console colours if it is a terminal, and if NO_COLOR is not set. A colour says
that something is well, unusual or wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
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
    dispensable: Iterable[str] = (),
) -> list[Text]:
    """A table: its headings and its rows.

    :param width: columns of the terminal; None for any
    :param dispensable: the headings of columns to drop if the table is wider, in this order
    """
    found = [*rows]
    texts = [[printable(_text(cell)) for cell in row] for row in found]
    widths = {name: max(len(name), *(len(row[at]) for row in texts), 0) for at, name in enumerate(headings)}
    right = {name for at, name in enumerate(headings) if any(isinstance(row[at], int | float) for row in found)}
    for name in dispensable:
        if width is None or sum(widths.values()) + _GAP * (len(widths) - 1) <= width:
            break
        del widths[name]

    def line(row: Sequence[str], style: str = "") -> Text:
        cells = []
        for name, cell in zip(headings, row, strict=True):
            if name in widths:
                colour = _colour(cell) if name in _COLOURED and not style else ""
                cells.append(
                    Text(set_cell_size(cell.rjust(widths[name]) if name in right else cell, widths[name]), colour)
                )
        return Text(" " * _GAP, style).join(cells)

    return [line(headings, "bold"), *map(line, texts)]


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], dispensable: Iterable[str] = ()) -> None:
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
