"""What the demo shows while it runs: a live table on a terminal, plain lines elsewhere, or nothing.

Nothing here runs by itself: the demo calls :meth:`View.update` every ``interval`` seconds.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

#: Columns from which on the table has its bars, and lines and columns below which there is no table.
_BAR_WIDTH = 76
_TABLE_WIDTH = 60
_TABLE_HEIGHT = 12
#: A wider table than this is harder to read.
_WIDEST_TABLE = 100


@dataclass(frozen=True)
class ChannelRow:
    """One channel at one moment."""

    name: str
    handled: int
    per_second: float
    in_flight: int
    waiting: int
    requeued: int


@dataclass(frozen=True)
class Snapshot:
    """The demo at one moment."""

    elapsed: float
    messages: int
    published: int
    per_second: float
    channels: Sequence[ChannelRow]
    #: Whether this is the last one.
    is_over: bool


class View:
    """Shows nothing: the base of the others, and ``--quiet``."""

    #: Seconds between two updates.
    interval = 1.0

    def say(self, line: str) -> None:
        """Show a line that stays."""

    def update(self, snapshot: Snapshot) -> None:
        """Show how far the demo is."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The updates are over."""


class LineView(View):
    """Plain lines, one every few seconds: for files, pipes, and terminals too small for a table."""

    interval = 0.1
    #: Seconds between two lines.
    line_interval = 2.0

    def __init__(self, width: int | None) -> None:
        #: Columns of the terminal; None where it is none, and lines may have any length.
        self._width = width
        #: When the next line is due (monotonic), and what it would say.
        self._due = 0.0
        self._last: Snapshot | None = None

    def say(self, line: str) -> None:
        click.echo(line if self._width is None else textwrap.fill(line, self._width, subsequent_indent="    "))

    def update(self, snapshot: Snapshot) -> None:
        self._last = snapshot
        if time.monotonic() >= self._due:
            self._print(snapshot)

    def _print(self, snapshot: Snapshot) -> None:
        self._due = time.monotonic() + self.line_interval
        self._last = None
        channels = "; ".join(
            f"{row.name} {row.handled:,}, {row.in_flight:,} in flight, {row.requeued:,} requeued"
            for row in snapshot.channels
        )
        rate = sum(row.per_second for row in snapshot.channels)
        self.say(
            f"{snapshot.elapsed:5.1f} s: published {snapshot.published:,} of {snapshot.messages:,}; {channels}; "
            f"{rate:,.0f} messages/s"
        )

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._last is not None and exc is None:
            self._print(self._last)


class LiveView(View):
    """A table with bars that is drawn again and again in its place."""

    interval = 0.1

    def __init__(self, console: Console) -> None:
        self._console = console
        # Its own refreshing would be a thread, which a busy hub starves; update() comes often enough.
        self._live = Live(console=console, auto_refresh=False)

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False)

    def update(self, snapshot: Snapshot) -> None:
        self._live.update(_table(snapshot, self._console.width), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def make_view(*, quiet: bool) -> View:
    """The view that suits stdout."""
    if quiet:
        return View()
    console = Console()
    if has_room(console, _TABLE_WIDTH, _TABLE_HEIGHT):
        return LiveView(console)
    return LineView(console.width if console.is_terminal else None)


def has_room(console: Console, width: int, height: int) -> bool:
    """Whether stdout is a terminal that a table of so many columns and lines can be drawn on, again and again."""
    return console.is_terminal and not console.is_dumb_terminal and console.width >= width and console.height >= height


def _table(snapshot: Snapshot, width: int) -> Group:
    has_bars = width >= _BAR_WIDTH
    table = Table.grid(padding=(0, 2, 0, 0))
    table.width = min(width, _WIDEST_TABLE) if has_bars else None
    table.add_column(no_wrap=True)
    if has_bars:
        table.add_column(ratio=1)
    # Of one width from beginning to end, or the bars would jump.
    for least in (len(f"{snapshot.messages:,}"), 6, 9, 7, 8):
        table.add_column(justify="right", no_wrap=True, min_width=least)
    headings = ["", *([""] if has_bars else []), "messages", "msgs/s", "in flight", "waiting", "requeued"]
    table.add_row(*headings, style="dim")

    def add(name: str, count: int, per_second: float, *others: int) -> None:
        bar = ProgressBar(snapshot.messages, count, complete_style="cyan", finished_style="green")
        numbers = [f"{count:,}", f"{per_second:,.0f}", *(f"{number:,}" for number in others)]
        table.add_row(name, *([bar] if has_bars else []), *numbers)

    add("published", snapshot.published, snapshot.per_second)
    for row in snapshot.channels:
        add(row.name, row.handled, row.per_second, row.in_flight, row.waiting, row.requeued)
    foot = "" if snapshot.is_over else f"{snapshot.elapsed:.0f} s; Ctrl-C ends it"
    return Group("", table, Text(foot, style="dim"))
