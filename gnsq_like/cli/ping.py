"""``gnsq-like ping``: whether the daemons of a cluster answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gnsq_like.cli.changes import plural
from gnsq_like.cli.daemon_flags import asks_each, json_switch
from gnsq_like.cli.exits import result_of
from gnsq_like.cli.tables import Cell, print_json, print_table
from gnsq_like.cli.tool_command import ToolCommand

if TYPE_CHECKING:
    from gnsq_like.tools.daemons import Daemons


@click.command("ping", cls=ToolCommand)
@json_switch
@asks_each
def ping(daemons: Daemons, as_json: bool, verbose: bool) -> None:
    """Ask the daemons of a cluster whether they are well.

    The given ones, and the nsqds that the nsqlookupds know. An nsqd that cannot write to its disk answers, and is not
    well. The exit status is 1 if one of them is not well.
    """
    from gnsq_like.tools.pinging import ping

    found = result_of(lambda: ping(daemons))
    if as_json:
        print_json(found)
    else:
        rows: list[list[Cell]] = [
            [each.kind, each.http_address, each.version or "-", _milliseconds(each.seconds), each.problem or "OK"]
            for each in found
        ]
        print_table(("DAEMON", "ADDRESS", "VERSION", "MS", "STATE"), rows, ("VERSION", "MS"))
    problems = sum(bool(each.problem) for each in found)
    if problems:
        raise click.ClickException(f"{plural(problems, 'daemon')} of {len(found):,} not well")


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
