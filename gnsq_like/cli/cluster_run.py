"""One run of ``gnsq-like cluster``: starts the daemons, asks them for their figures every second, shows those."""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import gevent
from rich.console import Group, RenderableType
from rich.text import Text

from gnsq_like.cli.admin_beside import admin_beside
from gnsq_like.cli.cluster_processes import ClusterProcesses
from gnsq_like.cli.screen import Layout, View
from gnsq_like.cli.top_figures import KINDS, Poll, Tables
from gnsq_like.cli.top_screen import grid_of
from gnsq_like.server.daemon_process import DaemonProcess
from gnsq_like.tools.daemons import Daemons

#: Seconds between two rounds of questions.
INTERVAL = 1.0
#: Seconds for an answer; then the table says that it is missing.
_ANSWER_TIMEOUT = 2.0
#: Seconds that the nsqds have at their end to write all messages to disk.
_STOP_TIMEOUT = 30.0


@dataclass(frozen=True)
class ClusterSnapshot:
    """The cluster at one moment."""

    seconds: float
    tables: Tables

    def total(self, kind: str, name: str) -> float:
        """The sum of a column; what is not known is left out."""
        found = [row.values[name] for row in self.tables.rows[kind]]
        return sum(each for each in found if isinstance(each, float) and not math.isnan(each))


class ClusterLayout(Layout[ClusterSnapshot]):
    """The sums, and a row for each nsqd: the table of ``gnsq-like top``."""

    least_size = (80, 12)

    def line(self, snapshot: ClusterSnapshot) -> str:
        return "; ".join([*self._sums(snapshot), *snapshot.tables.warnings])

    @staticmethod
    def _sums(snapshot: ClusterSnapshot) -> list[str]:
        topics, channels = (len(snapshot.tables.rows[name]) for name in ("topics", "channels"))
        counts = [
            f"{topics:,} topics, {channels:,} channels, depth {snapshot.total('nodes', 'DEPTH'):,.0f}",
            f"{snapshot.total('nodes', 'IN FLIGHT'):,.0f} in flight",
            f"{snapshot.total('channels', 'DEFERRED'):,.0f} deferred",
            f"{snapshot.total('nodes', 'CLIENTS'):,.0f} clients",
        ]
        rates = [
            f"{snapshot.total('nodes', 'IN/S'):,.0f} messages/s in",
            f"{snapshot.total('channels', 'OUT/S'):,.0f} finished",
        ]
        return [", ".join(counts), ", ".join(rates)]

    def table(self, snapshot: ClusterSnapshot, width: int, height: int) -> RenderableType:
        rows = snapshot.tables.rows["nodes"]
        grid = grid_of(KINDS["nodes"], rows, width)
        # The sums count the nsqds for which there is no room.
        shown = [grid.line(KINDS["nodes"].texts(row)) for row in rows[: max(1, height - 8)]]
        warnings = [Text(each, "red") for each in snapshot.tables.warnings[:2]]
        lines = [Text("; ".join(self._sums(snapshot))), grid.heading(), *shown, *warnings]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(*lines, Text(f"{snapshot.seconds:.0f} s; Ctrl-C ends it", style="dim"))


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

    def run(self) -> int:
        """Run until no nsqd is left, or until something is thrown into this greenlet. May switch.

        :raises DaemonFailed: when a daemon does not start
        """
        with self._cluster:
            found = [lookupd.http_address for lookupd in self._cluster.lookupds]
            self._introduce()
            started = time.monotonic()
            options = {"timeout": _ANSWER_TIMEOUT, "connect_timeout": _ANSWER_TIMEOUT, "verify": True, "cert": None}
            nsqds = tuple(nsqd.http_address for nsqd in self._cluster.nsqds)
            with (
                closing(Poll(Daemons(nsqds, (), options))) as poll,
                admin_beside(self._admin_port, found, self._view.say_to_copy),
                self._view,
            ):
                while self._cluster.running_nsqds:
                    self._note_lost()
                    self._view.update(self._snapshot(poll, time.monotonic() - started))
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

    def _snapshot(self, poll: Poll, seconds: float) -> ClusterSnapshot:
        """May switch."""
        tables = poll.take()
        names = {nsqd.http_address: nsqd.name for nsqd in self._cluster.nsqds}
        named = [replace(row, values={**row.values, "NSQD": names[row.key]}) for row in tables.rows["nodes"]]
        tables.rows["nodes"] = sorted(named, key=lambda row: [*names].index(row.key))
        return ClusterSnapshot(seconds, tables)


def _listed(addresses: list[str]) -> str:
    """A list in Python's syntax."""
    return "[" + ", ".join(f'"{address}"' for address in addresses) + "]"
