"""``gnsq-like lookup``: which nsqds have a topic, according to nsqlookupds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gnsq_like.cli.daemon_flags import asks_lookupds, json_switch
from gnsq_like.cli.exits import result_of
from gnsq_like.cli.tables import Cell, print_json, print_table, warn
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.topic import TOPIC

if TYPE_CHECKING:
    from gnsq_like.tools.daemons import Daemons


@click.command("lookup", cls=ToolCommand)
@TOPIC
@json_switch
@asks_lookupds
def lookup(daemons: Daemons, topic: str, as_json: bool, verbose: bool) -> None:
    """Show the nsqds that have a topic.

    This is the answer that the topic's consumers get from nsqlookupds; it leaves out nsqds that are tombstoned for the
    topic.
    """
    found = result_of(lambda: daemons.lookup(topic))
    warn(found.failures.values())
    if as_json:
        nodes = [
            {
                "http_address": node.http_address,
                "tcp_address": node.tcp_address,
                "hostname": node.hostname,
                "version": node.version,
                "lookupds": node.lookupds,
            }
            for node in found.nodes
        ]
        print_json({"topic": topic, "channels": found.channels, "nodes": nodes})
        return
    click.echo(f"{topic}: {'channels ' + ', '.join(found.channels) if found.channels else 'no channel'}")
    if not found.nodes:
        click.echo("no nsqd has it")
        return
    click.echo()
    rows: list[list[Cell]] = [
        [each.http_address, each.tcp_address, each.hostname, each.version, len(each.lookupds)] for each in found.nodes
    ]
    print_table(("NSQD", "TCP", "HOST", "VERSION", "NSQLOOKUPDS"), rows, ("NSQLOOKUPDS", "VERSION", "HOST"))
