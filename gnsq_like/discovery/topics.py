"""Discovery for topics: their names, or a pattern that follows the topics as they come and go.

A Reader of a pattern asks ``/nodes``, which has the topics of every nsqd, so that one request to each nsqlookupd is
enough. A topic that is no longer listed may be gone, or its nsqlookupd may have lost its memory in a restart. The
connection is therefore kept while it lives, unless the nsqd itself is listed without the topic, in two rounds in a row
that every nsqlookupd answered: nsqds register their topics one after the other.

An nsqd that was lost is asked itself whether it has the topic, before it is dialled again. nsqlookupd may be wrong for
good: an nsqd that registers with a restarted nsqlookupd while it deletes a topic registers the topic, and loses the
command that would take it back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import gevent

from gnsq_like.addresses import Address, parse_address
from gnsq_like.discovery.lookupd_poller import LookupdPoller, make_clients
from gnsq_like.discovery.redial import Target
from gnsq_like.errors import HTTPError, InvalidAddress, NSQError
from gnsq_like.http.nsqd import NsqdHTTPClient
from gnsq_like.http.nsqlookupd import LookupdClient, NsqdNode
from gnsq_like.options import DiscoveryOptions

#: Seconds in which an nsqd must say whether it has a topic; otherwise nsqlookupd is believed.
_NSQD_TIMEOUT = 1.0


class TopicsPoller(LookupdPoller):
    """Polls nsqlookupds for topics.

    :param topics: names, or a pattern that is searched for in names
    :param on_found: called with (targets, complete, began), as ``LookupdPoller`` does with addresses
    :param on_gone: called after a complete round with the targets of ``connected`` that are certainly gone
    :param connected: returns the targets to which there are connections
    :param is_lost: whether the connection to a target was lost, and it was not found since
    """

    def __init__(
        self,
        clients: Sequence[LookupdClient],
        topics: Sequence[str] | re.Pattern[str],
        options: DiscoveryOptions,
        on_found: Callable[[list[Target], bool, float], float | None],
        on_error: Callable[[str, NSQError], object],
        *,
        on_gone: Callable[[list[Target]], object],
        connected: Callable[[], Iterable[Target]],
        is_lost: Callable[[Target], bool],
    ) -> None:
        super().__init__(clients, options, lambda *_: None, on_error)
        self._topics = topics
        self._on_targets = on_found
        self._on_gone = on_gone
        self._connected = connected
        self._is_lost = is_lost
        #: Missing in the last round of those that count.
        self._missing: set[Target] = set()

    def _query(self, client: LookupdClient) -> list[NsqdNode]:
        found: list[NsqdNode] = []
        if isinstance(self._topics, re.Pattern):
            found = [replace(node, topics=self._matching(self._topics, node), tombstones=()) for node in client.nodes()]
        else:
            for topic in self._topics:
                producers = client.lookup(topic, missing_ok=True).producers
                found += [replace(node, topics=(topic,)) for node in producers]
        asked = [gevent.spawn(self._without_deleted, node) for node in found]
        try:
            return [greenlet.get() for greenlet in gevent.iwait(asked)]
        finally:
            gevent.killall(asked, block=False)

    def _without_deleted(self, node: NsqdNode) -> NsqdNode:
        """Without the topics that this nsqd has no longer, of those whose connections were lost. May switch."""
        if self._options.address_map is not None:
            return node  # its HTTP API is elsewhere, too
        try:
            address = parse_address(node.tcp_address)
        except InvalidAddress:
            return node  # is reported later
        lost = [topic for topic in node.topics if self._is_lost(Target(address, topic))]
        if not lost:
            return node
        try:
            with NsqdHTTPClient(node.http_address, timeout=_NSQD_TIMEOUT) as nsqd:
                stats = nsqd.stats(lost[0] if len(lost) == 1 else None, include_clients=False, include_mem=False)
        except (HTTPError, InvalidAddress):
            return node
        deleted = set(lost).difference(topic["topic_name"] for topic in stats["topics"])
        return replace(node, topics=tuple(topic for topic in node.topics if topic not in deleted))

    @staticmethod
    def _matching(pattern: re.Pattern[str], node: NsqdNode) -> tuple[str, ...]:
        hidden = {topic for topic, is_hidden in zip(node.topics, node.tombstones, strict=False) if is_hidden}
        return tuple(topic for topic in node.topics if topic not in hidden and pattern.search(topic))

    def _merge(self, nodes: dict[str, NsqdNode], found: Iterable[NsqdNode]) -> None:
        for node in found:
            known = nodes.get(node.tcp_address)
            topics = (
                node.topics if known is None else tuple({**dict.fromkeys(known.topics), **dict.fromkeys(node.topics)})
            )
            nodes[node.tcp_address] = replace(node, topics=topics)

    def _is_fruitless(self, nodes: dict[str, NsqdNode]) -> bool:
        return not any(node.topics for node in nodes.values())

    def _give(self, nodes: dict[str, NsqdNode], complete: bool, all_answered: bool = False) -> None:
        addresses = {name: address for name in sorted(nodes) if (address := self._address(nodes[name])) is not None}
        targets = dict.fromkeys(
            Target(address, topic) for name, address in addresses.items() for topic in nodes[name].topics
        )
        self._lost_at = self._on_targets(list(targets), complete, self._began)
        if all_answered and isinstance(self._topics, re.Pattern):
            self._look_for_gone(targets, set(addresses.values()))

    def _look_for_gone(self, listed: dict[Target, None], addresses: set[Address]) -> None:
        missing = {target for target in self._connected() if target not in listed and target.address in addresses}
        gone, self._missing = missing & self._missing, missing - self._missing
        if gone:
            self._on_gone(sorted(gone))


def make_topics_poller(
    lookupds: Iterable[str],
    topics: Sequence[str] | re.Pattern[str],
    options: DiscoveryOptions,
    on_found: Callable[[list[Target], bool, float], float | None],
    on_error: Callable[[str, NSQError], object],
    *,
    on_gone: Callable[[list[Target]], object],
    connected: Callable[[], Iterable[Target]],
    is_lost: Callable[[Target], bool],
) -> TopicsPoller:
    """A TopicsPoller with a client for each nsqlookupd; for the other parameters see there."""
    clients = make_clients(lookupds, options)
    return TopicsPoller(
        clients, topics, options, on_found, on_error, on_gone=on_gone, connected=connected, is_lost=is_lost
    )
