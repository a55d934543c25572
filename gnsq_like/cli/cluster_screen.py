"""What ``gnsq-like cluster`` shows: a live table on a terminal, plain lines elsewhere.

Nothing here runs by itself: the run calls :meth:`View.update` every second.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gnsq_like.cli.screen import has_room

#: Columns from which on the table has all of its own, and below which there is none.
_WIDE = 120
_NARROW = 80
#: Lines of a terminal below which there is no table.
_HEIGHT = 12
#: Seconds between two plain lines.
_LINE_INTERVAL = 2.0


@dataclass(frozen=True)
class NsqdRow:
    """One nsqd at one moment."""

    name: str
    tcp_address: str
    http_address: str
    node_id: int
    topics: int = 0
    channels: int = 0
    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    clients: int = 0
    published_per_second: float = 0.0
    finished_per_second: float = 0.0
    #: Why there are no figures; empty if there are.
    problem: str = ""


@dataclass(frozen=True)
class LookupdRow:
    """One nsqlookupd at one moment."""

    name: str
    tcp_address: str
    http_address: str
    nsqds: int = 0
    topics: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Snapshot:
    """The cluster at one moment."""

    elapsed: float
    nsqds: Sequence[NsqdRow]
    lookupds: Sequence[LookupdRow]
    #: Different ones, over all nsqds.
    topics: int
    channels: int

    def total(self, name: str) -> float:
        """The sum of one of the nsqds' figures."""
        return sum(getattr(row, name) for row in self.nsqds)


class View:
    """Plain lines: for files, pipes, and terminals too small for a table."""

    def __init__(self) -> None:
        #: When the next line is due (monotonic), and what the last one said.
        self._due = 0.0
        self._said = ""

    def say(self, line: str) -> None:
        """Show a line that stays."""
        click.echo(line)

    def say_to_copy(self, line: str) -> None:
        """Show a line that stays, and that is never broken in two."""
        click.echo(line)

    def update(self, snapshot: Snapshot) -> None:
        """Show how things are."""
        if time.monotonic() < self._due:
            return
        said = _line(snapshot)
        if said != self._said:
            self._said = said
            self._due = time.monotonic() + _LINE_INTERVAL
            self.say(f"{snapshot.elapsed:5.0f} s: {said}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The updates are over."""


class LiveView(View):
    """A table that is drawn again and again in its place."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        # Its own refreshing would be a thread, which a busy hub starves; update() comes often enough.
        self._live = Live(console=console, auto_refresh=False)

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False)

    def say_to_copy(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def update(self, snapshot: Snapshot) -> None:
        self._live.update(_table(snapshot, self._console.width, self._console.height), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def make_view() -> View:
    """The view that suits stdout."""
    console = Console()
    return LiveView(console) if has_room(console, _NARROW, _HEIGHT) else View()


def _line(snapshot: Snapshot) -> str:
    rows: list[NsqdRow | LookupdRow] = [*snapshot.lookupds, *snapshot.nsqds]
    problems = [f"{row.name} {row.problem}" for row in rows if row.problem]
    return "; ".join(
        [
            f"{snapshot.topics:,} topics, {snapshot.channels:,} channels, depth {snapshot.total('depth'):,}, "
            f"{snapshot.total('in_flight'):,} in flight, {snapshot.total('deferred'):,} deferred, "
            f"{snapshot.total('clients'):,} clients",
            f"{snapshot.total('published_per_second'):,.0f} messages/s in, "
            f"{snapshot.total('finished_per_second'):,.0f} finished",
            *problems,
        ]
    )


def _table(snapshot: Snapshot, width: int, height: int) -> Group:
    is_wide = width >= _WIDE
    table = Table.grid(padding=(0, 2 if is_wide else 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    where = ["", "TCP", *(["HTTP", "node id"] if is_wide else [])]
    for _ in where[2:]:
        table.add_column(no_wrap=True)
    figures = ["topics", "channels", "depth", "in flight", *(["deferred"] if is_wide else [])]
    figures += ["clients", "in/s", "done/s"]
    for heading in figures:
        # Of one width as far as may be, or the columns would jump.
        table.add_column(justify="right", no_wrap=True, min_width=max(5, len(heading)))
    table.add_row(*where, *figures, style="dim")

    def place(row: NsqdRow | LookupdRow) -> list[str | Text]:
        name = row.name if is_wide else row.name.replace("nsqlookupd", "lookupd")
        http = [row.http_address] if is_wide else []
        return [Text(name, style="red" if row.problem else ""), row.tcp_address, *http]

    def numbers(topics: int, channels: int, figure_of: NsqdRow | None) -> list[str]:
        def figure(name: str) -> str:
            return f"{getattr(figure_of, name) if figure_of else snapshot.total(name):,.0f}"

        deferred = ["deferred"] if is_wide else []
        names = ["depth", "in_flight", *deferred, "clients", "published_per_second", "finished_per_second"]
        return [f"{topics:,}", f"{channels:,}", *map(figure, names)]

    problems = []
    # What does not fit is in the sums.
    shown = max(1, height - len(snapshot.lookupds) - 7)
    for row in snapshot.nsqds[:shown]:
        node_id = [str(row.node_id)] if is_wide else []
        if row.problem:
            problems.append(f"{row.name}: {row.problem}")
            table.add_row(*place(row), *node_id)
        else:
            table.add_row(*place(row), *node_id, *numbers(row.topics, row.channels, row))
    if len(snapshot.nsqds) > 1:
        blanks = [""] * (len(where) - 1)
        table.add_row("all", *blanks, *numbers(snapshot.topics, snapshot.channels, None), style="bold")
    for lookupd in snapshot.lookupds:
        if lookupd.problem:
            problems.append(f"{lookupd.name}: {lookupd.problem}")
            table.add_row(*place(lookupd))
        else:
            blanks = [""] if is_wide else []
            table.add_row(*place(lookupd), *blanks, f"{lookupd.topics:,}", f"{lookupd.nsqds:,} nsqds")
    foot = Text(f"{snapshot.elapsed:.0f} s; Ctrl-C ends it", style="dim")
    return Group(table, *(Text(problem, style="red", no_wrap=True) for problem in problems), foot)
