"""Polls the nsqlookupds for all nsqds (``AllNsqds``), or for those that have certain topics (``TopicSearch``).

Each round queries all nsqlookupds concurrently and unites their answers. One that fails is reported and skipped.
``policy.delays.Rounds`` decides when rounds are due; after a lost connection, an extra one begins at once
(:meth:`LookupdPoller.hurry`).

Only nsqds that a round lists are dialled again. When no nsqlookupd has answered for a while, a round repeats the last
answer.

Topics are names, or a pattern that follows the topics as they come and go. A Reader of a pattern asks ``/nodes``, which
has the topics of every nsqd, so that one request to each nsqlookupd is enough. A topic that is no longer listed may be
gone, or its nsqlookupd may have lost its memory in a restart. The connection is therefore kept while it lives, unless
the nsqd itself is listed without the topic, in two rounds in a row that every nsqlookupd answered: nsqds register their
topics one after the other.

An nsqd that was lost, or is being tried, is itself asked whether it has the topic, because nsqlookupd may be wrong
permanently: an nsqd that registers with a restarted nsqlookupd while it deletes a topic registers the topic, and loses
the command that would unregister it.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import gevent

from gnsq_like.addresses import Address, parse_address
from gnsq_like.discovery.dialler import Round, Target
from gnsq_like.errors import HTTPError, HTTPRequestFailed, InvalidAddress, NSQError
from gnsq_like.http.nsqd import NsqdHTTPClient
from gnsq_like.http.nsqlookupd import LookupdClient, NsqdNode
from gnsq_like.options import DiscoveryOptions
from gnsq_like.policy import delays
from gnsq_like.runtime.dispatcher import log_soon
from gnsq_like.runtime.native import draw
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.runtime.timer import LEAST_TIMEOUT
from gnsq_like.runtime.user_code import ENDS, outcome_of

logger = logging.getLogger(__name__)

#: Seconds in which an nsqd must say whether it has a topic; otherwise nsqlookupd is believed.
_NSQD_TIMEOUT = 1.0

_K = TypeVar("_K")


class LookupdPoller:
    """Polls nsqlookupds; :meth:`start` begins with a first round.

    :param clients: one per nsqlookupd
    :param options: the interval, its jitter, the ``discovery_filter``, and the ``address_map``
    :param search: AllNsqds or TopicSearch
    :param on_error: called with (URL or address, error) for each nsqlookupd that failed, and each nsqd with an invalid
        address or on which the ``discovery_filter`` or ``address_map`` failed; for the latter when that begins
    """

    def __init__(
        self,
        clients: Sequence[LookupdClient],
        options: DiscoveryOptions,
        search: AllNsqds | TopicSearch,
        on_error: Callable[[str, NSQError], object],
    ) -> None:
        self._clients = clients
        self._options = options
        self._search = search
        self._on_error = on_error
        self._greenlet: Any = None
        #: The greenlets that ask in this round.
        self._asked: list[gevent.Greenlet] = []
        self._stopped = False
        self._rounds = delays.Rounds(options.lookupd_poll_interval, options.lookupd_poll_jitter, draw)
        #: Settled to begin another round at once.
        self._hurried = PendingReply()
        #: nsqds on which one of the user's functions failed when it was last called.
        self._excluded: set[str] = set()
        #: Monotonic time when the next round is due.
        self.next_at = 0.0
        #: The last error of each nsqlookupd that has not answered since, by its URL.
        self.failures: dict[str, NSQError] = {}
        #: The nodes of the last round with an answer, by the addresses that nsqds announce.
        self._listed: dict[str, NsqdNode] = {}

    @property
    def all_failed(self) -> bool:
        """Whether no nsqlookupd answered when it was last asked."""
        return all(client.url in self.failures for client in self._clients)

    @property
    def answering(self) -> list[str]:
        """The URLs of the nsqlookupds that are not in ``failures``."""
        return [client.url for client in self._clients if client.url not in self.failures]

    def start(self) -> None:
        """Start the poller greenlet, unless it runs. Never switches."""
        if not self._greenlet and not self._stopped:
            self._greenlet = gevent.spawn(self._run)
            self._greenlet.rawlink(self._ended)

    def _ended(self, greenlet: gevent.Greenlet) -> None:
        """Start again, if an exception has ended it. Never switches."""
        if greenlet.exception is not None:
            self.start()

    def stop(self) -> None:
        """End the poller greenlet and close the clients; twice is fine. May switch."""
        self._stopped = True
        if self._greenlet is not None and self._greenlet is not gevent.getcurrent():
            self._greenlet.kill()
        for client in self._clients:
            client.close()

    def forked_child(self) -> None:
        """In a forked child: end the poller without closing the clients, which are the parent's. Never switches."""
        self._stopped = True
        # All of them now: one that continued would read an answer from the parent's socket.
        gevent.killall([each for each in (self._greenlet, *self._asked) if each is not None], block=False)

    def hurry(self) -> None:
        """Poll again at once: a connection was lost, and its nsqd may be back, or gone. Never switches."""
        self._hurried.settle()

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._round()
                self._wait()
            except ENDS:
                raise
            except BaseException as exc:
                log_soon(logger.error, "discovery was interrupted", exc_info=exc)
                gevent.sleep(delays.ROUND_SPACING)

    def _wait(self) -> None:
        self.next_at = due = self._rounds.next_at(time.monotonic())
        if self._hurried.wait(due - time.monotonic()):
            due = min(due, self._rounds.began + delays.ROUND_SPACING)
            gevent.sleep(max(LEAST_TIMEOUT, due - time.monotonic()))

    def _round(self) -> None:
        self._hurried = PendingReply()  # this round covers all losses so far
        this = Round(time.monotonic())
        self._rounds.began = this.began
        self._asked = asked = [gevent.spawn(self._ask, client, this) for client in self._clients]
        nodes: dict[str, NsqdNode] = {}
        answered = 0
        try:
            for greenlet in gevent.iwait(asked):
                if self._stopped:
                    return  # in a forked child, where they are killed
                if greenlet.value is not None:
                    answered += 1
                    for node in greenlet.value:
                        _unite(nodes, node.tcp_address, node)
                    self._report(nodes, this)
        finally:
            gevent.killall(asked, block=False)
        self._rounds.ended(answered=answered > 0, fruitful=self._search.has_found(nodes.values()))
        if answered:
            self._listed = nodes
            this.is_complete = True
            self._report(nodes, this, all_answered=answered == len(asked))
        elif self._rounds.are_silent(time.monotonic()):
            self._report(self._listed, this)

    def _report(self, nodes: dict[str, NsqdNode], this: Round, *, all_answered: bool = False) -> None:
        """Report the nsqds that a round has found so far."""
        found: dict[Address, NsqdNode] = {}
        for name in sorted(nodes):
            address = self._address(nodes[name])
            if address is not None:
                _unite(found, address, nodes[name])  # two may be dialled at the same address
        self._rounds.lost_at = self._search.report(found, this, all_answered=all_answered)

    def _address(self, node: NsqdNode) -> Address | None:
        """The address to dial for this nsqd; None if it is excluded, or has no valid one, which is reported."""
        name = node.tcp_address
        address, failure = outcome_of(self._chosen, node)
        if failure is None:
            self._excluded.discard(name)
        elif isinstance(failure, InvalidAddress):
            self._on_error(name, failure)
        elif name not in self._excluded:
            self._excluded.add(name)
            reason = f"is excluded: discovery_filter or address_map raised {failure!r}"
            log_soon(logger.warning, "nsqd at %s %s", name, reason, exc_info=failure)
            error = NSQError(f"nsqd at {name} {reason}")
            error.__cause__ = failure
            self._on_error(name, error)
        return address

    def _chosen(self, node: NsqdNode) -> Address | None:
        """The address to dial for this nsqd, None if the ``discovery_filter`` excludes it; raises what that raises."""
        given, name = self._options, node.tcp_address
        if given.discovery_filter is not None and not given.discovery_filter(node):
            return None
        mapped = given.address_map(name) if callable(given.address_map) else (given.address_map or {}).get(name)
        return parse_address(name if mapped is None else mapped)

    def _ask(self, client: LookupdClient, this: Round) -> list[NsqdNode] | None:
        nodes: list[NsqdNode] | None
        nodes, failure = outcome_of(self._search.ask, client, this)
        if failure is None:
            self.failures.pop(client.url, None)
            return nodes
        if not isinstance(failure, HTTPError):  # for instance of the user's function for lookupd_authorization
            cause, failure = failure, HTTPRequestFailed(client.url, f"no request was made: {failure!r}")
            failure.__cause__ = cause
        self.failures[client.url] = failure
        self._on_error(client.url, failure)
        return None


