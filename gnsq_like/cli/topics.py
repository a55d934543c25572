"""``gnsq-like topic`` and ``gnsq-like channel``: list, show and change the topics and channels of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gnsq_like.cli.cluster_flags import asks_cluster, json_switch
from gnsq_like.cli.confirm import confirm, plural, report, yes_switch
from gnsq_like.cli.exits import result_of
from gnsq_like.cli.tables import Cell, print_json, print_table, warn, yes_or_no
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.tool_options import Decorator

if TYPE_CHECKING:
    from gnsq_like.cluster.daemons import Daemons
    from gnsq_like.cluster.figures import ChannelFigures, TopicFigures


def name_argument(kind: str) -> Decorator:
    """The argument that names a "topic" or "channel"; refused before any daemon is asked, if it cannot be one."""

    def check(ctx: click.Context, param: click.Parameter, name: str) -> str:
        from gnsq_like.cluster.operations import check_name
        from gnsq_like.errors import InvalidName

        try:
            check_name(kind, name)
        except InvalidName as exc:
            raise click.BadParameter(str(exc), ctx, param) from exc
        return name

    return click.argument(kind, callback=check)


TOPIC = name_argument("topic")
_CHANNEL = name_argument("channel")
_CHANNEL_HEADINGS = (
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
_CHANNEL_DISPENSABLE = ("TIMED OUT", "REQUEUED", "PAUSED", "MESSAGES")


@click.group("topic", short_help="List, show and change topics.")
def topic() -> None:
    """List, show and change the topics of a cluster.

    The cluster is given by its nsqlookupds (--lookupd-http-address) or its nsqds (--nsqd-http-address); a change is
    made wherever the topic is.
    """


def _channel_row(count: ChannelFigures) -> list[str | int]:
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

    DEPTH is the number of messages in the topic itself, which no channel has yet; BACKLOG is the sum of the depths of
    all channels.
    """
    from gnsq_like.cluster.counting import count_all

    counts = result_of(lambda: count_all(daemons))
    warn(counts.failures)
    if as_json:
        print_json([each.as_json() for each in counts.topics.values()])
        return
    rows: list[list[Cell]] = [
        [
            each.topic_name,
            each.depth,
            sum(channel.depth for channel in each.channels),
            each.message_count,
            len(each.channels),
            len(each.nodes),
            yes_or_no(each.paused),
        ]
        for each in counts.topics.values()
    ]
    headings = ("TOPIC", "DEPTH", "BACKLOG", "MESSAGES", "CHANNELS", "NSQDS", "PAUSED")
    print_table(headings, rows, ("NSQDS", "CHANNELS", "PAUSED", "MESSAGES"))


def _counted(daemons: Daemons, topic: str) -> TopicFigures:
    """The sums of a topic; warns about daemons that could not be asked."""
    from gnsq_like.cluster.counting import count_topic

    count = result_of(lambda: count_topic(daemons, topic))
    warn(count.failures)
    return count.total


def _print_channels(count: TopicFigures) -> None:
    rows = [[each.channel_name, *_channel_row(each)] for each in count.channels]
    print_table(_CHANNEL_HEADINGS, rows, _CHANNEL_DISPENSABLE)


@topic.command("show", cls=ToolCommand)
@TOPIC
@json_switch
@asks_cluster
def show_topic(daemons: Daemons, topic: str, as_json: bool, verbose: bool) -> None:
    """Show a topic with its channels and the nsqds that have it."""
    count = _counted(daemons, topic)
    if as_json:
        print_json(count.as_json())
        return
    state = ", paused" if count.paused else ""
    click.echo(
        f"{topic}: {plural(count.message_count, 'message')}, {count.depth:,} in no channel yet "
        f"({count.backend_depth:,} on disk){state}"
    )
    if count.channels:
        click.echo()
        _print_channels(count)
    if count.nodes:
        click.echo()
        headings = ("NSQD", "DEPTH", "ON DISK", "MESSAGES", "CHANNELS", "PAUSED")
        print_table(
            headings,
            [
                [
                    each.node,
                    each.depth,
                    each.backend_depth,
                    each.message_count,
                    len(each.channels),
                    yes_or_no(each.paused),
                ]
                for each in count.nodes
            ],
            ("CHANNELS", "ON DISK", "PAUSED", "MESSAGES"),
        )


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
    count = _counted(daemons, topic)
    if as_json:
        print_json([each.as_json() for each in count.channels])
    else:
        _print_channels(count)


