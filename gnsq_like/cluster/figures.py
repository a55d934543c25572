"""Topics and channels from /stats of nsqds, and their sums; for the commands and the admin.

The sums are nsqadmin's without two of its faults: it adds the other nodes' channels to the first node's own, and the
"min" of a latency is mostly that of the last node.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnsq_like.http.nsqd import ChannelStats, ClientStats, LatencyStats, NsqdStats, TopicStats

#: In the order of the API's objects.
TOPIC_COUNTS = ("depth", "backend_depth", "message_count")
#: Messages that nsqd took from memory for clients of its zone, of its region, and elsewhere (docs/internals 7.4).
TAKEN_COUNTS = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")
_OWN_COUNTS = (
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
)
CHANNEL_COUNTS = (*_OWN_COUNTS, *TAKEN_COUNTS)
#: nsqd's record of a consumer or publisher, with "node".
Client = dict[str, str | int]
_CLIENT = [name for name in ClientStats.__annotations__ if name != "state"]
_BEFORE_TOPOLOGY = _CLIENT[: _CLIENT.index("topology_region")]
_TOPOLOGY_AND_AFTER = _CLIENT[len(_BEFORE_TOPOLOGY) :]
_ALL_NODES = "*"


@dataclass(slots=True)
class Latency:
    """Percentiles of the time from publishing to FIN, in ns."""

    count: int = 0
    #: As nsqadmin sends them: quantile, min, max, average, count.
    percentiles: list[dict[str, float]] = field(default_factory=list)
    topic: str = ""
    channel: str = ""
    host: str = ""

    def add(self, other: Latency) -> None:
        """Add another node's: the highest and lowest, and the average weighted by the number of messages."""
        self.host = _ALL_NODES
        self.count += other.count
        for new in other.percentiles:
            for mine in self.percentiles:
                if mine["quantile"] == new["quantile"]:
                    break
            else:
                mine = {"average": 0, "count": 0, "max": 0, "min": new["min"], "quantile": new["quantile"]}
                self.percentiles.append(mine)
            mine["max"] = max(mine["max"], new["max"])
            mine["min"] = min(mine["min"], new["min"])
            mine["count"] += new["count"]
            if mine["count"]:
                mine["average"] += (new["average"] - mine["average"]) * new["count"] / mine["count"]

    def as_json(self) -> dict[str, object]:
        return {
            "count": self.count,
            # As Go writes a map of numbers: names in order, and no fraction where there is none.
            "percentiles": [{name: _as_go(each[name]) for name in sorted(each)} for each in self.percentiles] or None,
            "topic": self.topic,
            "channel": self.channel,
            "host": self.host,
        }


#: For a node that measures none. Sums of nodes are other objects.
_NONE = Latency()


def _as_go(number: float) -> float:
    return int(number) if number == int(number) else number


@dataclass(slots=True)
class ChannelFigures:
    """One channel: of a node, or, with ``node`` "*", the sum of several."""

    node: str
    hostname: str
    topic_name: str
    channel_name: str
    depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    message_count: int = 0
    zone_local_msg_count: int = 0
    region_local_msg_count: int = 0
    global_msg_count: int = 0
    client_count: int = 0
    paused: bool = False
    #: None if they were not asked for.
    clients: list[Client] | None = None
    #: Of a sum.
    nodes: list[ChannelFigures] = field(default_factory=list)
    latency: Latency = field(default_factory=Latency)

    @property
    def memory_depth(self) -> int:
        return self.depth - self.backend_depth

    @property
    def left(self) -> int:
        """Messages that are not finished."""
        return self.depth + self.in_flight_count + self.deferred_count

    @property
    def taken(self) -> int:
        """Messages that nsqd took from memory for clients; 0 for NSQ up to 1.3.0."""
        return self.zone_local_msg_count + self.region_local_msg_count + self.global_msg_count

    @property
    def by_node(self) -> dict[str, ChannelFigures]:
        """The same on each node."""
        return {each.node: each for each in self.nodes or [self]}

    def add(self, other: ChannelFigures) -> None:
        """Add a node's channel to this sum."""
        for name in CHANNEL_COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.client_count += other.client_count
        self.paused |= other.paused
        self.nodes.append(other)
        self.latency.add(other.latency)
        if other.clients:
            self.clients = [*(self.clients or ()), *other.clients]

    def as_json(self) -> dict[str, object]:
        return {
            "node": self.node,
            "hostname": self.hostname,
            "topic_name": self.topic_name,
            "channel_name": self.channel_name,
            "depth": self.depth,
            "memory_depth": self.memory_depth,
            "backend_depth": self.backend_depth,
            **{name: getattr(self, name) for name in _OWN_COUNTS[2:]},
            **({"delivery_msg_count": self.taken} if self.taken else {}),
            **{name: count for name in TAKEN_COUNTS if (count := getattr(self, name))},
            "client_count": self.client_count,
            "nodes": [each.as_json() for each in self.nodes] or None,
            "clients": None if self.clients is None else [_client_json(each) for each in self.clients],
            "paused": self.paused,
            "e2e_processing_latency": self.latency.as_json(),
        }


