"""The display of ``gnsq-like cluster``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gnsq_like.cli.screen import Layout

#: Columns from which on the table has all of its own.
_WIDE = 120


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
class ClusterSnapshot:
    """The cluster at one moment."""

    seconds: float
    nsqds: Sequence[NsqdRow]
    lookupds: Sequence[LookupdRow]
    #: How many different ones there are on all nsqds.
    topics: int
    channels: int

    @property
    def total(self) -> NsqdRow:
        """The sums over all nsqds."""
        names = ("depth", "in_flight", "deferred", "clients", "published_per_second", "finished_per_second")
        sums = {name: sum(getattr(row, name) for row in self.nsqds) for name in names}
        return NsqdRow("all", "", "", 0, self.topics, self.channels, **sums)

    @property
    def problems(self) -> list[tuple[str, str]]:
        """Names of daemons without figures, and why they have none."""
        rows: list[NsqdRow | LookupdRow] = [*self.lookupds, *self.nsqds]
        return [(row.name, row.problem) for row in rows if row.problem]


class ClusterLayout(Layout[ClusterSnapshot]):
    """A row for each nsqd and nsqlookupd, and one for the sums."""

    least_size = (80, 12)

    def line(self, snapshot: ClusterSnapshot) -> str:
        total = snapshot.total
        return "; ".join(
            [
                f"{total.topics:,} topics, {total.channels:,} channels, depth {total.depth:,}, "
                f"{total.in_flight:,} in flight, {total.deferred:,} deferred, {total.clients:,} clients",
                f"{total.published_per_second:,.0f} messages/s in, {total.finished_per_second:,.0f} finished",
                *(f"{name} {problem}" for name, problem in snapshot.problems),
            ]
        )

    def table(self, snapshot: ClusterSnapshot, width: int, height: int) -> RenderableType:
        is_wide = width >= _WIDE
        table = Table.grid(padding=(0, 2 if is_wide else 1, 0, 0))
        places = ["", "TCP", *(["HTTP", "node id"] if is_wide else [])]
        for _ in places:
            table.add_column(no_wrap=True)
        figures = ["topics", "channels", "depth", "in flight", *(["deferred"] if is_wide else [])]
        figures += ["clients", "in/s", "done/s"]
        for heading in figures:
            # Of one width as far as possible, or the columns would jump.
            table.add_column(justify="right", no_wrap=True, min_width=max(5, len(heading)))
        table.add_row(*places, *figures, style="dim")
        # The row of sums counts the nsqds for which there is no room.
        for row in snapshot.nsqds[: max(1, height - len(snapshot.lookupds) - 7)]:
            node_id = [str(row.node_id)] if is_wide else []
            table.add_row(*_place(row, is_wide), *node_id, *([] if row.problem else _figures(row, is_wide)))
        if len(snapshot.nsqds) > 1:
            blanks = [""] * (len(places) - 1)
            table.add_row("all", *blanks, *_figures(snapshot.total, is_wide), style="bold")
        for lookupd in snapshot.lookupds:
            counts = [f"{lookupd.topics:,}", f"{lookupd.nsqds:,} nsqds"]
            table.add_row(*_place(lookupd, is_wide), *([""] if is_wide else []), *([] if lookupd.problem else counts))
        problems = [Text(f"{name}: {text}", style="red", no_wrap=True) for name, text in snapshot.problems]
        return Group(table, *problems, Text(f"{snapshot.seconds:.0f} s; Ctrl-C ends it", style="dim"))


def _place(row: NsqdRow | LookupdRow, is_wide: bool) -> list[str | Text]:
    """A daemon's name and addresses."""
    name = row.name if is_wide else row.name.replace("nsqlookupd", "lookupd")
    http = [row.http_address] if is_wide else []
    return [Text(name, style="red" if row.problem else ""), row.tcp_address, *http]


def _figures(row: NsqdRow, is_wide: bool) -> list[str]:
    counts = [row.topics, row.channels, row.depth, row.in_flight, *([row.deferred] if is_wide else []), row.clients]
    return [f"{figure:,.0f}" for figure in (*counts, row.published_per_second, row.finished_per_second)]
