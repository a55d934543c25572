"""What the admin changes in a cluster. Each may switch; each raises UpstreamError if no upstream knows the topic.

As in nsqadmin, a topic or channel is deleted from nsqlookupds first, so that no Reader finds it again meanwhile; and
an action that was sent and failed everywhere has warnings only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gnsq_like.admin.upstream.cluster import Cluster
from gnsq_like.errors import HTTPRequestFailed
from gnsq_like.http.nsqd import NsqdHTTPClient
from gnsq_like.tools.nodes import Node
from gnsq_like.tools.operations import change_at, create_at, delete_at
from gnsq_like.tools.rounds import Round, UpstreamError


@dataclass
class Outcome:
    """What came of an action."""

    #: Daemons that carried it out.
    done: int = 0
    warnings: list[str] = field(default_factory=list)
    #: What nsqadmin's API calls an error, although a part was carried out; empty if nothing.
    error: str = ""


def create(cluster: Cluster, topic: str, channel: str = "") -> Outcome:
    """Create a topic, and a channel of it, on all nsqlookupds; the channel also on the nodes of the topic.

    Without nsqlookupds, nsqadmin does nothing; here the nodes get both.
    """
    if not cluster.has_lookupds:
        found = cluster.nsqds.ask(cluster.nsqd_addresses, lambda client: create_at(client, topic, channel))
        return _done(cluster, [found])
    known = cluster.lookupds.ask(cluster.lookupd_addresses, lambda client: create_at(client, topic, channel))
    if not channel or not known.answers:
        return _done(cluster, [known])
    producers = cluster.producers_of(topic)
    found = _ask(cluster, producers.value, lambda client: client.create_channel(topic, channel))
    return _done(cluster, [known, found], producers.warnings)


def change(cluster: Cluster, action: str, topic: str, channel: str = "") -> Outcome:
    """Pause, unpause or empty a topic, or a channel of it, on all nodes of the topic."""
    producers = cluster.producers_of(topic)
    found = _ask(cluster, producers.value, lambda client: change_at(client, action, topic, channel))
    return _done(cluster, [found], [*producers.warnings, *cluster.not_reached(topic)])


def delete(cluster: Cluster, topic: str, channel: str = "") -> Outcome:
    """Delete a topic with its channels, or a channel of it, from all nsqlookupds, then from the topic's nodes."""
    producers = cluster.producers_of(topic)  # first: nsqlookupds forget them
    left = cluster.not_reached(topic)
    known = cluster.lookupds.ask(cluster.lookupd_addresses, lambda client: delete_at(client, topic, channel))
    found = _ask(cluster, producers.value, lambda client: delete_at(client, topic, channel))
    return _done(cluster, [known, found], [*producers.warnings, *left])


def tombstone(cluster: Cluster, topic: str, node: str) -> Outcome:
    """Hide a topic's node from lookups for a while, and delete the topic from the node."""
    found = cluster.nodes()
    if all(each.address != node for each in found.value):
        raise UpstreamError("; ".join([f"failed to query any nsqd: no nsqlookupd lists {node}", *found.warnings]))
    cluster.departures.tombstone(node)
    # nsqlookupd compares with its own spelling, which has no brackets around an IPv6 address.
    names = [f"{each.broadcast_address}:{each.http_port}" for each in found.value if each.address == node] or [node]
    known = cluster.lookupds.ask(cluster.lookupd_addresses, lambda client: client.tombstone(topic, names[0]))
    deleted = cluster.nsqds.ask([node], lambda client: client.delete_topic(topic))
    outcome = _done(cluster, [known, deleted])
    if any(isinstance(failure, HTTPRequestFailed) for failure in deleted.failures.values()):
        outcome.error = f"failed to query any nsqd: {'; '.join(deleted.warnings)}"
    return outcome


def dismiss(cluster: Cluster, node: str) -> Outcome:
    """Forget an nsqd that has left."""
    return _done(cluster, [], [] if cluster.departures.dismiss(node) else [f"{node} is none of those that left"])


def publish(cluster: Cluster, node: str, topic: str, body: bytes, defer: float | None) -> None:
    """Publish one message to a node. Raises HTTPError, UsageError."""
    found = cluster.nsqds.ask([node], lambda client: client.publish(topic, body, defer))
    cluster.shared.forget()
    for failure in found.failures.values():
        raise failure


def _ask(cluster: Cluster, nodes: Iterable[Node], question: Callable[[NsqdHTTPClient], None]) -> Round[None]:
    return cluster.nsqds.ask([node.address for node in nodes], question)


def _done(cluster: Cluster, rounds: Iterable[Round[None]], warnings: Iterable[str] = ()) -> Outcome:
    cluster.shared.forget()  # what was read before is out of date
    outcome = Outcome(0, [*warnings])
    for each in rounds:
        outcome.done += len(each.answers)
        outcome.warnings += each.warnings
    return outcome
