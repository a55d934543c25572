"""One run of ``gnsq-like cluster``: starts the daemons, asks them for their figures every second, shows those."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import gevent

from gnsq_like import LookupdClient, NsqdHTTPClient
from gnsq_like.cli.admin_beside import admin_beside
from gnsq_like.cli.cluster_processes import ClusterProcesses
from gnsq_like.cli.cluster_screen import ClusterSnapshot, LookupdRow, NsqdRow
from gnsq_like.cli.screen import View
from gnsq_like.errors import HTTPError
from gnsq_like.server.daemon_process import DaemonProcess

#: Seconds between two rounds of questions.
INTERVAL = 1.0
#: Seconds for an answer; then the table says that it is missing.
_ANSWER_TIMEOUT = 2.0
#: Seconds that the nsqds have at their end to write all messages to disk.
_STOP_TIMEOUT = 30.0


class ClusterRun:
    """One run. Next: :meth:`run`.

    :param options: the command's
    :param view: shows the figures
    """

    def __init__(self, options: dict[str, Any], view: View[ClusterSnapshot]) -> None:
        self._view = view
        self._admin_port: int | None = options.pop("admin_port", None)
        self._cluster = ClusterProcesses(**options, stop_timeout=_STOP_TIMEOUT)
        #: Daemons that ended by themselves.
        self.lost: list[DaemonProcess] = []
        self._nsqds: list[_AskedNsqd] = []
        self._lookupds: list[_AskedLookupd] = []

    def run(self) -> int:
        """Run until no nsqd is left, or until something is thrown into this greenlet. May switch.

        :raises DaemonFailed: when a daemon does not start
        """
        with self._cluster:
            self._nsqds = [_AskedNsqd(daemon, number) for number, daemon in enumerate(self._cluster.nsqds, 1)]
            self._lookupds = [_AskedLookupd(daemon) for daemon in self._cluster.lookupds]
            found = [lookupd.http_address for lookupd in self._cluster.lookupds]
            self._introduce()
            started = time.monotonic()
            with admin_beside(self._admin_port, found, self._view.say_to_copy), self._view:
                while self._cluster.running_nsqds:
                    self._note_lost()
                    asks = [nsqd.ask for nsqd in self._nsqds] + [lookupd.ask for lookupd in self._lookupds]
                    gevent.joinall([gevent.spawn(ask) for ask in asks])
                    self._view.update(self._snapshot(time.monotonic() - started))
                    gevent.sleep(INTERVAL)
                self._note_lost()
        return 1

    def _introduce(self) -> None:
        """Show the addresses, in a form to be copied."""
        view = self._view
        nsqds, lookupds = self._cluster.nsqds, self._cluster.lookupds
        for daemon in self._cluster:
            view.say(f"{daemon.name:<12}  TCP {daemon.tcp_address}  HTTP {daemon.http_address}")
        view.say("")
        found = [lookupd.http_address for lookupd in lookupds]
        view.say_to_copy(f'Reader("topic", "channel", handler, lookupd_http_addresses={_listed(found)})')
        view.say_to_copy(f"Producer({_listed([nsqd.tcp_address for nsqd in nsqds])})")
        view.say_to_copy(" ".join(["nsqadmin", *(f"--lookupd-http-address={address}" for address in found)]))
        view.say("")

    def _note_lost(self) -> None:
        for daemon in self._cluster:
            if daemon not in self.lost and not daemon.is_running:
                self.lost.append(daemon)
                self._view.say(f"{daemon.name} is gone: {daemon.how_it_ended}.")

    def _snapshot(self, seconds: float) -> ClusterSnapshot:
        topics = {topic for nsqd in self._nsqds for topic in nsqd.topics}
        channels = {channel for nsqd in self._nsqds for channel in nsqd.channels}
        return ClusterSnapshot(
            seconds,
            [nsqd.row for nsqd in self._nsqds],
            [lookupd.row for lookupd in self._lookupds],
            len(topics),
            len(channels),
        )


def _listed(addresses: list[str]) -> str:
    """A list in Python's syntax."""
    return "[" + ", ".join(f'"{address}"' for address in addresses) + "]"


def _problem(daemon: DaemonProcess) -> str:
    """Why a daemon did not answer."""
    return f"no answer within {_ANSWER_TIMEOUT:g} s" if daemon.is_running else f"gone: {daemon.how_it_ended}"


class _AskedNsqd:
    """An nsqd that is asked for its figures again and again."""

    def __init__(self, daemon: DaemonProcess, node_id: int) -> None:
        self._daemon = daemon
        self._client = NsqdHTTPClient(daemon.http_address, timeout=_ANSWER_TIMEOUT)
        self._blank = NsqdRow(daemon.name, daemon.tcp_address, daemon.http_address, node_id)
        self.row = self._blank
        #: The names of its topics, and of its channels with their topics'.
        self.topics: set[str] = set()
        self.channels: set[tuple[str, str]] = set()
        #: When it answered last (monotonic), and how many messages had been published and finished by then.
        self._counts: tuple[float, int, int] | None = None

    def ask(self) -> None:
        """Renew ``row``. May switch."""
        stats = None
        if self._daemon.is_running:
            with suppress(HTTPError):
                stats = self._client.stats(include_clients=False, include_mem=False)
        if stats is None:
            self.topics, self.channels = set(), set()
            self._counts = None
            self.row = replace(self._blank, problem=_problem(self._daemon))
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
        # Messages that arrived in a channel and are no longer there were finished (or the channel was emptied).
        held = sum(channel["depth"] for _, channel in channels) + in_flight + deferred
        finished = sum(channel["message_count"] for _, channel in channels) - held
        then = self._counts or (now, published, finished)
        self._counts = (now, published, finished)
        elapsed = now - then[0]
        self.row = replace(
            self._blank,
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
    """A nsqlookupd that is asked for its counts again and again."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self._daemon = daemon
        self._client = LookupdClient(daemon.http_address, timeout=_ANSWER_TIMEOUT)
        self._blank = LookupdRow(daemon.name, daemon.tcp_address, daemon.http_address)
        self.row = self._blank

    def ask(self) -> None:
        """Renew ``row``. May switch."""
        if self._daemon.is_running:
            with suppress(HTTPError):
                self.row = replace(self._blank, nsqds=len(self._client.nodes()), topics=len(self._client.topics()))
                return
        self.row = replace(self._blank, problem=_problem(self._daemon))
