"""``gnsq-like top``: topics, channels, clients and nodes of a cluster, on the whole screen."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import click

from gnsq_like.cli.daemon_flags import asks_cluster
from gnsq_like.cli.exits import CannotRun, result_of
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.tool_file import named_files
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
    topic or the clients of a channel, Space holds the figures, q quits. After a question, p pauses or unpauses the
    topic or channel under the cursor, e empties it, and t shows the messages of its topic.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CannotRun('it needs a terminal; "topic list", "nodes" and "stat" print, also as JSON')
    from gnsq_like.cli.top_figures import Poll
    from gnsq_like.cli.top_screen import Top, show

    poll = Poll(daemons)
    environment = {**os.environ, **named_files(click.get_current_context())}

    def tail(topic: str) -> None:
        """Show its messages, with the options of the same context and file."""
        if daemons.lookupd_http_addresses:
            where = [f"--lookupd={address}" for address in daemons.lookupd_http_addresses]
        else:
            where = [f"--nsqd={address}" for address in poll.tcp_addresses()]
            where += [f"--nsqd-http-address={address}" for address in daemons.nsqd_http_addresses]
        command = [sys.executable, "-m", "gnsq_like", "tail", topic, *where]
        if subprocess.run(command, env=environment, check=False).returncode:
            input("Enter goes back ")

    try:
        first = result_of(poll.take)
        if first.is_silent:
            raise click.ClickException("; ".join(" ".join(each.split()) for each in first.warnings))
        show(Top(view=view, words=words, first=first), poll, interval, tail)
    finally:
        result_of(poll.close)
