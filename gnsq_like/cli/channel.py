"""``gnsq-like channel``: lists, shows and changes the channels of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gnsq_like.cli.changes import confirm, plural, report, yes_switch
from gnsq_like.cli.daemon_flags import asks_cluster, json_switch
from gnsq_like.cli.exits import result_of
from gnsq_like.cli.tables import print_json, print_table, warn
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.topic import CHANNEL_DISPENSABLE, CHANNEL_HEADINGS, TOPIC, channel_row, name_argument

if TYPE_CHECKING:
    from gnsq_like.tools.daemons import Daemons

_CHANNEL = name_argument("channel")


@click.group("channel", short_help="List, show and change channels.")
def channel() -> None:
    """List, show and change the channels of a topic.

    The cluster is given by its nsqlookupds (--lookupd-http-address) or its nsqds (--nsqd-http-address); a change is
    made wherever the channel is.
    """


@channel.command("list", cls=ToolCommand)
@TOPIC
@json_switch
@asks_cluster
def list_channels(daemons: Daemons, topic: str, as_json: bool, verbose: bool) -> None:
    """List the channels of a topic."""
    from gnsq_like.tools.counting import count_topic

    count, counts = result_of(lambda: count_topic(daemons, topic))
    warn(counts.failures)
    if as_json:
        print_json([*count.channels.values()])
    else:
        rows = [[name, *channel_row(each)] for name, each in count.channels.items()]
        print_table(CHANNEL_HEADINGS, rows, CHANNEL_DISPENSABLE)


@channel.command("show", cls=ToolCommand)
@TOPIC
@_CHANNEL
@json_switch
@asks_cluster
def show_channel(daemons: Daemons, topic: str, channel: str, as_json: bool, verbose: bool) -> None:
    """Show a channel with its consumers and the nsqds that have it."""
    from gnsq_like.tools.counting import count_topic

    found, counts = result_of(lambda: count_topic(daemons, topic, channel, with_clients=True))
    warn(counts.failures)
    count = found.channels[channel]
    if as_json:
        print_json(count)
        return
    rows = [[node, *channel_row(each)] for node, each in count.nodes.items()]
    if len(rows) > 1:
        rows.append(["all", *channel_row(count)])
    print_table(("NSQD", *CHANNEL_HEADINGS[1:]), rows, CHANNEL_DISPENSABLE)
    if count.clients:
        click.echo()
        headings = ("CLIENT", "ADDRESS", "NSQD", "USER AGENT", "IN FLIGHT", "RDY", "FINISHED", "REQUEUED")
        print_table(
            headings,
            [
                [
                    str(client.get("client_id", "")),
                    str(client.get("remote_address", "")),
                    client["node"],
                    str(client.get("user_agent", "")),
                    *(client.get(name, 0) for name in ("in_flight_count", "ready_count", "finish_count")),
                    client.get("requeue_count", 0),
                ]
                for client in count.clients
            ],
            ("USER AGENT", "NSQD", "REQUEUED", "FINISHED"),
        )


@channel.command("create", cls=ToolCommand)
@TOPIC
@_CHANNEL
@asks_cluster
def create_channel(daemons: Daemons, topic: str, channel: str, verbose: bool) -> None:
    """Create a channel, and its topic if that is missing.

    With nsqlookupds it is registered there, and created on the nsqds that have the topic; without them on each nsqd.
    """
    from gnsq_like.tools.operations import create

    report(result_of(lambda: create(daemons, topic, channel)), f"channel {topic}/{channel}: created")


@channel.command("delete", cls=ToolCommand)
@TOPIC
@_CHANNEL
@yes_switch
@asks_cluster
def delete_channel(daemons: Daemons, topic: str, channel: str, yes: bool, verbose: bool) -> None:
    """Delete a channel with its messages, and disconnect its consumers."""
    from gnsq_like.tools.operations import delete

    if not yes:
        confirm(f"Delete channel {topic}/{channel}{_size_of(daemons, topic, channel)}?", yes)
    report(result_of(lambda: delete(daemons, topic, channel)), f"channel {topic}/{channel}: deleted")


def _size_of(daemons: Daemons, topic: str, channel: str) -> str:
    """What a channel has, for the question; nothing where no nsqd has it, or none answers."""
    from gnsq_like.tools.counting import count_topic
    from gnsq_like.tools.daemons import NotFound
    from gnsq_like.tools.sources import Unreachable

    try:
        found, _ = result_of(lambda: count_topic(daemons, topic, channel))
    except (NotFound, Unreachable):
        return ""
    count = found.channels[channel]
    messages = count.depth + count.in_flight_count + count.deferred_count
    return f" with {plural(messages, 'message')} and {plural(count.client_count, 'consumer')}"


@channel.command("empty", cls=ToolCommand)
@TOPIC
@_CHANNEL
@yes_switch
@asks_cluster
def empty_channel(daemons: Daemons, topic: str, channel: str, yes: bool, verbose: bool) -> None:
    """Drop all messages of a channel.

    Those in flight and deferred too.
    """
    from gnsq_like.tools.operations import change

    if not yes:
        confirm(f"Drop all messages of channel {topic}/{channel}{_size_of(daemons, topic, channel)}?", yes)
    report(result_of(lambda: change(daemons, "empty", topic, channel)), f"channel {topic}/{channel}: emptied")


@channel.command("pause", cls=ToolCommand)
@TOPIC
@_CHANNEL
@asks_cluster
def pause_channel(daemons: Daemons, topic: str, channel: str, verbose: bool) -> None:
    """Deliver no more of a channel's messages; the channel keeps them."""
    from gnsq_like.tools.operations import change

    report(result_of(lambda: change(daemons, "pause", topic, channel)), f"channel {topic}/{channel}: paused")


@channel.command("unpause", cls=ToolCommand)
@TOPIC
@_CHANNEL
@asks_cluster
def unpause_channel(daemons: Daemons, topic: str, channel: str, verbose: bool) -> None:
    """Deliver a channel's messages again."""
    from gnsq_like.tools.operations import change

    report(result_of(lambda: change(daemons, "unpause", topic, channel)), f"channel {topic}/{channel}: unpaused")
