"""``gnsq-like topic``: lists, shows and changes the topics of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gnsq_like.cli.changes import confirm, plural, report, yes_switch
from gnsq_like.cli.daemon_flags import asks_cluster, json_switch
from gnsq_like.cli.exits import result_of
from gnsq_like.cli.tables import Cell, print_json, print_table, warn, yes_or_no
from gnsq_like.cli.tool_command import ToolCommand

if TYPE_CHECKING:
    from gnsq_like.tools.counting import ChannelCount, TopicCount
    from gnsq_like.tools.daemons import Daemons


def name_argument(kind: str) -> Callable[[Any], Any]:
    """The argument that names a "topic" or "channel"; refused before any daemon is asked, if it cannot be one."""

    def check(ctx: click.Context, param: click.Parameter, name: str) -> str:
        from gnsq_like.errors import InvalidName
        from gnsq_like.tools.operations import check_name

        try:
            check_name(kind, name)
        except InvalidName as exc:
            raise click.BadParameter(str(exc), ctx, param) from exc
        return name

    return click.argument(kind, callback=check)


TOPIC = name_argument("topic")
CHANNEL_HEADINGS = (
    "CHANNEL",
    "DEPTH",
    "IN FLIGHT",
    "DEFERRED",
    "REQUEUED",
    "TIMED OUT",
    "MESSAGES",
    "CLIENTS",
    "PAUSED",
)
CHANNEL_DISPENSABLE = ("TIMED OUT", "REQUEUED", "PAUSED", "MESSAGES")


@click.group("topic", short_help="List, show and change topics.")
def topic() -> None:
    """List, show and change the topics of a cluster.

    The cluster is given by its nsqlookupds (--lookupd-http-address) or its nsqds (--nsqd-http-address); a change is
    made wherever the topic is.
    """


def channel_row(count: ChannelCount) -> list[str | int]:
    """The cells of a channel, without its name."""
    return [
        count.depth,
        count.in_flight_count,
        count.deferred_count,
        count.requeue_count,
        count.timeout_count,
        count.message_count,
        count.client_count,
        yes_or_no(count.paused),
    ]


@topic.command("list", cls=ToolCommand)
@json_switch
@asks_cluster
def list_topics(daemons: Daemons, as_json: bool, verbose: bool) -> None:
    """List all topics.

    DEPTH is of messages that no channel has been given yet; BACKLOG is the depth of all channels together.
    """
    from gnsq_like.tools.counting import count_all

    counts = result_of(lambda: count_all(daemons))
    warn(counts.failures)
    if as_json:
        print_json([_summary(each) for each in counts.topics.values()])
        return
    rows: list[list[Cell]] = [
        [
            each.topic,
            each.depth,
            sum(channel.depth for channel in each.channels.values()),
            each.message_count,
            len(each.channels),
            len(each.nodes),
            yes_or_no(each.paused),
        ]
        for each in counts.topics.values()
    ]
    headings = ("TOPIC", "DEPTH", "BACKLOG", "MESSAGES", "CHANNELS", "NSQDS", "PAUSED")
    print_table(headings, rows, ("NSQDS", "CHANNELS", "PAUSED", "MESSAGES"))


def _summary(count: TopicCount) -> dict[str, Any]:
    return {
        "topic": count.topic,
        "depth": count.depth,
        "backend_depth": count.backend_depth,
        "message_count": count.message_count,
        "paused": count.paused,
        "channels": [*count.channels],
        "nodes": [*count.nodes],
    }


@topic.command("show", cls=ToolCommand)
@TOPIC
@json_switch
@asks_cluster
def show_topic(daemons: Daemons, topic: str, as_json: bool, verbose: bool) -> None:
    """Show a topic with its channels and the nsqds that have it."""
    from gnsq_like.tools.counting import count_topic

    count, counts = result_of(lambda: count_topic(daemons, topic))
    warn(counts.failures)
    if as_json:
        print_json(count)
        return
    state = ", paused" if count.paused else ""
    click.echo(
        f"{topic}: {plural(count.message_count, 'message')}, {count.depth:,} in no channel yet "
        f"({count.backend_depth:,} on disk){state}"
    )
    if count.channels:
        click.echo()
        rows = [[name, *channel_row(each)] for name, each in count.channels.items()]
        print_table(CHANNEL_HEADINGS, rows, CHANNEL_DISPENSABLE)
    if count.nodes:
        click.echo()
        headings = ("NSQD", "DEPTH", "ON DISK", "MESSAGES", "CHANNELS", "PAUSED")
        print_table(
            headings,
            [
                [node, each.depth, each.backend_depth, each.message_count, len(each.channels), yes_or_no(each.paused)]
                for node, each in count.nodes.items()
            ],
            ("CHANNELS", "ON DISK", "PAUSED", "MESSAGES"),
        )


@topic.command("create", cls=ToolCommand)
@TOPIC
@asks_cluster
def create_topic(daemons: Daemons, topic: str, verbose: bool) -> None:
    """Create a topic.

    With nsqlookupds it is registered there, and an nsqd gets it with its first message; without them it is created on
    each nsqd.
    """
    from gnsq_like.tools.operations import create

    report(result_of(lambda: create(daemons, topic)), f"topic {topic}: created")


@topic.command("delete", cls=ToolCommand)
@TOPIC
@yes_switch
@asks_cluster
def delete_topic(daemons: Daemons, topic: str, yes: bool, verbose: bool) -> None:
    """Delete a topic with its channels and all their messages."""
    from gnsq_like.tools.operations import delete

    if not yes:
        confirm(f"Delete topic {topic}{_size_of(daemons, topic)}?", yes)
    report(result_of(lambda: delete(daemons, topic)), f"topic {topic}: deleted")


def _size_of(daemons: Daemons, topic: str) -> str:
    """What a topic has, for the question; nothing where nsqds do not answer."""
    from gnsq_like.tools.counting import count_topic
    from gnsq_like.tools.sources import Unreachable

    try:
        count, _ = result_of(lambda: count_topic(daemons, topic))
    except Unreachable:
        return ""
    channels = count.channels.values()
    messages = count.depth + sum(each.depth + each.in_flight_count + each.deferred_count for each in channels)
    places = plural(len(count.nodes), "nsqd")
    return f" with {plural(len(channels), 'channel')} and {plural(messages, 'message')} on {places}"


@topic.command("empty", cls=ToolCommand)
@TOPIC
@yes_switch
@asks_cluster
def empty_topic(daemons: Daemons, topic: str, yes: bool, verbose: bool) -> None:
    """Drop the messages that no channel has yet.

    Those that the topic has not passed to its channels, for instance while it is paused. Channels keep theirs.
    """
    from gnsq_like.tools.operations import change

    confirm(f"Drop all messages that topic {topic} has not passed to a channel?", yes)
    report(result_of(lambda: change(daemons, "empty", topic)), f"topic {topic}: emptied")


@topic.command("pause", cls=ToolCommand)
@TOPIC
@asks_cluster
def pause_topic(daemons: Daemons, topic: str, verbose: bool) -> None:
    """Pass no more messages to the channels.

    The topic keeps them.
    """
    from gnsq_like.tools.operations import change

    report(result_of(lambda: change(daemons, "pause", topic)), f"topic {topic}: paused")


@topic.command("unpause", cls=ToolCommand)
@TOPIC
@asks_cluster
def unpause_topic(daemons: Daemons, topic: str, verbose: bool) -> None:
    """Pass a topic's messages to its channels again."""
    from gnsq_like.tools.operations import change

    report(result_of(lambda: change(daemons, "unpause", topic)), f"topic {topic}: unpaused")
