"""What an operator changes in a cluster: topics and channels, on all daemons that have them. Each may switch.

A topic or channel is deleted from nsqlookupds first, so that no Reader finds it again meanwhile, as nsqadmin does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gnsq_like import LookupdClient, NsqdHTTPClient
from gnsq_like.errors import NSQError
from gnsq_like.tools.daemons import Daemons, NotFound, check_node, require_any
from gnsq_like.tools.rounds import Round
from gnsq_like.wire.names import encode_channel, encode_topic

#: Changes on an nsqd, of a topic and of a channel.
CHANGES: dict[str, tuple[Callable[[NsqdHTTPClient, str], None], Callable[[NsqdHTTPClient, str, str], None]]] = {
    "pause": (NsqdHTTPClient.pause_topic, NsqdHTTPClient.pause_channel),
    "unpause": (NsqdHTTPClient.unpause_topic, NsqdHTTPClient.unpause_channel),
    "empty": (NsqdHTTPClient.empty_topic, NsqdHTTPClient.empty_channel),
}
#: What has become of a topic or channel, by what may be done to it.
DONE = {"create": "created", "delete": "deleted", "empty": "emptied", "pause": "paused", "unpause": "unpaused"}


@dataclass
class Outcome:
    """Who carried out a change."""

    nsqds: list[str] = field(default_factory=list)
    lookupds: list[str] = field(default_factory=list)
    #: The error of each daemon that did not; those that had nothing to change are left out.
    failures: list[NSQError] = field(default_factory=list)


def check_name(kind: str, name: str) -> None:
    """Raise InvalidName if this cannot be the name of a "topic" or "channel"."""
    (encode_topic if kind == "topic" else encode_channel)(name)


# -- at one daemon ---------------------------------------------------------------------------------


def create_at(client: NsqdHTTPClient | LookupdClient, topic: str, channel: str | None) -> None:
    """Create a topic, and a channel of it."""
    client.create_topic(topic)
    if channel:
        client.create_channel(topic, channel)


def change_at(client: NsqdHTTPClient, action: str, topic: str, channel: str | None) -> None:
    """Do one of CHANGES to a topic, or to a channel of it."""
    of_topic, of_channel = CHANGES[action]
    if channel:
        of_channel(client, topic, channel)
    else:
        of_topic(client, topic)


def delete_at(client: NsqdHTTPClient | LookupdClient, topic: str, channel: str | None) -> None:
    """Delete a topic, or a channel of it."""
    if channel:
        client.delete_channel(topic, channel)
    else:
        client.delete_topic(topic)


# -- wherever it is --------------------------------------------------------------------------------


def operate(daemons: Daemons, action: str, topic: str, channel: str | None = None) -> Outcome:
    """Do one of the things of DONE, wherever the topic or channel is.

    :raises NotFound: there is none
    """
    if action == "create":
        return create(daemons, topic, channel)
    return delete(daemons, topic, channel) if action == "delete" else change(daemons, action, topic, channel)


def create(daemons: Daemons, topic: str, channel: str | None = None) -> Outcome:
    """Create a topic, or a channel and its topic.

    With nsqlookupds they are registered there, and the channel is made on the nsqds that have the topic; an nsqd gets
    a registered topic's channels with the topic. Without nsqlookupds, all given nsqds get both.
    """
    if not daemons.lookupd_http_addresses:
        found = daemons.ask_nsqds(daemons.nsqd_http_addresses, lambda client: create_at(client, topic, channel))
        return _outcome(nsqds=found)
    known = daemons.ask_lookupds(lambda client: create_at(client, topic, channel))
    require_any(known)
    if channel is None:
        return _outcome(nsqds=Round(), lookupds=known)
    nodes = daemons.nodes_of(topic)
    return _outcome(
        lookupds=known, nsqds=daemons.ask_nsqds(nodes.answers, lambda client: client.create_channel(topic, channel))
    )


def change(daemons: Daemons, action: str, topic: str, channel: str | None = None) -> Outcome:
    """Pause, unpause or empty a topic or channel, wherever it is.

    :param action: one of CHANGES
    :raises NotFound: there is none
    """
    nodes = daemons.nodes_of(topic)
    found = daemons.ask_nsqds(nodes.answers, lambda client: change_at(client, action, topic, channel))
    return _found_any(_outcome(nodes, nsqds=_ignoring_missing(found)), topic, channel)


def delete(daemons: Daemons, topic: str, channel: str | None = None) -> Outcome:
    """Delete a topic with its channels, or a channel, from all nsqlookupds and nsqds.

    :raises NotFound: there is none
    """
    nodes = daemons.nodes_of(topic)  # first: nsqlookupds forget them
    known = _ignoring_missing(daemons.ask_lookupds(lambda client: delete_at(client, topic, channel)))
    found = _ignoring_missing(daemons.ask_nsqds(nodes.answers, lambda client: delete_at(client, topic, channel)))
    return _found_any(_outcome(nodes, lookupds=known, nsqds=found), topic, channel)


def tombstone(daemons: Daemons, node: str, topic: str) -> Outcome:
    """Hide an nsqd from the topic's lookups for a while, and delete the topic there.

    Without nsqlookupds there is nothing to hide, and the topic is deleted.

    :param node: the host:port of the nsqd's HTTP API
    :raises NotFound: nsqlookupds do not know the node, or it does not have the topic
    """
    check_node(node)
    nodes = daemons.nodes()
    known = nodes.answers.get(node)
    if known is None:
        raise NotFound(f"nsqd {node}", nodes.failures.values())
    # nsqlookupd compares with its own spelling, which may have no brackets around an IPv6 address.
    name = f"{known.broadcast_address}:{known.http_port}"
    hidden = daemons.ask_lookupds(lambda client: client.tombstone(topic, name))
    require_any(hidden)
    deleted = _ignoring_missing(daemons.ask_nsqds([node], lambda client: client.delete_topic(topic)))
    outcome = _outcome(lookupds=hidden, nsqds=deleted)
    if not outcome.nsqds and not outcome.failures:
        raise NotFound(f"topic {topic} on {node}")
    return outcome


def _ignoring_missing(answers: Round[None]) -> Round[None]:
    return answers.without("TOPIC_NOT_FOUND").without("CHANNEL_NOT_FOUND")


def _outcome(nodes: Round[str] | None = None, *, nsqds: Round[None], lookupds: Round[None] | None = None) -> Outcome:
    lookupds = lookupds or Round()
    # An nsqlookupd that did not answer the first time is one failure, not two.
    failures = {**(nodes.failures if nodes else {}), **lookupds.failures, **nsqds.failures}
    return Outcome([*nsqds.answers], [*lookupds.answers], [*failures.values()])


def _found_any(outcome: Outcome, topic: str, channel: str | None) -> Outcome:
    if outcome.nsqds or outcome.lookupds or outcome.failures:
        return outcome
    raise NotFound(f"topic {topic} on any nsqd" if channel is None else f"channel {topic}/{channel}")
