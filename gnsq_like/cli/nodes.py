"""``gnsq-like nodes`` and ``gnsq-like node``: the nsqds of a cluster, and hiding one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gnsq_like.cli.changes import confirm, report, yes_switch
from gnsq_like.cli.daemon_flags import asks_cluster, json_switch
from gnsq_like.cli.exits import result_of
from gnsq_like.cli.tables import Cell, print_json, print_table, warn
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.topic import TOPIC

if TYPE_CHECKING:
    from gnsq_like.tools.daemons import Daemons, Node

HEADINGS = ("NSQD", "TCP", "HOST", "VERSION", "TOPICS", "TOMBSTONED", "NSQLOOKUPDS")
DISPENSABLE = ("NSQLOOKUPDS", "TOMBSTONED", "VERSION", "TCP", "TOPICS")


@click.command("nodes", cls=ToolCommand)
@json_switch
@asks_cluster
def nodes(daemons: Daemons, as_json: bool, verbose: bool) -> None:
    """List the nsqds of a cluster.

    NSQD is the address of an nsqd's HTTP API, which is its name for other commands; TOMBSTONED counts the topics for
    which nsqlookupds hide it.
    """
    found = result_of(daemons.nodes)
    warn(found.failures.values())
    if as_json:
        print_json([*found.values.values()])
    else:
        print_table(HEADINGS, map(_row, found.values.values()), DISPENSABLE)


def _row(node: Node) -> list[Cell]:
    return [
        node.http_address,
        node.tcp_address,
        node.hostname,
        node.version,
        len(node.topics),
        sum(node.topics.values()),
        len(node.lookupds),
    ]


@click.group("node", short_help="Hide an nsqd from a topic's consumers.")
def node() -> None:
    """Change one nsqd of a cluster."""


def _node(ctx: click.Context, param: click.Parameter, name: str) -> str:
    from gnsq_like.errors import InvalidAddress
    from gnsq_like.tools.daemons import check_node

    try:
        return check_node(name)
    except InvalidAddress as exc:
        raise click.BadParameter(str(exc), ctx, param) from exc


@node.command("tombstone", cls=ToolCommand)
@click.argument("node", callback=_node)
@TOPIC
@yes_switch
@asks_cluster
def tombstone_node(daemons: Daemons, node: str, topic: str, yes: bool, verbose: bool) -> None:
    """Take a topic off an nsqd.

    nsqlookupds stop naming the nsqd to the topic's consumers for 45 seconds (--tombstone-lifetime there), and the
    nsqd deletes the topic with its channels and all their messages. A producer that still publishes there makes the
    topic anew. NODE is the host:port of the nsqd's HTTP API, as "nodes" lists it.
    """
    from gnsq_like.tools.operations import tombstone

    confirm(f"Delete topic {topic} with its channels and all their messages on {node}?", yes)
    report(result_of(lambda: tombstone(daemons, node, topic)), f"topic {topic}: tombstoned on {node}")
