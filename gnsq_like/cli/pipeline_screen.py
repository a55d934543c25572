"""What ``gnsq-like pipeline`` shows while it runs: a live panel on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from gnsq_like.cli.screen import has_room

if TYPE_CHECKING:
    from gnsq_like.spark.pipeline import Snapshot

#: Lines and columns below which there is no panel.
_WIDTH, _HEIGHT = 60, 8
#: Seconds between two plain lines.
_LINE_INTERVAL = 5.0


class View:
    """Shows nothing: the base of the others, and ``--quiet``."""

    def say(self, line: str) -> None:
        """Show a line that stays."""

    def update(self, snapshot: Snapshot) -> None:
        """Show how far the run is."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The updates are over."""


class LineView(View):
    """A line every few seconds, when something has changed: for files and pipes."""

    def __init__(self) -> None:
        #: When the next line is due (monotonic), and what the last one said.
        self._due = 0.0
        self._said = ""

    def say(self, line: str) -> None:
        click.echo(line)

    def update(self, snapshot: Snapshot) -> None:
        now = time.monotonic()
        if now < self._due or snapshot.is_over:
            return
        self._due = now + _LINE_INTERVAL
        line = "; ".join(f"{name} {value}" for name, value in cells(snapshot))
        if line != self._said:
            self._said = line
            click.echo(f"{snapshot.seconds:6.1f} s: {line}")


class LiveView(View):
    """A panel that is drawn again and again in its place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Its own refreshing would be a thread; update() comes often enough.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._is_live = False

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False)

    def update(self, snapshot: Snapshot) -> None:
        if not self._is_live:
            self._is_live = True
            self._live.start()
        table = Table.grid(padding=(0, 3, 0, 0))
        shown = cells(snapshot)
        for _ in shown:
            table.add_column(justify="right", no_wrap=True, min_width=8)
        table.add_row(*(name for name, _ in shown), style="dim")
        table.add_row(*(value for _, value in shown))
        table.caption = f"{snapshot.seconds:.0f} s; Ctrl-C ends it"
        self._live.update(table, refresh=True)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def make_view(*, quiet: bool) -> View:
    """The view that suits stdout."""
    if quiet:
        return View()
    console = Console()
    return LiveView(console) if has_room(console, _WIDTH, _HEIGHT) else LineView()


def cells(snapshot: Snapshot) -> list[tuple[str, str]]:
    """What is shown of a run, with its names."""
    return [
        ("messages", f"{snapshot.messages:,}"),
        ("rejected", f"{snapshot.rejected:,}"),
        ("msgs/s", f"{snapshot.rate:,.0f}"),
        ("lag", "–" if snapshot.lag is None else f"{snapshot.lag:,.1f} s"),
        ("waiting", "–" if snapshot.depth is None else f"{snapshot.depth:,}"),
        ("batches", f"{snapshot.batches:,}"),
    ]


def summary(snapshot: Snapshot) -> str:
    """What a run did, as a line."""
    copies = f", {snapshot.duplicates:,} copies dropped" if snapshot.duplicates else ""
    return (
        f"{snapshot.messages - snapshot.rejected:,} messages written and {snapshot.rejected:,} rejected in "
        f"{snapshot.batches:,} batches and {snapshot.seconds:.1f} s, {snapshot.rate:,.0f} a second{copies}."
    )
