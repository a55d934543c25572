"""Changes of topics and channels by an operator, on all daemons that have them. Each may switch.

A topic or channel is deleted from nsqlookupds first, so that no Reader finds it again meanwhile, as nsqadmin does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gnsq_like import LookupdClient, NsqdHTTPClient
from gnsq_like.cluster.daemons import Daemons, check_node
from gnsq_like.cluster.rounds import NotFound, Round
from gnsq_like.errors import NSQError
from gnsq_like.wire.names import encode_channel, encode_topic

_NONE: Mapping[str, NSQError] = MappingProxyType({})
#: Changes on an nsqd, of a topic and of a channel.
CHANGES: dict[str, tuple[Callable[[NsqdHTTPClient, str], None], Callable[[NsqdHTTPClient, str, str], None]]] = {
    "pause": (NsqdHTTPClient.pause_topic, NsqdHTTPClient.pause_channel),
    "unpause": (NsqdHTTPClient.unpause_topic, NsqdHTTPClient.unpause_channel),
    "empty": (NsqdHTTPClient.empty_topic, NsqdHTTPClient.empty_channel),
}
#: The past participle of each action, for messages.
DONE = {"create": "created", "delete": "deleted", "empty": "emptied", "pause": "paused", "unpause": "unpaused"}


@dataclass
class Change:
    """The daemons that carried out a change, and the errors of the others."""

    nsqds: Round[None]
    lookupds: Round[None] = field(default_factory=Round)
    #: The error of each other daemon; those that had nothing to change are left out.
    failures: list[NSQError] = field(default_factory=list)

    @property
    def done(self) -> int:
        """The number of daemons that carried it out."""
        return len(self.nsqds.answers) + len(self.lookupds.answers)

    @property
    def places(self) -> str:
        """The daemons that carried it out, as "1 of 2 nsqds and 1 nsqlookupd"; empty if none did."""
        kinds = [(self.nsqds, "nsqd"), (self.lookupds, "nsqlookupd")]
        return " and ".join(_share(each, kind) for each, kind in kinds if each.answers)


def _share(found: Round[None], kind: str) -> str:
    done, failed = len(found.answers), len(found.failures)
    if failed:
        return f"{done:,} of {done + failed:,} {kind}s"
    return f"{done:,} {kind}{'' if done == 1 else 's'}"


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


def operate(daemons: Daemons, action: str, topic: str, channel: str | None = None) -> Change:
    """Carry out an action of DONE on all daemons that have the topic or channel.

    :raises NotFound: nobody knows the topic
    :raises Unreachable: no daemon answers that knows where it is
    """
    if action == "create":
        return _create(daemons, topic, channel)
    nodes = daemons.nodes_of(topic)  # first: nsqlookupds forget a topic that is deleted
    known: Round[None] = Round()
    if action == "delete":
        known = daemons.ask_lookupds(lambda client: delete_at(client, topic, channel))
        found = daemons.ask_nsqds(nodes.answers, lambda client: delete_at(client, topic, channel))
    else:
        found = daemons.ask_nsqds(nodes.answers, lambda client: change_at(client, action, topic, channel))
    what = f"topic {topic} on any nsqd" if channel is None else f"channel {topic}/{channel}"
    return _change_of(what, found.without_missing(), known.without_missing(), nodes.failures)


def _create(daemons: Daemons, topic: str, channel: str | None) -> Change:
    """Create a topic, or a channel and its topic.

    With nsqlookupds they are registered there, and the channel is made on the nsqds that have the topic; an nsqd gets
    a registered topic's channels with the topic. Without nsqlookupds, all given nsqds get both.
    """
    if not daemons.lookupd_http_addresses:
        found = daemons.ask_nsqds(daemons.nsqd_http_addresses, lambda client: create_at(client, topic, channel))
        return _change_of("nsqd", found)
    known = daemons.ask_lookupds(lambda client: create_at(client, topic, channel))
    known.require_any("nsqlookupd")
    found = Round()
    if channel:
        found = daemons.ask_nsqds(daemons.nodes_of(topic).answers, lambda client: client.create_channel(topic, channel))
    return _change_of("nsqlookupd", found, known)


def tombstone(daemons: Daemons, node: str, topic: str) -> Change:
    """Hide an nsqd from the topic's lookups for a while, and delete the topic there.

    Without nsqlookupds there is nothing to hide, and the topic is deleted.

    :param node: the host:port of the nsqd's HTTP API
    :raises NotFound: nsqlookupds do not know the node
    :raises Unreachable: no nsqlookupd hides it
    """
    check_node(node)
    nodes = daemons.nodes()
    known = nodes.answers.get(node)
    if known is None:
        raise NotFound(f"nsqd {node}", nodes.failures.values())
    hidden: Round[None] = Round()
    if daemons.lookupd_http_addresses:
        # nsqlookupd compares with its own spelling, which may have no brackets around an IPv6 address.
        name = f"{known.broadcast_address}:{known.http_port}"
        hidden = daemons.ask_lookupds(lambda client: client.tombstone(topic, name))
        hidden.require_any("nsqlookupd")
    deleted = daemons.ask_nsqds([node], lambda client: client.delete_topic(topic)).without_missing()
    change = _change_of(f"topic {topic} on {node}", deleted, hidden)
    if not deleted.answers and not change.failures:
        change.failures.append(NotFound(f"topic {topic} on {node}"))
    return change


def _change_of(
    what: str, nsqds: Round[None], lookupds: Round[None] | None = None, earlier: Mapping[str, NSQError] = _NONE
) -> Change:
    """The result of a round.

    :param what: the missing topic or channel, for the error if no daemon had anything to change
    :param earlier: errors of daemons that were asked for its location
    """
    lookupds = lookupds or Round()
    # An nsqlookupd that did not answer the first time is one failure, not two.
    failures = [*{**earlier, **lookupds.failures, **nsqds.failures}.values()]
    if not nsqds.answers and not lookupds.answers and not failures:
        failures.append(NotFound(what))
    return Change(nsqds, lookupds, failures)
