"""Plain tables and JSON on stdout, for commands that print once and end."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import click

#: A cell: numbers are shown with separators, and on the right; None as a dash.
Cell = str | int | float | None
_GAP = 2


def table_lines(
    headings: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    width: int | None = None,
    dispensable: Sequence[str] = (),
) -> list[str]:
    """A table as lines, the first of which are the headings.

    :param width: columns of the terminal; None for any width
    :param dispensable: the columns that a table wider than that does without, from the first on
    """
    found = [*rows]
    numeric = [any(isinstance(row[at], int | float) for row in found) for at in range(len(headings))]
    cells = [[*headings], *([_text(cell) for cell in row] for row in found)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(headings))]
    shown = [*range(len(headings))]
    for heading in dispensable:
        if width is None or sum(widths[at] + _GAP for at in shown) - _GAP <= width:
            break
        shown.remove(headings.index(heading))
    return [
        (" " * _GAP)
        .join(row[at].rjust(widths[at]) if numeric[at] else row[at].ljust(widths[at]) for at in shown)
        .rstrip()
        for row in cells
    ]


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], dispensable: Sequence[str] = ()) -> None:
    """Print a table: on a terminal without the columns that do not fit, elsewhere whole."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in table_lines(headings, rows, width=width, dispensable=dispensable):
        click.echo(line)


def print_json(value: Any) -> None:
    """Print a value, with its dataclasses as objects."""
    click.echo(json.dumps(value, indent=2, default=_as_dict))


def _as_dict(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{value!r} has no JSON")


def warn(errors: Iterable[BaseException]) -> None:
    """Print errors that did not prevent an answer, one line each, on stderr."""
    for error in errors:
        click.echo(f"Warning: {' '.join(str(error).split())}", err=True)


def yes_or_no(value: bool) -> str:
    return "yes" if value else "no"
