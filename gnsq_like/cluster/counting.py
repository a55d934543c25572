"""Counts of topics and channels, summed over all nsqds, and their rates. Functions that ask daemons may switch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gevent

from gnsq_like import LookupdClient, NsqdHTTPClient
from gnsq_like.cluster.daemons import Daemons
from gnsq_like.cluster.figures import (
    ChannelFigures,
    Client,
    TopicFigures,
    of_node,
    read_publishers,
    read_topics,
    sum_of_channels,
    sum_of_topics,
)
from gnsq_like.cluster.nodes import Node
from gnsq_like.cluster.rounds import NotFound, Round, Unreachable
from gnsq_like.errors import NSQError


@dataclass
class Counts:
    """Counts of topics, and the daemons that gave none."""

    #: Sums of all nsqds, by name and in that order, as are their channels.
    topics: dict[str, TopicFigures]
    #: Daemons that gave no usable answer.
    failures: list[NSQError] = field(default_factory=list)


@dataclass
class TopicCount:
    """A topic on all nsqds that have it."""

    total: TopicFigures
    #: Those that have it, and answer.
    nodes: list[Node]
    #: Open connections that have published to it, as clients with ``published``; only with clients.
    publishers: list[dict[str, Any]]
    #: Daemons that gave no usable answer.
    failures: list[NSQError]

    def channel(self, name: str) -> ChannelFigures | None:
        """The sum of a channel; None if no nsqd has it."""
        found = [each for topic in self.total.nodes if (each := topic.channel(name)) is not None]
        return sum_of_channels(found) if found else None


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
    found = daemons.ask_nsqds(
        addresses, lambda client: read_topics(client.stats(include_clients=False, include_mem=False))
    )
    failures |= found.failures
    if found.failures:
        Round(found.answers, failures).require_any("nsqd")
    by_name: dict[str, list[TopicFigures]] = {topic: [] for topics in known.answers.values() for topic in topics}
    for address, answer in found.answers.items():
        for each in of_node(answer, address, "", {"node": address}):
            by_name.setdefault(each.topic_name, []).append(each)
    return Counts({name: sum_of_topics(name, by_name[name]) for name in sorted(by_name)}, [*failures.values()])


def count_topic(
    daemons: Daemons,
    topic: str,
    channel: str | None = None,
    *,
    with_clients: bool = False,
    timeout: float | None = None,
) -> TopicCount:
    """A topic on all nsqds that have it.

    :param channel: only this channel of it
    :param timeout: seconds to find out which nsqds have it
    :raises NotFound: nobody knows the topic
    :raises Unreachable: none of the given daemons answers, or none of the nsqds that nsqlookupds know
    """

    def question(client: NsqdHTTPClient) -> tuple[list[TopicFigures], list[Client]]:
        stats = client.stats(topic, channel, include_clients=with_clients, include_mem=False)
        return read_topics(stats), read_publishers(stats, topic)

    nodes = daemons.nodes_of(topic, timeout)
    found = daemons.ask_nsqds(nodes.answers, question)
    failures = {**nodes.failures, **found.failures}
    if found.failures:
        Round(found.answers, failures).require_any("nsqd")
    answers = [(nodes.answers[address], *answer) for address, answer in found.answers.items()]
    figures = [each for node, topics, _ in answers for each in node.own(topics) if each.topic_name == topic]
    publishers = [{**each, **node.of_client} for node, _, published in answers for each in published]
    return TopicCount(sum_of_topics(topic, figures), [node for node, *_ in answers], publishers, [*failures.values()])


def count_channel(
    daemons: Daemons, topic: str, channel: str, *, with_clients: bool = False
) -> tuple[ChannelFigures, list[NSQError]]:
    """A channel on all nsqds that have it, and the errors of daemons that gave no usable answer.

    :raises NotFound: there is no such topic or channel
    :raises Unreachable: as :func:`count_topic`
    """
    count = count_topic(daemons, topic, channel, with_clients=with_clients)
    found = count.channel(channel)
    if found is None:
        raise NotFound(f"channel {topic}/{channel}", count.failures)
    return found, count.failures


@dataclass
class Report:
    """A channel on all nsqds at one moment."""

    #: Seconds since the epoch.
    time: float
    count: ChannelFigures
    #: Messages a second into the channel and delivered from it, since the previous report; None before the second one.
    ingress: float | None = None
    egress: float | None = None
    #: Daemons that gave no usable answer; their messages are missing.
    failures: list[NSQError] = field(default_factory=list)


def report_once(daemons: Daemons, topic: str, channel: str) -> Report:
    """A report without rates. May switch.

    :raises NotFound: there is no such topic or channel
    :raises Unreachable: none of the given daemons answers, or none of the nsqds that nsqlookupds know
    """
    found, failures = count_channel(daemons, topic, channel)
    return Report(time.time(), found, failures=failures)


def reports(daemons: Daemons, topic: str, channel: str, interval: float) -> Iterator[Report | Unreachable]:
    """A report after each interval, for ever; an Unreachable in its place if no daemon answered. May switch.

    :param interval: seconds
    :raises NotFound: there is no such topic or channel, or no longer
    :raises Unreachable: no daemon answers at the start
    """
    due = time.monotonic()
    # An nsqd that does not answer may be back at the next report, which then has its rate since its last answer.
    last: dict[str, tuple[float, ChannelFigures]] = {}
    renew_rates(last, due, report_once(daemons, topic, channel).count.by_node)
    while True:
        now = time.monotonic()
        due = max(due + interval, now)  # what was missed is not made up for
        gevent.sleep(due - now)
        try:
            report = report_once(daemons, topic, channel)
        except Unreachable as exc:
            yield exc
            continue
        report.ingress, report.egress = renew_rates(last, time.monotonic(), report.count.by_node)
        yield report


def renew_rates(
    last: dict[str, tuple[float, ChannelFigures]], now: float, nodes: Mapping[str, ChannelFigures]
) -> tuple[float | None, float | None]:
    """The rates of all nsqds together; None if no nsqd has answered before. Never switches.

    An nsqd that was restarted counts from 0 again: its rate is left out once.

    :param last: the time and counts of the previous answer of each nsqd; updated here
    """
    ingress: float | None = None
    egress = 0.0
    for address, count in nodes.items():
        then, before = last.get(address, (now, count))
        last[address] = now, count
        came = count.message_count - before.message_count
        if now > then and came >= 0:
            ingress = (ingress or 0.0) + came / (now - then)
            # Messages that arrived or returned, less those that wait now. nsqd does not read all counts at one moment.
            left = came + _returned(count) - _returned(before) - (_waiting(count) - _waiting(before))
            egress += max(0, left) / (now - then)
    return ingress, None if ingress is None else egress


def _returned(count: ChannelFigures) -> int:
    return count.requeue_count + count.timeout_count


def _waiting(count: ChannelFigures) -> int:
    return count.depth + count.deferred_count
