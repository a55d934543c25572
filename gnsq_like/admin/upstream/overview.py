"""The whole cluster at one moment: every topic and channel, summed over all nodes, and a line for each node."""

from __future__ import annotations

from dataclasses import dataclass, field

from gnsq_like.cluster.figures import ChannelFigures, TopicFigures, read_topics
from gnsq_like.cluster.nodes import Node
from gnsq_like.http.nsqd import NsqdStats


@dataclass(slots=True)
class ChannelTotal:
    """A channel on all nodes."""

    topic: str
    name: str
    depth: int = 0
    backend_depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    requeued: int = 0
    timed_out: int = 0
    messages: int = 0
    clients: int = 0
    #: Nodes that have it, and those of them on which it is paused.
    nodes: int = 0
    paused: int = 0

    @property
    def left(self) -> int:
        """Messages that are not finished."""
        return self.depth + self.in_flight + self.deferred

    @property
    def finished(self) -> int:
        """Messages that were finished, or dropped by emptying."""
        return self.messages - self.left


@dataclass(slots=True)
class TopicTotal:
    """A topic on all nodes."""

    name: str
    depth: int = 0
    backend_depth: int = 0
    messages: int = 0
    nodes: int = 0
    paused: int = 0
    channels: dict[str, ChannelTotal] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Messages that wait in the topic, and in all of its channels."""
        return self.depth + sum(channel.left for channel in self.channels.values())

    @property
    def clients(self) -> int:
        return sum(channel.clients for channel in self.channels.values())


@dataclass(slots=True)
class NodeTotal:
    """A node with its totals."""

    node: Node
    #: Why its figures are missing; empty if they are not.
    problem: str = ""
    depth: int = 0
    in_flight: int = 0
    messages: int = 0
    topics: int = 0
    channels: int = 0
    clients: int = 0
    health: str = ""
    start_time: int = 0
    #: When no nsqlookupd listed it any more (epoch); None for one that is listed.
    left_at: float | None = None


@dataclass(slots=True)
class Overview:
    """A cluster at one moment."""

    #: Seconds since the epoch, and monotonic.
    at: float
    taken: float
    topics: dict[str, TopicTotal] = field(default_factory=dict)
    nodes: list[NodeTotal] = field(default_factory=list)
    #: Topics that nsqlookupd knows and no node reports.
    idle_topics: list[str] = field(default_factory=list)
    #: Why each nsqlookupd did not answer; empty if it did.
    lookupds: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    #: The report of each node, by its address; the totals are their sums.
    reported: dict[str, list[TopicFigures]] = field(default_factory=dict)
    #: Seconds of CPU time that it took.
    cost: float = 0.0

    @property
    def depth(self) -> int:
        return sum(node.depth for node in self.nodes)

    @property
    def in_flight(self) -> int:
        return sum(node.in_flight for node in self.nodes)

    @property
    def messages(self) -> int:
        return sum(topic.messages for topic in self.topics.values())

    @property
    def clients(self) -> int:
        return sum(node.clients for node in self.nodes)

    def channel(self, topic: str, name: str) -> ChannelTotal | None:
        """A channel; None if there is none of these names."""
        found = self.topics.get(topic)
        return None if found is None else found.channels.get(name)


@dataclass(slots=True)
class NodeStats:
    """One node's report."""

    topics: list[TopicFigures]
    health: str
    start_time: int


def read_stats(stats: NsqdStats) -> NodeStats:
    """Read an nsqd's /stats."""
    return NodeStats(read_topics(stats), stats["health"], stats["start_time"])


def add_node(overview: Overview, total: NodeTotal, stats: NodeStats) -> None:
    """Add a node's report."""
    total.health, total.start_time = stats.health, stats.start_time
    total.topics = len(stats.topics)
    for each in stats.topics:
        name = each.topic_name
        topic = overview.topics.get(name)
        if topic is None:
            topic = overview.topics[name] = TopicTotal(name)
        topic.depth += each.depth
        topic.backend_depth += each.backend_depth
        topic.messages += each.message_count
        topic.nodes += 1
        topic.paused += each.paused
        total.depth += each.depth
        total.messages += each.message_count
        total.channels += len(each.channels)
        for channel in each.channels:
            _add_channel(topic, total, channel)
    overview.nodes.append(total)
    overview.reported[total.node.address] = stats.topics


def _add_channel(topic: TopicTotal, total: NodeTotal, channel: ChannelFigures) -> None:
    name = channel.channel_name
    found = topic.channels.get(name)
    if found is None:
        found = topic.channels[name] = ChannelTotal(topic.name, name)
    found.depth += channel.depth
    found.backend_depth += channel.backend_depth
    found.in_flight += channel.in_flight_count
    found.deferred += channel.deferred_count
    found.requeued += channel.requeue_count
    found.timed_out += channel.timeout_count
    found.messages += channel.message_count
    found.clients += channel.client_count
    found.nodes += 1
    found.paused += channel.paused
    total.depth += channel.depth
    total.in_flight += channel.in_flight_count
    total.clients += channel.client_count
