"""The driver's view of nsqd and nsqlookupd, over HTTP: which nsqds have the topics, and how many messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import gevent

from gnsq_like import Connection, LookupdClient, NsqdHTTPClient, NsqdNode
from gnsq_like.errors import HTTPError, HTTPRequestFailed, NSQError
from gnsq_like.spark.options import SourceOptions
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

#: Seconds that a request may take.
_HTTP_TIMEOUT = 2.0

_T = TypeVar("_T")


class Daemons:
    """All nsqds that the options name or the nsqlookupds list. Opens nothing before the first call.

    :param creates: whether topics and channels that are missing are created
    """

    def __init__(self, options: SourceOptions, *, creates: bool = True) -> None:
        self._options = options
        self._creates = creates
        #: The topic of a query of one, of which alone the nsqds are asked then.
        self._topic = options.named[0].topic if len(options.named) == 1 and not options.topics_pattern else None
        self._lookupds = [LookupdClient(each, timeout=_HTTP_TIMEOUT) for each in options.lookupd_http_addresses]
        fixed = zip(options.nsqd_tcp_addresses, options.nsqd_http_addresses, strict=True)
        #: The nsqds by their TCP address.
        self._nsqds = {tcp: NsqdHTTPClient(http, timeout=_HTTP_TIMEOUT) for tcp, http in fixed}
        #: Monotonic time of the last lookup.
        self._looked_up_at = float("-inf")
        #: Whether failures are not logged yet: if all daemons fail, the error says so.
        self._is_preparing = False
        #: The URLs of daemons whose last request failed, so that each failure is logged once.
        self._failing: set[str] = set()
        #: What :meth:`depths` found last, and the nsqds that did not answer.
        self.last_depths: dict[Queue, Depth] = {}
        self.away: frozenset[str] = frozenset()

    def prepare(self) -> None:
        """Create the topics that have a name, and the channels of all, or only see who answers. May switch.

        :raises HTTPError: no daemon answers
        """
        options = self._options
        errors: list[HTTPError] = []
        results: list[object] = []
        self._is_preparing = True
        if self._creates:
            for of in options.named:
                results += self._ask_all(self._lookupds, partial(_create_channel, of), errors)
        results += self._look_up(errors)
        if self._creates:
            results += self._ask_all(list(self._nsqds.items()), self._prepare_at, errors)
        else:
            nsqds = list(self._nsqds.values())
            results += self._ask_all([*nsqds, *self._lookupds], lambda client: client.ping(), errors)
        self._is_preparing = False
        if errors and not results:
            raise errors[0]
        for each in errors:
            self._warn(each)

    def _prepare_at(self, item: tuple[str, NsqdHTTPClient]) -> None:
        address, client = item
        if not self._lookupds:
            for of in self._options.named:
                self._create(client, of)
        if self._lookupds or self._options.topics_pattern:
            self._depths_at(address, client)

    def _create(self, client: NsqdHTTPClient, of: TopicChannel) -> None:
        client.create_topic(of.topic)
        client.create_channel(of.topic, of.channel)

    def depths(self) -> dict[Queue, Depth]:
        """How much each nsqd has of each topic, without those that do not answer. May switch.

        Channels of new topics are created.
        """
        if self._lookupds and time.monotonic() - self._looked_up_at > _LOOKUP_INTERVAL:
            self._look_up([])
        items = list(self._nsqds.items())
        answers = dict(self._ask_all(items, lambda item: (item[0], self._depths_at(*item)), []))
        self.last_depths = {queue: depth for answer in answers.values() for queue, depth in answer.items()}
        self.away = frozenset(self._nsqds.keys() - answers.keys())
        return self.last_depths

    def http_url(self, address: str) -> str:
        """Where an nsqd's HTTP API is; "" if no nsqlookupd has said so yet."""
        client = self._nsqds.get(address)
        return client.url if client is not None else ""

    def patient_depths(self, needed: Collection[str] | None = None) -> dict[Queue, Depth]:
        """As :meth:`depths`, but asks again if an nsqd does not answer: it may just be busy. May switch.

        :param needed: the addresses of the nsqds that matter; None for all
        """
        for _ in range(_TRIES - 1):
            depths = self.depths()
            if not (self.away if needed is None else self.away.intersection(needed)):
                return depths
            gevent.sleep(_PAUSE)
        return self.depths()

    def settled_depths(self) -> dict[Queue, Depth]:
        """How much each nsqd has once nothing is on its way from a topic to its channel. May switch.

        nsqd counts the two one after the other, so its stats miss some messages that are on their way.
        """
        deadline = time.monotonic() + _SETTLING
        while any(depth.in_topic for depth in self.depths().values()) and time.monotonic() < deadline:
            gevent.sleep(_SETTLING_POLL)
        return self.patient_depths()

    def _look_up(self, errors: list[HTTPError]) -> Sequence[object]:
        """Find the nsqds; returns the answers of the nsqlookupds."""
        if not self._lookupds:
            return []
        self._looked_up_at = time.monotonic()
        answers = self._ask_all(self._lookupds, self._producers, errors)
        if not answers:
            return []  # keep the known ones
        nodes = {Connection(node.tcp_address).address: node for answer in answers for node in answer}
        for address in self._nsqds.keys() - nodes.keys():
            self._nsqds.pop(address).close()
        for address in nodes.keys() - self._nsqds.keys():
            self._nsqds[address] = NsqdHTTPClient(nodes[address].http_address, timeout=_HTTP_TIMEOUT)
        return answers

    def _producers(self, client: LookupdClient) -> Sequence[NsqdNode]:
        """The nsqds that may have topics of ours, according to an nsqlookupd."""
        options = self._options
        if self._topic is not None:
            return client.lookup(self._topic, missing_ok=True).producers
        nodes = client.nodes()
        if options.topics_pattern:
            return nodes  # any of them may get such a topic at any time
        return [node for node in nodes if any(options.channel_of(topic) is not None for topic in _topics_of(node))]

    def _depths_at(self, address: str, client: NsqdHTTPClient) -> dict[Queue, Depth]:
        options = self._options
        stats = client.stats(self._topic, include_clients=False, include_mem=False)
        depths = {Queue(of, address): Depth(0) for of in options.named}
        for topic in stats["topics"]:
            name = topic.get("topic_name")
            wanted = options.channel_of(name)
            if wanted is None:
                continue
            of = TopicChannel(name, wanted)
            channel = _named(topic.get("channels"), wanted)
            if channel is None:
                # The topic is new, or this nsqd was found later, or lost its data.
                if not self._creates:
                    depths.pop(Queue(of, address), None)
                    continue
                self._create(client, of)
                channel = {}
            depths[Queue(of, address)] = _depth(topic, channel)
        return depths

    def _ask_all(self, clients: Iterable[Any], ask: Callable[[Any], _T], errors: list[HTTPError]) -> list[_T]:
        """Ask all clients at once; returns the answers, and logs failures and adds them to ``errors``."""

        def attempt(client: Any) -> list[_T]:
            subject = client[1] if isinstance(client, tuple) else client
            try:
                answer = ask(client)
            except NSQError as exc:
                error = exc if isinstance(exc, HTTPError) else HTTPRequestFailed(subject.url, str(exc))
                errors.append(error)
                if subject.url not in self._failing:
                    self._failing.add(subject.url)
                    if not self._is_preparing:
                        self._warn(error)
                return []
            self._failing.discard(subject.url)
            return [answer]

        asked = list(clients)
        if len(asked) == 1:
            return attempt(asked[0])
        greenlets = [gevent.spawn(attempt, client) for client in asked]
        gevent.joinall(greenlets, raise_error=True)
        return [answer for greenlet in greenlets for answer in greenlet.value]

    def _warn(self, error: HTTPError) -> None:
        logger.warning("%s; this daemon is left out until it answers", error)


def _create_channel(of: TopicChannel, client: LookupdClient) -> None:
    client.create_channel(*of)


def _topics_of(node: NsqdNode) -> list[str]:
    """The topics for which an nsqd is not tombstoned."""
    hidden = node.tombstoned_topics
    return [topic for topic in node.topics if topic not in hidden]


def _named(channels: Any, name: str) -> dict[str, Any] | None:
    for channel in channels or ():
        if channel.get("channel_name") == name:
            found: dict[str, Any] = channel
            return found
    return None


def _depth(topic: dict[str, Any], channel: dict[str, Any]) -> Depth:
    """From nsqd's stats (docs/internals 3.4). Paused messages do not count: nsqd does not deliver them."""
    # Right after a publish, many messages are still in the topic.
    in_topic = 0 if topic.get("paused") else topic.get("depth", 0)
    waiting = 0 if channel.get("paused") else channel.get("depth", 0) + in_topic
    count = topic.get("message_count", 0)
    mean = topic.get("message_bytes", 0) / count if count else 0.0
    return Depth(waiting, channel.get("in_flight_count", 0), mean, in_topic)
