"""``gnsq-like stat``: the figures of a channel, line by line; NSQ's nsq_stat."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from gnsq_like.cli.cluster_flags import asks_cluster
from gnsq_like.cli.exits import INTERRUPTED_STATUS, StdoutFailed, discard_stdout, interrupted_is, until_a_signal
from gnsq_like.cli.tables import warn
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.tool_options import Duration, Integer, option, switch

if TYPE_CHECKING:
    from gnsq_like.cluster.counting import Report
    from gnsq_like.cluster.daemons import Daemons
    from gnsq_like.cluster.rounds import Unreachable

#: Lines between two headings.
_HEADING_EVERY = 25
#: Columns by group: heading, width.
_GROUPS = {
    "rate": {"ingress": 7, "egress": 7},
    "depth": {"total": 7, "mem": 7, "disk": 7, "inflt": 5, "def": 5},
    "metadata": {"req": 7, "t-o": 7, "msgs": 12, "clients": 7},
}
#: The columns to drop on a narrow terminal, in this order.
_DISPENSABLE = ("mem", "disk", "t-o", "req", "def")


@click.command("stat", cls=ToolCommand)
@option("--topic", word=True, help="Topic.")
@option("--channel", word=True, help="Channel.")
@option("--interval", type=Duration(above_zero=True), default="2s", help="Time between two reports.")
@option("--count", type=Integer(1), help="Number of reports; without it, until a signal ends the command.")
@switch("--once", help="Print one report at once, without rates.")
@switch("--json", "as_json", help="Print each report as a JSON object.")
@asks_cluster
def stat(
    daemons: Daemons,
    topic: str | None,
    channel: str | None,
    interval: float,
    count: int | None,
    once: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    """Show the rates and counts of a channel repeatedly.

    They are totals of all nsqds. INGRESS is the number of messages per second that entered the channel, EGRESS the
    number of deliveries, redeliveries included. An nsqd that does not answer causes a warning, and is missing in the
    totals.
    """
    from gnsq_like.cluster.counting import report_once, reports
    from gnsq_like.cluster.operations import check_name

    if not topic or not channel:
        raise click.UsageError("--topic and --channel are required")
    check_name("topic", topic)
    check_name("channel", channel)
    show = _as_json if as_json else _Table().show

    def run() -> int:
        if once:
            _show(report_once(daemons, topic, channel), show)
            return 0
        for number, report in enumerate(reports(daemons, topic, channel, interval), 1):
            _show(report, show)
            if number == count:
                break
        return 0

    try:
        with interrupted_is(INTERRUPTED_STATUS if once or count else 0):
            until_a_signal(run)
    except StdoutFailed as exc:
        if exc.errno != errno.EPIPE:
            raise
        discard_stdout()  # the reader of the pipe has closed it, as head(1) does


def _show(report: Report | Unreachable, show: Callable[[Report], None]) -> None:
    if isinstance(report, BaseException):
        warn([report])
        return
    warn(report.failures)
    show(report)


def _as_json(report: Report) -> None:
    count = report.count
    from gnsq_like.cluster.figures import CHANNEL_COUNTS

    found = {
        "time": report.time,
        "topic": count.topic_name,
        "channel": count.channel_name,
        "ingress": report.ingress,
        "egress": report.egress,
        **{name: getattr(count, name) for name in (*CHANNEL_COUNTS, "client_count", "paused")},
        "nodes": [*count.by_node],
    }
    click.echo(json.dumps(found))


class _Table:
    """The lines of nsq_stat; without the columns for which a terminal is too narrow."""

    def __init__(self) -> None:
        self._lines = 0
        self._width: int | None = None

    def show(self, report: Report) -> None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        groups = fitting(width)
        if self._lines % _HEADING_EVERY == 0 or width != self._width:
            self._width = width
            for line in heading(groups):
                click.echo(line)
        self._lines += 1
        click.echo(row(groups, _cells(report)))


def _cells(report: Report) -> dict[str, str]:
    count = report.count
    figures = {
        "ingress": report.ingress,
        "egress": report.egress,
        "total": count.depth,
        "mem": count.memory_depth,
        "disk": count.backend_depth,
        "inflt": count.in_flight_count,
        "def": count.deferred_count,
        "req": count.requeue_count,
        "t-o": count.timeout_count,
        "msgs": count.message_count,
        "clients": count.client_count,
    }
    return {name: "-" if figure is None else str(int(figure)) for name, figure in figures.items()}


#: Widths of columns by heading, by group.
Groups = dict[str, dict[str, int]]


def fitting(width: int | None) -> Groups:
    """The columns that fit into a terminal of this width; all of them if it is None."""
    groups = {name: dict(columns) for name, columns in _GROUPS.items()}
    for name in _DISPENSABLE:
        if width is None or len(heading(groups)[1]) <= width:
            break
        for columns in groups.values():
            columns.pop(name, None)
    return groups


def heading(groups: Groups) -> list[str]:
    """The two lines above the columns."""
    widths = [sum(columns.values()) + len(columns) + 1 for columns in groups.values()]
    # The outer groups have a blank on one side only.
    widths[0] -= 1
    widths[-1] -= 1
    names = "+".join(
        name.rjust((width + len(name)) // 2, "-").ljust(width, "-") for name, width in zip(groups, widths, strict=True)
    )
    return [names, row(groups, {name: name for columns in groups.values() for name in columns})]


def row(groups: Groups, cells: dict[str, str]) -> str:
    """A line of the table."""
    return " | ".join(
        " ".join(cells[name].rjust(width) for name, width in columns.items()) for columns in groups.values()
    )
