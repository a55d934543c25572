"""Reads a cluster for the admin; every method asks all daemons concerned at once.

All methods run in one hub (``admin/core.py``), and may switch there. Equal requests at the same time share one answer;
``max_age`` is the age in seconds that an earlier answer may have. nsqadmin asks one daemon after the other, or once for
each topic; here fewer requests give the same answers.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gnsq_like.admin.upstream.departures import REGISTERS_WITHIN, Departures
from gnsq_like.admin.upstream.overview import NodeStats, NodeTotal, Overview, add_node, read_stats
from gnsq_like.admin.upstream.shared import Shared
from gnsq_like.cluster.counting import TopicCount, count_topic
from gnsq_like.cluster.daemons import Daemons
from gnsq_like.cluster.figures import ChannelFigures, TopicFigures, read_topics
from gnsq_like.cluster.nodes import Node, from_info, in_order, unite
from gnsq_like.cluster.rounds import NoAnswer, NotFound, Round
from gnsq_like.http.nsqd import NsqdHTTPClient
from gnsq_like.http.nsqlookupd import LookupdClient, NsqdNode

_T = TypeVar("_T")

#: Seconds for which pages get an earlier answer.
MAX_AGE = 1.0
#: The part of a core that polls may take: a poll that took 0.1 s of CPU time is not repeated for 2.9 s.
MOST_CPU = 0.035
#: The fraction of a round's time for nsqlookupds, if nsqds are asked afterwards.
_FIRST_PART = 0.5


@dataclass
class Found(Generic[_T]):
    """The answer, and the daemons that gave none."""

    value: _T
    warnings: list[str] = field(default_factory=list)


@dataclass
class NodeReport:
    """A node with all of its topics, channels and clients."""

    node: Node
    topics: list[TopicFigures]
    memory: dict[str, Any]

    @property
    def messages(self) -> int:
        return sum(topic.message_count for topic in self.topics)

    @property
    def clients(self) -> int:
        return sum(len(channel.clients or ()) for topic in self.topics for channel in topic.channels)


class Cluster:
    """The daemons of one cluster: all nsqds that these nsqlookupds know, or a fixed list.

    :param name: for people; empty for the only one
    """

    def __init__(self, name: str, daemons: Daemons) -> None:
        self.name = name
        self.daemons = daemons
        #: Seconds for nsqlookupds, if nsqds are asked afterwards.
        self._first = _FIRST_PART * daemons.timeout
        self.shared = Shared()
        #: The last one that was taken.
        self.last_overview: Overview | None = None
        self.departures = Departures()

    @property
    def has_lookupds(self) -> bool:
        return bool(self.daemons.lookupd_http_addresses)

    def command(self, *words: str) -> str:
        """``gnsq-like WORDS``, for this cluster; pages show it beside their buttons."""
        if self.has_lookupds:
            flag, addresses = "--lookupd-http-address", self.daemons.lookupd_http_addresses
        else:
            flag, addresses = "--nsqd-http-address", self.daemons.nsqd_http_addresses
        return shlex.join(["gnsq-like", *words, *(f"{flag}={each}" for each in addresses)])

    def close(self) -> None:
        """Close all connections."""
        self.daemons.close()

    # -- topics ----------------------------------------------------------------------------------------

    def topics(self, max_age: float = 0.0) -> Found[list[str]]:
        """The names of all topics. Raises NoAnswer."""

        def ask() -> Found[list[str]]:
            if self.has_lookupds:
                known = self._ask_lookupds(LookupdClient.topics)
                return Found(sorted({each for topics in known.answers.values() for each in topics}), known.warnings)
            found = self.daemons.ask_nsqds(self.daemons.nsqd_http_addresses, _topic_names)
            found.require_any("nsqd")
            return Found(sorted({each for topics in found.answers.values() for each in topics}), found.warnings)

        return self.shared.get(("topics",), ask, max_age)

    def inactive_topics(self, max_age: float = 0.0) -> Found[dict[str, list[str]]]:
        """Topics that no node has, though nsqlookupds know them, and their channels. Raises NoAnswer."""

        def ask() -> Found[dict[str, list[str]]]:
            if not self.has_lookupds:
                return Found({}, self.topics().warnings)
            known = self._ask_lookupds(lambda client: (client.topics(), client.nodes()), self._first)
            topics = {topic for each, _ in known.answers.values() for topic in each}
            active = {topic for _, nodes in known.answers.values() for node in nodes for topic in _active_topics(node)}
            inactive = sorted(topics - active)
            found = self.daemons.ask_lookupds(lambda client: {each: client.channels(each) for each in inactive})
            channels: dict[str, set[str]] = {topic: set() for topic in inactive}
            for answer in found.answers.values():
                for topic, names in answer.items():
                    channels[topic].update(names)
            later = [str(failure) for address, failure in found.failures.items() if address in known.answers]
            warnings = [*known.warnings, *later]
            return Found({topic: sorted(names) for topic, names in channels.items()}, warnings)

        return self.shared.get(("inactive",), ask, max_age)

    def topic(self, name: str, max_age: float = 0.0, *, with_clients: bool = False) -> Found[TopicCount]:
        """A topic. Raises NoAnswer if no node has it."""

        def ask() -> Found[TopicCount]:
            return self._count(name, None, with_clients)

        return self.shared.get(("topic", name, with_clients), ask, max_age)

    def channel(self, topic: str, name: str, max_age: float = 0.0) -> Found[ChannelFigures | None]:
        """A channel with its clients; None if no node has it. Raises NoAnswer if none has its topic."""

        def ask() -> Found[ChannelFigures | None]:
            found = self._count(topic, name, True)
            return Found(found.value.channel(name), found.warnings)

        return self.shared.get(("channel", topic, name), ask, max_age)

    def _count(self, topic: str, channel: str | None, with_clients: bool) -> Found[TopicCount]:
        count = count_topic(self.daemons, topic, channel, with_clients=with_clients, timeout=self._first)
        if not count.nodes:
            raise NotFound(f"topic {topic} on any nsqd")
        return Found(count, [*map(str, count.failures)])

    # -- nodes -----------------------------------------------------------------------------------------

    def nodes(self, max_age: float = 0.0) -> Found[list[Node]]:
        """All nodes. Raises NoAnswer."""

        def ask() -> Found[list[Node]]:
            found = self.daemons.nodes()
            return Found([*found.answers.values()], found.warnings)

        return self.shared.get(("nodes",), ask, max_age)

    def node(self, address: str, max_age: float = 0.0) -> Found[NodeReport | None]:
        """A node with its topics, channels and clients; None if no node has this name. Raises NoAnswer."""

        def ask() -> Found[NodeReport | None]:
            known = self.nodes()
            node = next((each for each in known.value if each.address == address), None)
            if node is None:
                return Found(None, known.warnings)
            found = self.daemons.ask_nsqds([address], lambda client: (stats := client.stats(), read_topics(stats)))
            found.require_any("nsqd")
            stats, topics = found.answers[address]
            memory = stats.get("memory")
            report = NodeReport(node, [*node.own(topics)], memory if isinstance(memory, dict) else {})
            return Found(report, known.warnings)

        return self.shared.get(("node", address), ask, max_age)

    def counter(self, max_age: float = 0.0) -> Found[dict[tuple[str, str, str], int]]:
        """How many messages each channel of each node has had, by topic, channel and node. Raises NoAnswer."""

        def ask() -> Found[dict[tuple[str, str, str], int]]:
            nodes = self.nodes()
            addresses = [node.address for node in nodes.value]
            found = self.daemons.ask_nsqds(addresses, _read_all)
            found.require_any("nsqd")
            counts: dict[tuple[str, str, str], int] = {}
            for address, stats in found.answers.items():
                for channel in (each for topic in stats.topics for each in topic.channels):
                    counts[channel.topic_name, channel.channel_name, address] = channel.message_count
            return Found(counts, [*nodes.warnings, *found.warnings])

        return self.shared.get(("counter",), ask, max_age)

    # -- all -------------------------------------------------------------------------------------------

    def overview(self, max_age: float = MAX_AGE) -> Overview:
        """Everything, at most ``max_age`` seconds old, or older if polls of this cluster are costly.

        Failures are in its ``warnings`` and in the ``problem`` of its nodes.
        """
        cost = 0.0 if self.last_overview is None else self.last_overview.cost
        return self.shared.get(("overview",), self._take_overview, max(max_age, cost / MOST_CPU))

    def _take_overview(self) -> Overview:
        overview, used = Overview(time.time(), time.monotonic()), time.thread_time()
        try:
            nodes = self._nodes_for(overview)
        except NoAnswer as exc:
            overview.warnings.append(str(exc))
            nodes = []
        totals = [NodeTotal(node) for node in nodes]
        if self.has_lookupds:
            self.departures.look(nodes, overview.lookupds, overview.at)
            totals += [NodeTotal(node, left_at=at) for node, at in self.departures.left.values()]
            self.daemons.keep(total.node.address for total in totals)
        found = self.daemons.ask_nsqds([total.node.address for total in totals], _read_all)
        for total in totals:
            address = total.node.address
            if total.left_at is not None and overview.at - total.left_at >= REGISTERS_WITHIN:
                total.problem = "no nsqlookupd lists it"
            if (stats := found.answers.get(address)) is not None:
                add_node(overview, total, stats)
                continue
            total.problem = str(found.failures[address])
            overview.nodes.append(total)
            if total.left_at is None:
                overview.warnings.append(total.problem)
        overview.topics = dict(sorted(overview.topics.items()))
        overview.idle_topics = [topic for topic in overview.idle_topics if topic not in overview.topics]
        overview.cost = time.thread_time() - used
        self.last_overview = overview
        return overview

    def _nodes_for(self, overview: Overview) -> list[Node]:
        if not self.has_lookupds:
            known = self.daemons.ask_nsqds(self.daemons.nsqd_http_addresses, NsqdHTTPClient.info, self._first)
            nodes = []
            for address in self.daemons.nsqd_http_addresses:
                if address in known.answers:
                    nodes.append(from_info(address, known.answers[address]))
                else:
                    overview.warnings.append(str(known.failures[address]))
                    silent = NodeTotal(from_info(address, None), str(known.failures[address]))
                    overview.nodes.append(silent)
            return in_order(nodes)
        answers = self.daemons.ask_lookupds(lambda client: (client.topics(), client.nodes()), self._first)
        overview.lookupds = {
            address: str(answers.failures.get(address, ""))
            for address in dict.fromkeys(self.daemons.lookupd_http_addresses)
        }
        overview.warnings += answers.warnings
        overview.idle_topics = sorted({topic for topics, _ in answers.answers.values() for topic in topics})
        return unite({address: nodes for address, (_, nodes) in answers.answers.items()})

    # -- asking ----------------------------------------------------------------------------------------

    def _ask_lookupds(self, question: Callable[[LookupdClient], _T], timeout: float | None = None) -> Round[_T]:
        known = self.daemons.ask_lookupds(question, timeout)
        known.require_any("nsqlookupd")
        return known

    def producers_of(self, topic: str) -> list[Node]:
        """The nodes that have a topic; empty if only nsqlookupds know it. Raises NoAnswer if no daemon does."""
        return [*self.daemons.nodes_of(topic, self._first).answers.values()]

    def not_reached(self, topic: str) -> list[str]:
        """Warnings for nodes that had a topic and have left: they may come back with it. May switch."""
        if not self.has_lookupds:
            return []
        known = self.daemons.ask_lookupds(LookupdClient.nodes, self._first)
        problems = {address: str(known.failures.get(address, "")) for address in self.daemons.lookupd_http_addresses}
        self.departures.look(unite(known.answers), problems, time.time())
        left = (node for node, _ in self.departures.left.values())
        return [f"{node.address} has left with {topic}, not reached" for node in left if topic in node.topics]


def _active_topics(node: NsqdNode) -> Iterable[str]:
    hidden = node.tombstoned_topics
    return (topic for topic in node.topics if topic not in hidden)


def _topic_names(client: NsqdHTTPClient) -> list[str]:
    return [topic.topic_name for topic in _read_all(client).topics]


def _read_all(client: NsqdHTTPClient) -> NodeStats:
    return read_stats(client.stats(include_clients=False, include_mem=False))
