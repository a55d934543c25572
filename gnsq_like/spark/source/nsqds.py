"""The driver's view of nsqd and nsqlookupd, over HTTP.

It finds the nsqds that have the topics, creates missing topics and channels, and reads the depths.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import gevent

from gnsq_like import Connection, LookupdClient, NsqdHTTPClient, NsqdNode
from gnsq_like.addresses import shown
from gnsq_like.cluster.daemons import Daemons
from gnsq_like.cluster.figures import ChannelFigures, TopicFigures, read_topics
from gnsq_like.cluster.operations import create_at
from gnsq_like.cluster.rounds import Round
from gnsq_like.spark.format_options import SourceOptions
from gnsq_like.spark.source.plan import Depth, Queue
from gnsq_like.spark.staging.offsets import TopicChannel

logger = logging.getLogger(__name__)

#: Seconds between two lookups.
_LOOKUP_INTERVAL = 5.0
#: Seconds to wait for messages on their way from the topic to its channels, and between two checks.
_SETTLING = 1.0
_SETTLING_POLL = 0.02
#: How often a run that ends with what it finds asks an nsqd that does not answer, and the seconds between two tries.
_TRIES, _PAUSE = 3, 0.5

#: Seconds that a request may take while batches are planned; and where a daemon that is just busy would end a query
#: that begins, or be left out by a run that ends with what it finds.
_HTTP_TIMEOUT, _PATIENT_TIMEOUT = 2.0, 30.0
#: The most requests in one question: its stats, and creating a topic and channel.
_REQUESTS = 3


class Nsqds:
    """All nsqds that the options name or the nsqlookupds list. Opens nothing before the first call.

    :param creates: whether topics and channels that are missing are created
    """

    def __init__(self, options: SourceOptions, *, creates: bool = True) -> None:
        self._options = options
        self._creates = creates
        #: The topic of a query of one, of which alone the nsqds are asked then.
        self._topic = options.named[0].topic if len(options.named) == 1 and not options.topics_pattern else None
        self._daemons, self._patient = map(self._asked_within, (_HTTP_TIMEOUT, _PATIENT_TIMEOUT))
        fixed = zip(options.nsqd_tcp_addresses, options.nsqd_http_addresses, strict=True)
        #: The HTTP addresses of the nsqds, by their TCP addresses.
        self._nsqds = {tcp: shown(http) for tcp, http in fixed}
        #: Monotonic time of the last lookup.
        self._looked_up_at = float("-inf")
        #: The daemons whose last request failed, so that each failure is logged once.
        self._failing: set[str] = set()
        #: The last result of :meth:`depths`, and the nsqds that did not answer.
        self.last_depths: dict[Queue, Depth] = {}
        self.away: frozenset[str] = frozenset()

    def _asked_within(self, seconds: float) -> Daemons:
        options = self._options
        return Daemons(options.nsqd_http_addresses, options.lookupd_http_addresses, {"timeout": seconds})

    def prepare(self) -> None:
        """Create the topics that have a name, and the channels of all, or only see who answers. May switch.

        A daemon may take longer to answer than later on.

        :raises NSQError: no daemon answers
        """
        asked: list[Round[Any]] = []
        if self._creates:
            for of in self._options.named:
                asked.append(self._patient.ask_lookupds(partial(_create_channel, of)))
        asked.append(self._look_up(self._patient))
        question = self._prepare_at if self._creates else NsqdHTTPClient.ping
        asked.append(self._patient.ask_nsqds(self._nsqds.values(), question, _REQUESTS * self._patient.timeout))
        if not self._creates:
            asked.append(self._patient.ask_lookupds(LookupdClient.ping))
        if not any(each.answers for each in asked):
            Round({}, {address: error for each in asked for address, error in each.failures.items()}).require_any(
                "nsqd"
            )
        for each in asked:
            self._note(each)

    def doubts(self) -> list[str]:
        """Possible mistakes, as sentences; call it before :meth:`prepare` creates topics. May switch."""
        is_known = bool(self._look_up(self._patient).answers)
        stats = self._patient.ask_nsqds(
            self._nsqds.values(), lambda client: read_topics(client.stats(self._topic, include_mem=False))
        )
        found = []
        for of in self._options.named:
            topics = [topic for answer in stats.answers.values() for topic in answer if topic.topic_name == of.topic]
            if not topics and (stats.answers or is_known):
                found.append(f"no nsqd has the topic {of.topic}: is its name right?")
            channels = filter(None, (topic.channel(of.channel) for topic in topics))
            hosts = sorted({str(client["hostname"]) for channel in channels for client in channel.clients or ()})
            if hosts:
                others = ", ".join(hosts)
                found.append(
                    f"the channel {of} has consumers already, which keep their share of its messages: {others}"
                )
        return found

    def _prepare_at(self, client: NsqdHTTPClient) -> None:
        if not self._daemons.lookupd_http_addresses:
            for of in self._options.named:
                create_at(client, *of)
        if self._daemons.lookupd_http_addresses or self._options.topics_pattern:
            self._depths_at(client)

    def depths(self) -> dict[Queue, Depth]:
        """The depth of each topic at each nsqd that answers. May switch.

        Channels of new topics are created.
        """
        return self._depths_by(self._daemons)

    def _depths_by(self, daemons: Daemons) -> dict[Queue, Depth]:
        if daemons.lookupd_http_addresses and time.monotonic() - self._looked_up_at > _LOOKUP_INTERVAL:
            self._note(self._look_up(daemons))
        nsqds = dict(self._nsqds)
        found = daemons.ask_nsqds(nsqds.values(), self._depths_at, _REQUESTS * daemons.timeout)
        self._note(found)
        self.last_depths = {
            Queue(of, address): depth
            for address, http in nsqds.items()
            for of, depth in found.answers.get(http, {}).items()
        }
        self.away = frozenset(address for address, http in nsqds.items() if http not in found.answers)
        return self.last_depths

    def http_address(self, address: str) -> str:
        """The address of an nsqd's HTTP API; "" if no nsqlookupd has reported it yet."""
        return self._nsqds.get(address, "")

    def patient_depths(self, needed: Collection[str] | None = None) -> dict[Queue, Depth]:
        """As :meth:`depths`, but waits longer, and asks again if an nsqd does not answer. May switch.

        :param needed: the addresses of the nsqds that matter; None for all
        """
        for _ in range(_TRIES - 1):
            depths = self._depths_by(self._patient)
            if not (self.away if needed is None else self.away.intersection(needed)):
                return depths
            gevent.sleep(_PAUSE)
        return self._depths_by(self._patient)

    def settled_depths(self) -> dict[Queue, Depth]:
        """The depths once no message is on its way from a topic to its channel. May switch.

        nsqd counts the two one after the other, so its stats miss some messages that are on their way.
        """
        deadline = time.monotonic() + _SETTLING
        while any(depth.in_topic for depth in self.depths().values()) and time.monotonic() < deadline:
            gevent.sleep(_SETTLING_POLL)
        return self.patient_depths()

    def _look_up(self, daemons: Daemons) -> Round[Sequence[NsqdNode]]:
        """Find the nsqds; without an answer, the known ones stay."""
        if not daemons.lookupd_http_addresses:
            return Round()
        self._looked_up_at = time.monotonic()
        found = daemons.ask_lookupds(self._producers)
        if found.answers:
            nodes = [node for answer in found.answers.values() for node in answer]
            self._nsqds = {Connection(node.tcp_address).address: node.http_address for node in nodes}
            daemons.keep(self._nsqds.values())
        return found

    def _producers(self, client: LookupdClient) -> Sequence[NsqdNode]:
        """The nsqds that may have topics of ours, according to an nsqlookupd."""
        options = self._options
        if self._topic is not None:
            return client.lookup(self._topic, missing_ok=True).producers
        nodes = client.nodes()
        if options.topics_pattern:
            return nodes  # any of them may get such a topic at any time
        return [node for node in nodes if any(options.channel_of(topic) is not None for topic in _topics_of(node))]

    def _depths_at(self, client: NsqdHTTPClient) -> dict[TopicChannel, Depth]:
        options = self._options
        depths = {of: Depth(0) for of in options.named}
        for topic in read_topics(client.stats(self._topic, include_clients=False, include_mem=False)):
            wanted = options.channel_of(topic.topic_name)
            if wanted is None:
                continue
            of = TopicChannel(topic.topic_name, wanted)
            channel = topic.channel(wanted)
            if channel is None:
                # The topic is new, or this nsqd was found later, or lost its data.
                if not self._creates:
                    depths.pop(of, None)
                    continue
                create_at(client, *of)
            depths[of] = _depth(topic, channel)
        return depths

    def _note(self, found: Round[Any]) -> None:
        """Log each failure once, until that daemon answers again."""
        self._failing -= found.answers.keys()
        for address, error in found.failures.items():
            if address not in self._failing:
                self._failing.add(address)
                logger.warning("%s; this daemon is left out until it answers", error)


def _create_channel(of: TopicChannel, client: LookupdClient) -> None:
    client.create_channel(*of)


def _topics_of(node: NsqdNode) -> list[str]:
    """The topics for which an nsqd is not tombstoned."""
    hidden = node.tombstoned_topics
    return [topic for topic in node.topics if topic not in hidden]


def _depth(topic: TopicFigures, channel: ChannelFigures | None) -> Depth:
    """Paused messages do not count: nsqd does not deliver them."""
    # Right after a publish, many messages are still in the topic.
    in_topic = 0 if topic.paused else topic.depth
    mean = topic.message_bytes / topic.message_count if topic.message_count else 0.0
    if channel is None:
        return Depth(in_topic, 0, mean, in_topic)
    waiting = 0 if channel.paused else channel.depth + in_topic
    return Depth(waiting, channel.in_flight_count, mean, in_topic)
