"""``gnsq-like top``: topics, channels, clients and nodes of a cluster, on the whole screen."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from gnsq_like.cli.daemon_flags import asks_cluster
from gnsq_like.cli.exits import CannotRun, result_of
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.tool_options import Duration, option

if TYPE_CHECKING:
    from gnsq_like.tools.daemons import Daemons


@click.command("top", cls=ToolCommand)
@option("--interval", type=Duration(above_zero=True), default="2s", help="Time between two looks.")
@option(
    "--view",
    type=click.Choice(["topics", "channels", "clients", "nodes"]),
    default="topics",
    help="What is shown first.",
)
@option("--filter", "words", default="", metavar="WORDS", help="Show only rows with these words.")
@asks_cluster
def top(daemons: Daemons, interval: float, view: str, words: str, verbose: bool) -> None:
    """Show topics, channels, clients and nodes on the whole screen.

    Keys: 1 to 4 choose the table, s the column to sort by, r its direction, / filters, Enter shows the channels of a
    topic or the clients of a channel, p pauses, q quits.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CannotRun('it needs a terminal; "topic list", "nodes" and "stat" print, also as JSON')
    from gnsq_like.cli.top_figures import Poll
    from gnsq_like.cli.top_screen import Top, show

    poll = Poll(daemons)
    try:
        first = result_of(poll.take)
        if first.is_silent:
            raise click.ClickException("; ".join(" ".join(each.split()) for each in first.warnings))
        show(Top(view=view, words=words, first=first), poll, interval)
    finally:
        result_of(poll.close)
