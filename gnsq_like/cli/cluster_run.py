"""One run of ``gnsq-like cluster``: starts the daemons, asks them every second, and has somebody show it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import gevent

from gnsq_like import LookupdClient, NsqdHTTPClient
from gnsq_like.cli.cluster_screen import LookupdRow, NsqdRow, Snapshot, View
from gnsq_like.cli.daemon_processes import Child, Cluster
from gnsq_like.errors import HTTPError

#: Seconds between two rounds of questions.
INTERVAL = 1.0
#: Seconds for an answer; then the table says that there was none.
_ANSWER_TIMEOUT = 2.0
#: Seconds that the nsqds have to write everything down when they end.
_STOP_TIMEOUT = 30.0


class ClusterRun:
    """One run; :meth:`run` does it all.

    :param options: the command's
    :param view: who shows it
    """

    def __init__(self, options: dict[str, Any], view: View) -> None:
        self._view = view
        self._cluster = Cluster(**options, stop_timeout=_STOP_TIMEOUT)
        #: Daemons that ended by themselves.
        self.lost: list[Child] = []
        self._nsqds: list[_AskedNsqd] = []
        self._lookupds: list[_AskedLookupd] = []

    def run(self) -> int:
        """Run until no nsqd is left, or until something is thrown into this greenlet. May switch.

        :raises ChildFailed: when a daemon does not start
        """
        with self._cluster:
            self._nsqds = [_AskedNsqd(child, number) for number, child in enumerate(self._cluster.nsqds, 1)]
            self._lookupds = [_AskedLookupd(child) for child in self._cluster.lookupds]
            self._introduce()
            started = time.monotonic()
            with self._view:
                while self._cluster.alive:
                    self._note_lost()
                    asks = [nsqd.ask for nsqd in self._nsqds] + [lookupd.ask for lookupd in self._lookupds]
                    gevent.joinall([gevent.spawn(ask) for ask in asks])
                    self._view.update(self._snapshot(time.monotonic() - started))
                    gevent.sleep(INTERVAL)
                self._note_lost()
        return 1

    def _introduce(self) -> None:
        """Say where everything is, in a form to be copied."""
        view = self._view
        nsqds, lookupds = self._cluster.nsqds, self._cluster.lookupds
        for child in self._cluster:
            view.say(f"{child.name:<12}  TCP {child.tcp_address}  HTTP {child.http_address}")
        view.say("")
        found = [lookupd.http_address for lookupd in lookupds]
        view.say_to_copy(f'Reader("topic", "channel", handler, lookupd_http_addresses={_listed(found)})')
        view.say_to_copy(f"Producer({_listed([nsqd.tcp_address for nsqd in nsqds])})")
        view.say_to_copy(" ".join(["nsqadmin", *(f"--lookupd-http-address={address}" for address in found)]))
        view.say("")

    def _note_lost(self) -> None:
        for child in self._cluster:
            if child not in self.lost and not child.alive:
                self.lost.append(child)
                self._view.say(f"{child.name} is gone: {child.how_it_ended}.")

    def _snapshot(self, elapsed: float) -> Snapshot:
        topics = {topic for nsqd in self._nsqds for topic in nsqd.topics}
        channels = {channel for nsqd in self._nsqds for channel in nsqd.channels}
        return Snapshot(
            elapsed,
            [nsqd.row for nsqd in self._nsqds],
            [lookupd.row for lookupd in self._lookupds],
            len(topics),
            len(channels),
        )


def _listed(addresses: list[str]) -> str:
    """A list as Python has it."""
    return "[" + ", ".join(f'"{address}"' for address in addresses) + "]"


def _problem(child: Child, answered: bool) -> str:
    if not child.alive:
        return f"gone: {child.how_it_ended}"
    return "" if answered else f"no answer within {_ANSWER_TIMEOUT:g} s"


class _AskedNsqd:
    """An nsqd that is asked for its figures again and again."""

    def __init__(self, child: Child, node_id: int) -> None:
        self._child = child
        self._client = NsqdHTTPClient(child.http_address, timeout=_ANSWER_TIMEOUT)
        self._node_id = node_id
        #: What it has; channels as pairs.
        self.topics: set[str] = set()
        self.channels: set[tuple[str, str]] = set()
        #: When it answered last (monotonic), and how many messages it had published and finished then.
        self._counts: tuple[float, int, int] | None = None
        self.row = NsqdRow(child.name, child.tcp_address, child.http_address, node_id)

    def ask(self) -> None:
        """Renew ``row``. May switch."""
        stats = None
        if self._child.alive:
            with suppress(HTTPError):
                stats = self._client.stats(include_clients=False, include_mem=False)
        where = (self._child.name, self._child.tcp_address, self._child.http_address, self._node_id)
        if stats is None:
            self.topics, self.channels = set(), set()
            self._counts = None
            self.row = NsqdRow(*where, problem=_problem(self._child, answered=False))
            return
        now = time.monotonic()
        topics = stats["topics"]
        channels = [(topic, channel) for topic in topics for channel in topic["channels"]]
        self.topics = {topic["topic_name"] for topic in topics}
        self.channels = {(topic["topic_name"], channel["channel_name"]) for topic, channel in channels}
        depth = sum(topic["depth"] for topic in topics) + sum(channel["depth"] for _, channel in channels)
        in_flight = sum(channel["in_flight_count"] for _, channel in channels)
        deferred = sum(channel["deferred_count"] for _, channel in channels)
        published = sum(topic["message_count"] for topic in topics)
        # What came to a channel and is not there any more was finished (or emptied away).
        held = sum(channel["depth"] for _, channel in channels) + in_flight + deferred
        finished = sum(channel["message_count"] for _, channel in channels) - held
        then = self._counts or (now, published, finished)
        self._counts = (now, published, finished)
        elapsed = now - then[0]
        self.row = NsqdRow(
            *where,
            topics=len(self.topics),
            channels=len(self.channels),
            depth=depth,
            in_flight=in_flight,
            deferred=deferred,
            clients=sum(channel["client_count"] for _, channel in channels),
            published_per_second=max(0, published - then[1]) / elapsed if elapsed else 0.0,
            finished_per_second=max(0, finished - then[2]) / elapsed if elapsed else 0.0,
        )


class _AskedLookupd:
    """A nsqlookupd that is asked what it knows again and again."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._client = LookupdClient(child.http_address, timeout=_ANSWER_TIMEOUT)
        self.row = LookupdRow(child.name, child.tcp_address, child.http_address)

    def ask(self) -> None:
        """Renew ``row``. May switch."""
        where = (self._child.name, self._child.tcp_address, self._child.http_address)
        if self._child.alive:
            try:
                self.row = LookupdRow(*where, len(self._client.nodes()), len(self._client.topics()))
            except HTTPError:
                pass
            else:
                return
        self.row = LookupdRow(*where, problem=_problem(self._child, answered=False))
