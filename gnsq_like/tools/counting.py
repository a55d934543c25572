"""Topics and channels as nsqds count them, their sums over all nsqds, and their rates. What asks may switch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gevent

from gnsq_like import LookupdClient
from gnsq_like.errors import HTTPRequestFailed, NSQError
from gnsq_like.tools.daemons import Daemons, NotFound
from gnsq_like.tools.rounds import Round
from gnsq_like.tools.sources import Unreachable

#: The counts of a record of nsqd's that are summed.
COUNTS = (
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
    "client_count",
)
_OF_TOPICS = ("depth", "backend_depth", "message_count")


@dataclass
class ChannelCount:
    """A channel, on one nsqd or on all."""

    topic: str
    channel: str
    depth: int = 0
    #: The part of depth that is on disk.
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    message_count: int = 0
    client_count: int = 0
    #: On any of the nsqds.
    paused: bool = False
    #: The same on each nsqd, by its HTTP address; empty on one.
    nodes: dict[str, ChannelCount] = field(default_factory=dict)
    #: nsqd's records of consumers, each with "node"; empty if they were not asked for.
    clients: list[dict[str, Any]] = field(default_factory=list)

    def add(self, node: str, other: ChannelCount) -> None:
        """Add the channel of a node."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.paused |= other.paused
        self.clients += [{"node": node, **client} for client in other.clients]
        self.nodes[node] = other


@dataclass
class TopicCount:
    """A topic, on one nsqd or on all."""

    topic: str
    #: Messages that no channel has been given yet.
    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    paused: bool = False
    channels: dict[str, ChannelCount] = field(default_factory=dict)
    nodes: dict[str, TopicCount] = field(default_factory=dict)

    def add(self, node: str, other: TopicCount) -> None:
        """Add the topic of a node."""
        for name in _OF_TOPICS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.paused |= other.paused
        for name, channel in other.channels.items():
            self.channels.setdefault(name, ChannelCount(self.topic, name)).add(node, channel)
        self.nodes[node] = other


@dataclass
class Counts:
    """What was counted."""

    #: In the order of their names, as are their channels.
    topics: dict[str, TopicCount]
    #: The nsqds that were counted.
    nodes: frozenset[str] = frozenset()
    #: Daemons that gave no usable answer.
    failures: list[NSQError] = field(default_factory=list)


def count_all(daemons: Daemons) -> Counts:
    """Every topic of all nsqds, and topics that only nsqlookupds know.

    :raises Unreachable: none of the given daemons answers, or none of the nsqds that nsqlookupds know
    """
    known: Round[list[str]] = Round()
    addresses: Iterable[str] = daemons.nsqd_http_addresses
    failures: dict[str, NSQError] = {}
    if daemons.lookupd_http_addresses:
        nodes = daemons.nodes()
        addresses = nodes.answers
        known = daemons.ask_lookupds(LookupdClient.topics)
        failures = {**nodes.failures, **known.failures}
    counts = _count(daemons, addresses, failures)
    for topic in {each for topics in known.answers.values() for each in topics}:
        counts.topics.setdefault(topic, TopicCount(topic))
    counts.topics = dict(sorted(counts.topics.items()))
    return counts


def count_topic(
    daemons: Daemons, topic: str, channel: str | None = None, *, with_clients: bool = False
) -> tuple[TopicCount, Counts]:
    """A topic on all nsqds that have it.

    :param channel: only this channel of it
    :raises NotFound: there is no such topic or channel
    :raises Unreachable: none of the given daemons answers, or none of the nsqds that nsqlookupds know
    """
    nodes = daemons.nodes_of(topic)
    counts = _count(daemons, nodes.answers, nodes.failures, topic, channel, with_clients)
    found = counts.topics.get(topic, TopicCount(topic))
    if channel is not None and channel not in found.channels:
        raise NotFound(f"channel {topic}/{channel}", counts.failures)
    return found, counts


