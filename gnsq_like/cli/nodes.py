"""``gnsq-like nodes``, ``lookup``, ``ping``: a cluster's daemons. ``node tombstone``: takes a topic off an nsqd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gnsq_like.cli.cluster_flags import asks_cluster, asks_each, asks_lookupds, json_switch
from gnsq_like.cli.confirm import confirm, plural, report, yes_switch
from gnsq_like.cli.exits import result_of
from gnsq_like.cli.tables import Cell, print_json, print_table, warn
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.tool_options import printable
from gnsq_like.cli.topics import TOPIC

if TYPE_CHECKING:
    from gnsq_like.cluster.daemons import Daemons
    from gnsq_like.cluster.nodes import Node

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
        print_json([*map(_json, found.answers.values())])
    else:
        print_table(HEADINGS, map(_row, found.answers.values()), DISPENSABLE)


def _json(node: Node) -> dict[str, object]:
    return {
        "http_address": node.address,
        "tcp_address": node.tcp_address,
        "hostname": node.hostname,
        "version": node.version,
        "broadcast_address": node.broadcast_address,
        "http_port": node.http_port,
        "topics": dict(sorted(node.topics.items())),
        "lookupds": [*node.lookupds],
    }


def _row(node: Node) -> list[Cell]:
    return [
        node.address,
        node.tcp_address,
        node.hostname,
        node.version,
        len(node.topics),
        sum(node.topics.values()),
        len(node.lookupds),
    ]


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
        names = ("http_address", "tcp_address", "hostname", "version", "lookupds")
        nodes = [{name: whole[name] for name in names} for whole in map(_json, found.nodes)]
        print_json({"topic": topic, "channels": found.channels, "nodes": nodes})
        return
    channels = printable(", ".join(found.channels))
    click.echo(f"{topic}: {f'channels {channels}' if channels else 'no channel'}")
    if not found.nodes:
        click.echo("no nsqd has it")
        return
    click.echo()
    rows: list[list[Cell]] = [
        [each.address, each.tcp_address, each.hostname, each.version, len(each.lookupds)] for each in found.nodes
    ]
    print_table(("NSQD", "TCP", "HOST", "VERSION", "NSQLOOKUPDS"), rows, ("NSQLOOKUPDS", "VERSION", "HOST"))


@click.command("ping", cls=ToolCommand)
@json_switch
@asks_each
def ping(daemons: Daemons, as_json: bool, verbose: bool) -> None:
    """Check whether the daemons of a cluster are healthy.

    This asks the given daemons, and the nsqds that the nsqlookupds know. An nsqd that cannot write to its disk answers,
    but is not healthy. The exit status is 1 if a daemon is not healthy.
    """
    from gnsq_like.cluster.daemons import ping

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


@click.group("node", short_help="Remove a topic from one nsqd.")
def node() -> None:
    """Change one nsqd of a cluster."""


def _node(ctx: click.Context, param: click.Parameter, name: str) -> str:
    from gnsq_like.cluster.daemons import check_node
    from gnsq_like.errors import InvalidAddress

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
    """Remove a topic from an nsqd.

    nsqlookupds stop naming the nsqd to the topic's consumers for 45 seconds (--tombstone-lifetime there), and the
    nsqd deletes the topic with its channels and all their messages. A producer that still publishes there creates the
    topic again. NODE is the host:port of the nsqd's HTTP API, as "nodes" lists it.
    """
    from gnsq_like.cluster.operations import tombstone

    confirm(f"Delete topic {topic} with its channels and all their messages on {node}?", yes)
    report(result_of(lambda: tombstone(daemons, node, topic)), f"topic {topic}: tombstoned on {node}")
