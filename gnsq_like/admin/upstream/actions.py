"""Changes that the admin makes in a cluster. Each may switch, and raises NoAnswer if no daemon knows the topic."""

from __future__ import annotations

from dataclasses import dataclass, field

from gnsq_like.admin.upstream.cluster import Cluster
from gnsq_like.cluster import operations
from gnsq_like.cluster.operations import Change
from gnsq_like.errors import HTTPRequestFailed


@dataclass
class Performed:
    """The result of a user's action."""

    #: Daemons that carried it out, or messages that it affected.
    done: int = 0
    warnings: list[str] = field(default_factory=list)
    #: The error in nsqadmin's API, although a part was carried out; empty if there is none.
    error: str = ""


def operate(cluster: Cluster, action: str, topic: str, channel: str = "") -> Performed:
    """Create, delete, pause, unpause or empty a topic, or a channel of it, wherever it is."""
    # Before the deletion, after which nsqlookupds do not list the topic.
    left = [] if action == "create" else cluster.not_reached(topic)
    return _performed(cluster, operations.operate(cluster.daemons, action, topic, channel or None), left)


def tombstone(cluster: Cluster, topic: str, node: str) -> Performed:
    """Hide a topic's node from lookups for a while, and delete the topic from the node."""
    cluster.departures.tombstone(node)
    change = operations.tombstone(cluster.daemons, node, topic)
    performed = _performed(cluster, change)
    failures = change.nsqds.failures.values()
    if any(isinstance(failure, HTTPRequestFailed) for failure in failures):
        performed.error = f"failed to query any nsqd: {'; '.join(map(str, failures))}"
    return performed


def dismiss(cluster: Cluster, node: str) -> Performed:
    """Forget an nsqd that has left."""
    cluster.shared.forget()
    is_one = cluster.departures.dismiss(node)
    return Performed(0, [] if is_one else [f"{node} is none of those that left"])


def publish(cluster: Cluster, node: str, topic: str, body: bytes, defer: float | None) -> None:
    """Publish one message to a node. Raises HTTPError, UsageError."""
    found = cluster.daemons.ask_nsqds([node], lambda client: client.publish(topic, body, defer))
    cluster.shared.forget()
    for failure in found.failures.values():
        raise failure


def _performed(cluster: Cluster, change: Change, left: list[str] | None = None) -> Performed:
    cluster.shared.forget()  # what was read before is out of date
    return Performed(change.done, [*map(str, change.failures), *(left or ())])
