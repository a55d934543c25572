"""The daemons that a command starts: nsqlookupds, and nsqds that are registered with all of them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import gevent

from gnsq_like import LookupdClient, NsqdNode
from gnsq_like.cluster.daemons import Daemons
from gnsq_like.cluster.operations import operate
from gnsq_like.errors import HTTPError
from gnsq_like.server.daemon_process import DaemonFailed, DaemonProcess

#: Seconds that daemons with all messages in memory have to end after SIGTERM, before SIGKILL.
STOP_TIMEOUT = 3.0
#: Seconds for the daemons, and for Readers, to find every nsqd.
FIND_TIMEOUT = 60.0
#: Seconds between two looks at what an nsqlookupd knows.
_POLL_INTERVAL = 0.01


class ClusterProcesses:
    """nsqlookupds and nsqds as child processes; a context manager that ends them all.

    :param nsqds: how many nsqds; the node id of each is its number, because ids of different nsqds must differ
    :param lookupds: how many nsqlookupds
    :param nsqd_port: TCP port of the first nsqd; its HTTP port and the ports of the others follow. 0: free ports
    :param lookupd_port: the same for nsqlookupds
    :param data_path: directory in which each nsqd has one of its own; empty: all messages are in memory
    :param nsqd_flags: further arguments of each nsqd
    :param stop_timeout: seconds that they have to end in good order
    """

    def __init__(
        self,
        nsqds: int,
        lookupds: int = 1,
        *,
        nsqd_port: int = 0,
        lookupd_port: int = 0,
        data_path: str = "",
        nsqd_flags: Sequence[str] = (),
        stop_timeout: float = STOP_TIMEOUT,
    ) -> None:
        self.lookupds = [
            DaemonProcess(
                "nsqlookupd" if lookupds == 1 else f"nsqlookupd {number}",
                ["nsqlookupd", *_addresses(lookupd_port, number)],
            )
            for number in range(1, lookupds + 1)
        ]
        #: Made when the nsqlookupds' addresses are known.
        self.nsqds: list[DaemonProcess] = []
        self._nsqd_count = nsqds
        self._nsqd_port = nsqd_port
        self._data_path = data_path
        self._nsqd_flags = nsqd_flags
        self._stop_timeout = stop_timeout

    def start(self) -> None:
        """Start all, and wait until they listen and every nsqlookupd knows every nsqd. May switch.

        :raises DaemonFailed: when that fails; :meth:`stop` ends those that run
        """
        self._start(self.lookupds)
        registers = [f"--lookupd-tcp-address={lookupd.tcp_address}" for lookupd in self.lookupds]
        for number in range(1, self._nsqd_count + 1):
            arguments = [f"--node-id={number}", *registers, self._data_path_of(number)]
            arguments += [*_addresses(self._nsqd_port, number), *self._nsqd_flags]
            self.nsqds.append(DaemonProcess(f"nsqd {number}", ["nsqd", *arguments]))
        self._start(self.nsqds)
        self._wait_until_known(LookupdClient.nodes)  # a Reader that asks at once is not sent away

    def create_channels(self, topic: str, *channels: str) -> None:
        """Make a topic and channels on all nsqds, and wait until the nsqlookupds name all of them for it. May switch.

        :raises DaemonFailed: not all of them do in time
        """
        with Daemons([nsqd.http_address for nsqd in self.nsqds]) as daemons:
            for channel in channels:
                for failure in operate(daemons, "create", topic, channel).failures:
                    raise failure
        self._wait_until_known(lambda client: client.lookup(topic, missing_ok=True).producers)

    def _wait_until_known(self, nodes: Callable[[LookupdClient], Sequence[NsqdNode]]) -> None:
        """Wait until each nsqlookupd gives all nsqds in answer to this question. May switch."""
        with Daemons((), [lookupd.http_address for lookupd in self.lookupds]) as daemons:

            def are_known() -> bool:
                found = daemons.ask_lookupds(nodes).answers.values()
                return [len(each) for each in found] == [len(self.nsqds)] * len(self.lookupds)

            self.wait_until(are_known, "the nsqlookupds did not hear of")

    def wait_until(self, condition: Callable[[], bool], otherwise: str) -> None:
        """Wait until something is true of all nsqds; an HTTPError means not yet. May switch.

        :param otherwise: the beginning of the error, such as "nsqlookupd did not hear of"
        :raises DaemonFailed: it is not true in time, or a daemon has ended
        """
        deadline = time.monotonic() + FIND_TIMEOUT
        while True:
            with suppress(HTTPError):
                if condition():
                    return
            for daemon in self:
                if not daemon.is_running:
                    raise DaemonFailed(f"{daemon.name} ended too early: {daemon.how_it_ended}")
            if time.monotonic() >= deadline:
                raise DaemonFailed(f"{otherwise} every nsqd within {FIND_TIMEOUT:g} s")
            gevent.sleep(_POLL_INTERVAL)

    def _start(self, daemons: Sequence[DaemonProcess]) -> None:
        for daemon in daemons:
            daemon.start()
        for daemon in daemons:
            daemon.wait_until_listening()

    def _data_path_of(self, number: int) -> str:
        if not self._data_path:
            return "--data-path="
        path = Path(self._data_path).absolute() / f"nsqd-{number}"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise DaemonFailed(f"nsqd {number} did not start: {path}: {exc.strerror}") from exc
        return f"--data-path={path}"

    def stop(self) -> None:
        """End all; none is left after this. May switch."""
        deadline = time.monotonic() + self._stop_timeout
        daemons = [*self.nsqds, *self.lookupds]
        for daemon in daemons:
            daemon.signal(signal.SIGTERM)
        for daemon in daemons:
            daemon.end(deadline - time.monotonic())

    @property
    def running_nsqds(self) -> list[DaemonProcess]:
        """Those that have not ended."""
        return [nsqd for nsqd in self.nsqds if nsqd.is_running]

    def __iter__(self) -> Iterator[DaemonProcess]:
        yield from self.lookupds
        yield from self.nsqds

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _addresses(first_port: int, number: int) -> list[str]:
    """The flags for the addresses of the daemon with this number, the first one being 1."""
    tcp_port = first_port + 2 * (number - 1) if first_port else 0
    http_port = tcp_port + 1 if first_port else 0
    return [f"--tcp-address=127.0.0.1:{tcp_port}", f"--http-address=127.0.0.1:{http_port}"]
