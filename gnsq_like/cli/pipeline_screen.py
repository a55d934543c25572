"""The display of ``gnsq-like pipeline``, and its summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

from gnsq_like.cli.screen import Layout

if TYPE_CHECKING:
    from gnsq_like.spark.pipeline import Snapshot


class PipelineLayout(Layout["Snapshot"]):
    """A row of figures, which the summary replaces."""

    least_size = (60, 8)
    line_interval = 5.0
    is_transient = True

    def line(self, snapshot: Snapshot) -> str:
        return "" if snapshot.is_over else "; ".join(f"{name} {value}" for name, value in cells(snapshot))

    def table(self, snapshot: Snapshot, width: int, height: int) -> RenderableType:
        table = Table.grid(padding=(0, 3, 0, 0))
        shown = cells(snapshot)
        for _ in shown:
            table.add_column(justify="right", no_wrap=True, min_width=8)
        table.add_row(*(name for name, _ in shown), style="dim")
        table.add_row(*(value for _, value in shown))
        table.caption = f"{snapshot.seconds:.0f} s; Ctrl-C ends it"
        return table


def cells(snapshot: Snapshot) -> list[tuple[str, str]]:
    """The figures of a run: names and values."""
    return [
        ("messages", f"{snapshot.messages:,}"),
        ("rejected", f"{snapshot.rejected:,}"),
        ("msgs/s", f"{snapshot.rate:,.0f}"),
        ("lag", "–" if snapshot.lag is None else f"{snapshot.lag:,.1f} s"),
        ("waiting", "–" if snapshot.depth is None else f"{snapshot.depth:,}"),
        ("batches", f"{snapshot.batches:,}"),
    ]


def summary(snapshot: Snapshot) -> str:
    """The result of a run, as a line."""
    written = snapshot.messages - snapshot.rejected
    return (
        f"{written:,} messages written and {snapshot.rejected:,} rejected in "
        f"{snapshot.batches:,} batches and {snapshot.seconds:.1f} s, {snapshot.rate:,.0f} a second."
    )