def _unite(nodes: dict[_K, NsqdNode], key: _K, node: NsqdNode) -> None:
    """Add a node to those found, or its topics to the one that is there."""
    known = nodes.get(key)
    if known is None:
        nodes[key] = node
        return
    topics = tuple(dict.fromkeys((*known.topics, *node.topics)))
    hidden = known.tombstoned_topics | node.tombstoned_topics
    nodes[key] = replace(node, topics=topics, tombstones=tuple(topic in hidden for topic in topics))


class AllNsqds:
    """Searches for all nsqds.

    :param on_found: called with (addresses, round), see :meth:`report`
    """

    def __init__(self, on_found: Callable[[list[Address], Round], float | None]) -> None:
        self._on_found = on_found

    def ask(self, client: LookupdClient, this: Round) -> list[NsqdNode]:
        """Ask one nsqlookupd, in this round; raises HTTPError. May switch."""
        return client.nodes()

    def has_found(self, nodes: Collection[NsqdNode]) -> bool:
        """Whether any nsqd was found; otherwise the next round comes soon."""
        return bool(nodes)

    def report(self, nodes: Mapping[Address, NsqdNode], this: Round, *, all_answered: bool) -> float | None:
        """Use the nsqds that were found. Never switches.

        It is called with the nsqds found so far each time a nsqlookupd has answered, so that an unresponsive one delays
        nothing, and at the end of a round with any answer, which is complete then.

        :param all_answered: whether every nsqlookupd has answered
        :returns: when the last of the nsqds was lost (monotonic time) that are missing now, or None
        """
        return self._on_found(list(nodes), this)