def _count(
    daemons: Daemons,
    addresses: Iterable[str],
    failures: Mapping[str, NSQError],
    topic: str | None = None,
    channel: str | None = None,
    with_clients: bool = False,
) -> Counts:
    found = daemons.ask_nsqds(
        addresses,
        lambda client: _read(
            client.url, client.stats(topic, channel, include_clients=with_clients, include_mem=False), topic, channel
        ),
    )
    if found.failures and not found.answers:
        raise Unreachable({**failures, **found.failures})
    topics: dict[str, TopicCount] = {}
    for address, answer in found.answers.items():
        for each in answer:
            topics.setdefault(each.topic, TopicCount(each.topic)).add(address, each)
    for each in topics.values():
        each.channels = dict(sorted(each.channels.items()))
    return Counts(dict(sorted(topics.items())), frozenset(found.answers), [*{**failures, **found.failures}.values()])


def _read(url: str, stats: Mapping[str, Any], topic: str | None, channel: str | None) -> list[TopicCount]:
    """The topics of /stats; raises HTTPRequestFailed if they are not what nsqd sends."""
    try:
        return [_topic(record, channel) for record in stats["topics"] if topic is None or record["topic_name"] == topic]
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        raise HTTPRequestFailed(url, f"the answer is malformed: {exc!r}") from exc


def _topic(record: Mapping[str, Any], only: str | None) -> TopicCount:
    topic = TopicCount(record["topic_name"], paused=bool(record.get("paused")))
    for name in _OF_TOPICS:
        setattr(topic, name, int(record.get(name, 0)))
    for each in record["channels"] or ():
        if only in (None, each["channel_name"]):
            topic.channels[each["channel_name"]] = _channel(topic.topic, each)
    return topic


def _channel(topic: str, record: Mapping[str, Any]) -> ChannelCount:
    clients = [dict(client) for client in record.get("clients") or ()]
    channel = ChannelCount(topic, record["channel_name"], paused=bool(record.get("paused")), clients=clients)
    for name in COUNTS:
        setattr(channel, name, int(record.get(name, 0)))
    channel.client_count = channel.client_count or len(clients)  # nsqd before 1.2 counts none
    return channel


@dataclass
class Report:
    """A channel on all nsqds at one moment."""

    #: Seconds since the epoch.
    time: float
    count: ChannelCount
    #: Messages a second since the report before, into the channel and out of its depth; None where there is none.
    ingress: float | None = None
    egress: float | None = None
    #: Daemons that gave no usable answer; their messages are missing.
    failures: list[NSQError] = field(default_factory=list)


def report_once(daemons: Daemons, topic: str, channel: str) -> Report:
    """A report without rates. May switch.

    :raises NotFound: there is no such topic or channel
    :raises Unreachable: none of the given daemons answers, or none of the nsqds that nsqlookupds know
    """
    found, counts = count_topic(daemons, topic, channel)
    return Report(time.time(), found.channels[channel], failures=counts.failures)


def reports(daemons: Daemons, topic: str, channel: str, interval: float) -> Iterator[Report | Unreachable]:
    """A report after each interval, for ever; an Unreachable for one in which no daemon answered. May switch.

    :param interval: seconds
    :raises NotFound: there is no such topic or channel, or no longer
    :raises Unreachable: no daemon answers at the start
    """
    due = time.monotonic()
    # Those that did not answer may be back at the next report: a rate is that since their last answer.
    last: dict[str, tuple[float, ChannelCount]] = {}
    renew_rates(last, due, report_once(daemons, topic, channel).count.nodes)
    while True:
        now = time.monotonic()
        due = max(due + interval, now)  # what was missed is not made up for
        gevent.sleep(due - now)
        try:
            report = report_once(daemons, topic, channel)
        except Unreachable as exc:
            yield exc
            continue
        report.ingress, report.egress = renew_rates(last, time.monotonic(), report.count.nodes)
        yield report


def renew_rates(
    last: dict[str, tuple[float, ChannelCount]], now: float, nodes: Mapping[str, ChannelCount]
) -> tuple[float | None, float | None]:
    """The rates of all nsqds together; None if no nsqd has answered before. Never switches.

    An nsqd that was restarted counts from 0 again: its rate is left out once.

    :param last: when each nsqd answered before, and what; renewed here
    """
    ingress: float | None = None
    egress = 0.0
    for address, count in nodes.items():
        then, before = last.get(address, (now, count))
        last[address] = now, count
        came = count.message_count - before.message_count
        if now > then and came >= 0:
            ingress = (ingress or 0.0) + came / (now - then)
            egress += (came - (count.depth - before.depth)) / (now - then)
    return ingress, None if ingress is None else egress