@channel.command("show", cls=ToolCommand)
@TOPIC
@_CHANNEL
@json_switch
@asks_cluster
def show_channel(daemons: Daemons, topic: str, channel: str, as_json: bool, verbose: bool) -> None:
    """Show a channel with its consumers and the nsqds that have it."""
    from gnsq_like.cluster.counting import count_channel

    count, failures = result_of(lambda: count_channel(daemons, topic, channel, with_clients=True))
    warn(failures)
    if as_json:
        print_json(count.as_json())
        return
    rows = [[node, *_channel_row(each)] for node, each in count.by_node.items()]
    if len(rows) > 1:
        rows.append(["all", *_channel_row(count)])
    print_table(("NSQD", *_CHANNEL_HEADINGS[1:]), rows, _CHANNEL_DISPENSABLE)
    if count.clients:
        click.echo()
        headings = ("CLIENT", "ADDRESS", "NSQD", "USER AGENT", "IN FLIGHT", "RDY", "FINISHED", "REQUEUED")
        print_table(
            headings,
            [
                [
                    *(client[name] for name in ("client_id", "remote_address", "node", "user_agent")),
                    *(client[name] for name in ("in_flight_count", "ready_count", "finish_count", "requeue_count")),
                ]
                for client in count.clients
            ],
            ("USER AGENT", "NSQD", "REQUEUED", "FINISHED"),
        )


# -- changes ---------------------------------------------------------------------------------------

#: The changes: the help of each, and the question before those that destroy something.
_TOPIC_CHANGES = {
    "create": (
        """Create a topic.

        With nsqlookupds it is registered there, and an nsqd gets it with its first message; without them it is created
        on each nsqd.
        """,
        "",
    ),
    "delete": ("Delete a topic with its channels and all their messages.", "Delete {what}{size}?"),
    "empty": (
        """Drop the messages that no channel has yet.

        Those that the topic has not passed to its channels, for instance while it is paused. Channels keep theirs.
        """,
        "Drop all messages that {what} has not passed to a channel?",
    ),
    "pause": ("Pass no more messages to the channels.\n\nThe topic keeps them.", ""),
    "unpause": ("Pass a topic's messages to its channels again.", ""),
}
_CHANNEL_CHANGES = {
    "create": (
        """Create a channel, and its topic if that is missing.

        With nsqlookupds it is registered there, and created on the nsqds that have the topic; without them on each
        nsqd.
        """,
        "",
    ),
    "delete": ("Delete a channel with its messages, and disconnect its consumers.", "Delete {what}{size}?"),
    "empty": (
        "Drop all messages of a channel.\n\nThose in flight and deferred too.",
        "Drop all messages of {what}{size}?",
    ),
    "pause": ("Deliver no more of a channel's messages; the channel keeps them.", ""),
    "unpause": ("Deliver a channel's messages again.", ""),
}


def _add_change(group: click.Group, action: str, text: str, question: str, *names: Decorator) -> None:
    """Add the command for a change.

    :param names: the arguments for topic and channel
    """

    def change(daemons: Daemons, topic: str, verbose: bool, channel: str | None = None, yes: bool = False) -> None:
        from gnsq_like.cluster.operations import DONE, operate

        what = f"topic {topic}" if channel is None else f"channel {topic}/{channel}"
        if question and not yes:
            size = _size_of(daemons, topic, channel) if "{size}" in question else ""
            confirm(question.format(what=what, size=size), yes)
        report(result_of(lambda: operate(daemons, action, topic, channel)), f"{what}: {DONE[action]}")

    command = asks_cluster(change)
    for decorate in (*([yes_switch] if question else []), *reversed(names)):
        command = decorate(command)
    group.command(action, cls=ToolCommand, help=text)(command)


def _size_of(daemons: Daemons, topic: str, channel: str | None) -> str:
    """The contents of a topic or channel, for the confirmation; empty if no nsqd has the channel, or none answers."""
    from gnsq_like.cluster.counting import count_topic
    from gnsq_like.cluster.rounds import Unreachable

    try:
        found = result_of(lambda: count_topic(daemons, topic, channel))
    except Unreachable:
        return ""
    if channel is not None:
        of_channel = found.channel(channel)
        if of_channel is None:
            return ""
        return f" with {plural(of_channel.left, 'message')} and {plural(of_channel.client_count, 'consumer')}"
    total, places = found.total, plural(len(found.total.nodes), "nsqd")
    messages = total.depth + sum(each.left for each in total.channels)
    return f" with {plural(len(total.channels), 'channel')} and {plural(messages, 'message')} on {places}"


for _action, _texts in _TOPIC_CHANGES.items():
    _add_change(topic, _action, *_texts, TOPIC)
for _action, _texts in _CHANNEL_CHANGES.items():
    _add_change(channel, _action, *_texts, TOPIC, _CHANNEL)