@dataclass(slots=True)
class TopicFigures:
    """One topic: of a node, or, with ``node`` "*", the sum of several."""

    node: str
    hostname: str
    topic_name: str
    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    paused: bool = False
    channels: list[ChannelFigures] = field(default_factory=list)
    nodes: list[TopicFigures] = field(default_factory=list)
    latency: Latency = field(default_factory=Latency)
    #: Of all its messages; only of a node.
    message_bytes: int = 0

    @property
    def memory_depth(self) -> int:
        return self.depth - self.backend_depth

    def channel(self, name: str) -> ChannelFigures | None:
        """The channel of this name, or None."""
        return next((each for each in self.channels if each.channel_name == name), None)

    def as_json(self) -> dict[str, object]:
        return {
            "node": self.node,
            "hostname": self.hostname,
            "topic_name": self.topic_name,
            "depth": self.depth,
            "memory_depth": self.memory_depth,
            "backend_depth": self.backend_depth,
            "message_count": self.message_count,
            "nodes": [each.as_json() for each in self.nodes] or None,
            # Of a node it is nsqd's list; that of a sum is null if nothing was added.
            "channels": [each.as_json() for each in self.channels] or (None if self.node == _ALL_NODES else []),
            "paused": self.paused,
            # Without nodes, nsqadmin has none to add up.
            "e2e_processing_latency": self.latency.as_json() if self.node else None,
        }


def sum_of_topics(name: str, topics: Iterable[TopicFigures]) -> TopicFigures:
    """The topic on all of these nodes."""
    total = TopicFigures("", "", name, latency=Latency(topic=name))
    channels: dict[str, list[ChannelFigures]] = {}
    for topic in _in_order(topics):
        total.node = _ALL_NODES
        for count in TOPIC_COUNTS:
            setattr(total, count, getattr(total, count) + getattr(topic, count))
        total.paused |= topic.paused
        total.nodes.append(topic)
        total.latency.add(topic.latency)
        for channel in topic.channels:
            channels.setdefault(channel.channel_name, []).append(channel)
    for _, each in sorted(channels.items()):
        # As nsqadmin: a channel of one node is that node's.
        total.channels.append(copy.copy(each[0]) if len(each) == 1 else _sum(each, each[0].hostname, Latency()))
    return total


def sum_of_channels(channels: Iterable[ChannelFigures]) -> ChannelFigures:
    """One channel on all of these nodes, of which there must be one at least."""
    found = _in_order(channels)
    return _sum(found, "", Latency(topic=found[0].topic_name, channel=found[0].channel_name))


def _sum(channels: list[ChannelFigures], hostname: str, latency: Latency) -> ChannelFigures:
    total = ChannelFigures(_ALL_NODES, hostname, channels[0].topic_name, channels[0].channel_name, latency=latency)
    for each in channels:
        total.add(each)
    if total.clients:
        total.clients.sort(key=lambda client: (client["hostname"], client["remote_address"]))
    return total


def _in_order(figures: Iterable[object]) -> list[Any]:
    return sorted(figures, key=lambda each: (each.hostname, each.node))


# -- reading ------------------------------------------------------------------------------------------


def read_topics(stats: NsqdStats) -> list[TopicFigures]:
    """The topics of an nsqd's /stats, of no node yet; next: :func:`of_node`."""
    return [_topic(record) for record in stats["topics"]]


def of_node(
    topics: Iterable[TopicFigures], address: str, hostname: str, of_client: Mapping[str, str]
) -> Iterator[TopicFigures]:
    """The topics, with their channels and clients, as those of a node.

    :param of_client: the fields about the node in each client's record
    """
    for topic in topics:
        topic.node, topic.hostname = address, hostname
        for channel in topic.channels:
            channel.node, channel.hostname = address, hostname
            for client in channel.clients or ():
                client |= of_client
        yield topic


def _topic(record: TopicStats) -> TopicFigures:
    name = record["topic_name"]
    return TopicFigures(
        "",
        "",
        name,
        record["depth"],
        record["backend_depth"],
        record["message_count"],
        record["paused"],
        [_channel(each, name) for each in record["channels"]],
        latency=_latency(record["e2e_processing_latency"]),
        message_bytes=record["message_bytes"],
    )


def _channel(record: ChannelStats, topic: str) -> ChannelFigures:
    counts: Mapping[str, Any] = record
    return ChannelFigures(
        "",
        "",
        topic,
        record["channel_name"],
        **{name: counts[name] for name in CHANNEL_COUNTS},
        client_count=record["client_count"],
        paused=record["paused"],
        clients=None if record["clients"] is None else [_client(each) for each in record["clients"]],
        latency=_latency(record["e2e_processing_latency"]),
    )


def _latency(record: LatencyStats) -> Latency:
    if not record["percentiles"] and not record["count"]:
        return _NONE
    count = record["count"]
    latency = Latency(count)
    for each in record["percentiles"]:
        value = each["value"]
        latency.percentiles.append(
            {"quantile": each["quantile"], "value": value, "min": value, "max": value, "average": value, "count": count}
        )
    return latency


def _client(record: Mapping[str, Any]) -> Client:
    """nsqadmin's fields, in its order."""
    found = {"node": "", **{name: record[name] for name in _BEFORE_TOPOLOGY}}
    found |= dict.fromkeys(("node_topology_region", "node_topology_zone"), "")
    return found | {name: record[name] for name in _TOPOLOGY_AND_AFTER}


def _client_json(client: Client) -> dict[str, object]:
    fields: dict[str, object] = {}
    for name, value in client.items():
        if value == "" and "topology_" in name:
            continue
        fields[name] = value
        if name == "connect_ts":
            fields["connected"] = connected_seconds(client) * 1_000_000_000
    return fields


def connected_seconds(client: Client) -> int:
    """For how long a client has been connected."""
    return int(time.time()) - int(client["connect_ts"])


def read_publishers(stats: NsqdStats, topic: str) -> list[Client]:
    """The open connections of an nsqd that have published to a topic, as clients with ``published``.

    :param stats: of this topic only: nsqd counts one topic for each connection
    """
    return [
        {**_client(record), "published": each["count"]}
        for record in stats["producers"]
        for each in record["pub_counts"]
        if each["topic"] == topic
    ]