class TopicSearch:
    """Searches for topics, with the methods of :class:`AllNsqds`.

    :param topics: names, or a pattern that is searched for in names
    :param options: whether there is an ``address_map``
    :param on_found: called with (targets, round), see ``AllNsqds.report``
    :param on_gone: called after a complete round with the targets of ``connected`` that are certainly gone
    :param connected: returns the targets to which there are connections
    :param is_doubtful: whether a target was found before, and is not connected
    """

    def __init__(
        self,
        topics: Sequence[str] | re.Pattern[str],
        options: DiscoveryOptions,
        on_found: Callable[[list[Target], Round], float | None],
        *,
        on_gone: Callable[[list[Target]], object],
        connected: Callable[[], Iterable[Target]],
        is_doubtful: Callable[[Target], bool],
    ) -> None:
        self._topics = topics
        self._options = options
        self._on_found = on_found
        self._on_gone = on_gone
        self._connected = connected
        self._is_doubtful = is_doubtful
        #: Missing in the last round of those that count.
        self._missing: set[Target] = set()

    def ask(self, client: LookupdClient, this: Round) -> list[NsqdNode]:
        found: list[NsqdNode] = []
        if isinstance(self._topics, re.Pattern):
            found = [replace(node, topics=self._matching(self._topics, node), tombstones=()) for node in client.nodes()]
        else:
            for topic in self._topics:
                producers = client.lookup(topic, missing_ok=True).producers
                found += [replace(node, topics=(topic,)) for node in producers]
        this.answered = min(this.answered, time.monotonic())  # nsqds are asked after that
        asked = [gevent.spawn(self._without_deleted, node) for node in found]
        try:
            return [greenlet.get() for greenlet in gevent.iwait(asked)]
        finally:
            gevent.killall(asked, block=False)

    def _without_deleted(self, node: NsqdNode) -> NsqdNode:
        """Remove doubtful topics that this nsqd no longer has. May switch."""
        if self._options.address_map is not None:
            return node  # its HTTP API is elsewhere, too
        try:
            address = parse_address(node.tcp_address)
        except InvalidAddress:
            return node  # is reported later
        doubtful = [topic for topic in node.topics if self._is_doubtful(Target(address, topic))]
        if not doubtful:
            return node
        try:
            with NsqdHTTPClient(node.http_address, timeout=_NSQD_TIMEOUT) as nsqd:
                only = doubtful[0] if len(doubtful) == 1 else None
                stats = nsqd.stats(only, include_clients=False, include_mem=False)
        except (HTTPError, InvalidAddress):
            return node
        deleted = set(doubtful).difference(topic["topic_name"] for topic in stats["topics"])
        return replace(node, topics=tuple(topic for topic in node.topics if topic not in deleted))

    @staticmethod
    def _matching(pattern: re.Pattern[str], node: NsqdNode) -> tuple[str, ...]:
        hidden = node.tombstoned_topics
        return tuple(topic for topic in node.topics if topic not in hidden and pattern.search(topic))

    def has_found(self, nodes: Collection[NsqdNode]) -> bool:
        return any(node.topics for node in nodes)

    def report(self, nodes: Mapping[Address, NsqdNode], this: Round, *, all_answered: bool) -> float | None:
        targets = [Target(address, topic) for address, node in nodes.items() for topic in node.topics]
        lost_at = self._on_found(targets, this)
        if all_answered and isinstance(self._topics, re.Pattern):
            self._look_for_gone(targets, nodes)
        return lost_at

    def _look_for_gone(self, targets: list[Target], nodes: Mapping[Address, NsqdNode]) -> None:
        listed = set(targets)
        missing = {target for target in self._connected() if target not in listed and target.address in nodes}
        gone, self._missing = missing & self._missing, missing - self._missing
        if gone:
            self._on_gone(sorted(gone))


def make_clients(lookupds: Iterable[str], options: DiscoveryOptions) -> list[LookupdClient]:
    """A client for each nsqlookupd."""
    return [
        LookupdClient(
            address,
            timeout=options.lookupd_timeout,
            authorization=options.lookupd_authorization,
            verify=options.lookupd_verify,
            cert=options.lookupd_cert,
        )
        for address in lookupds
    ]
