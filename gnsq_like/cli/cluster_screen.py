"""The display of ``gnsq-like cluster``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gnsq_like.cli.screen import Layout

_PLACES = ("", "TCP", "HTTP", "node id")
_FIGURES = ("topics", "channels", "depth", "in flight", "deferred", "clients", "in/s", "done/s")
#: What a table that is too wide does without, from the first on.
_DISPENSABLE = ("node id", "HTTP", "deferred", "clients", "TCP", "channels", "topics", "in flight")
#: The least width of a figure: columns would jump if each were as wide as its figures.
_LEAST_WIDTH = 5


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
        rows = _rows(snapshot, height)
        headings, padding = _fitting(rows, width)
        table = Table.grid(padding=(0, padding, 0, 0))
        for heading in headings:
            if heading in _PLACES:
                table.add_column(no_wrap=True)
            else:
                table.add_column(justify="right", no_wrap=True, min_width=max(_LEAST_WIDTH, len(heading)))
        table.add_row(*headings, style="dim")
        for row in rows:
            cells = [Text(row.cells.get(heading, "")) for heading in headings]
            cells[0] = Text(_name(row.cells[""], headings), style=row.name_style)
            table.add_row(*cells, style=row.style)
        problems = [Text(f"{name}: {text}", style="red", no_wrap=True) for name, text in snapshot.problems]
        return Group(table, *problems, Text(f"{snapshot.seconds:.0f} s; Ctrl-C ends it", style="dim"))


@dataclass(frozen=True)
class _Row:
    """A row of the table: its cells by their columns' headings."""

    cells: dict[str, str]
    name_style: str = ""
    style: str = ""


def _rows(snapshot: ClusterSnapshot, height: int) -> list[_Row]:
    rows = []
    # The row of sums counts the nsqds for which there is no room.
    for row in snapshot.nsqds[: max(1, height - len(snapshot.lookupds) - 7)]:
        cells = _place(row) | {"node id": str(row.node_id)} | ({} if row.problem else _figures(row))
        rows.append(_Row(cells, "red" if row.problem else ""))
    if len(snapshot.nsqds) > 1:
        rows.append(_Row({"": "all"} | _figures(snapshot.total), style="bold"))
    for lookupd in snapshot.lookupds:
        counts = {"topics": f"{lookupd.topics:,}", "channels": f"{lookupd.nsqds:,} nsqds"}
        rows.append(_Row(_place(lookupd) | ({} if lookupd.problem else counts), "red" if lookupd.problem else ""))
    return rows


def _fitting(rows: list[_Row], width: int) -> tuple[list[str], int]:
    """The columns that fit, and the spaces between them."""
    headings = [*_PLACES, *_FIGURES]
    for dispensable in _DISPENSABLE:
        needed = sum(_width(rows, heading, headings) for heading in headings)
        gaps = len(headings) - 1
        if needed + 2 * gaps <= width:
            return headings, 2
        if needed + gaps <= width:
            return headings, 1
        headings.remove(dispensable)
    return headings, 1


def _width(rows: list[_Row], heading: str, headings: list[str]) -> int:
    if not heading:
        return max(len(_name(row.cells[""], headings)) for row in rows)
    least = 0 if heading in _PLACES else _LEAST_WIDTH
    return max(least, len(heading), *(len(row.cells.get(heading, "")) for row in rows))


def _name(name: str, headings: list[str]) -> str:
    return name if "HTTP" in headings else name.replace("nsqlookupd", "lookupd")


def _place(row: NsqdRow | LookupdRow) -> dict[str, str]:
    """A daemon's name and addresses."""
    return {"": row.name, "TCP": row.tcp_address, "HTTP": row.http_address}


def _figures(row: NsqdRow) -> dict[str, str]:
    counts = [row.topics, row.channels, row.depth, row.in_flight, row.deferred, row.clients]
    figures = [*counts, row.published_per_second, row.finished_per_second]
    return {heading: f"{figure:,.0f}" for heading, figure in zip(_FIGURES, figures, strict=True)}
