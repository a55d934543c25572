"""The display of ``gnsq-like demo``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gnsq_like.cli.screen import Layout

#: Columns from which on the table has its bars.
_BAR_WIDTH = 76
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
class DemoSnapshot:
    """The demo at one moment."""

    seconds: float
    messages: int
    published: int
    per_second: float
    channels: Sequence[ChannelRow]
    #: Whether this is the last one.
    is_over: bool


class DemoLayout(Layout[DemoSnapshot]):
    """A row for the published messages and one for each channel, with bars if there is room."""

    least_size = (60, 12)

    def line(self, snapshot: DemoSnapshot) -> str:
        channels = "; ".join(
            f"{row.name} {row.handled:,}, {row.in_flight:,} in flight, {row.requeued:,} requeued"
            for row in snapshot.channels
        )
        rate = sum(row.per_second for row in snapshot.channels)
        return f"published {snapshot.published:,} of {snapshot.messages:,}; {channels}; {rate:,.0f} messages/s"

    def table(self, snapshot: DemoSnapshot, width: int, height: int) -> RenderableType:
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
        foot = "" if snapshot.is_over else f"{snapshot.seconds:.0f} s; Ctrl-C ends it"
        return Group("", table, Text(foot, style="dim"))
