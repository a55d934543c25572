"""A simulated cluster: nsqlookupds, nsqds, and the programs that use them.

Each daemon is the package's own, in a process of its own. Readers and Producers are made by the test, in the process
"main", unless it asks for more processes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import gevent
from gevent.event import Event

import gnsq_like
from gnsq_like.server import Nsqd, Nsqlookupd
from tests.simulation.disk import Disk
from tests.simulation.process import Process
from tests.simulation.world import World, leftovers


class NotInTime(AssertionError):
    """What was waited for did not happen."""


class Daemon:
    """A daemon and the process that it runs in; a new process after each end.

    :param make: makes the daemon, given its TCP and HTTP addresses; called in its process
    """

    def __init__(self, world: World, name: str, make: Callable[[str, str], Any], disk: Disk | None = None) -> None:
        self._world = world
        self._name = name
        self._make = make
        self.disk = disk
        self.process: Process = world.process(name)
        #: The daemon itself; reading its state needs no time.
        self.daemon: Any = None
        self.tcp_address = self.http_address = "127.0.0.1:0"

    @property
    def is_running(self) -> bool:
        return self.process.is_alive and self.daemon is not None and self.daemon.is_running

    def start(self) -> None:
        """Start it, on the addresses that it had before."""
        if self.daemon is not None:
            self.process = self._world.process(self._name)

        def start() -> Any:
            daemon = self._make(self.tcp_address, self.http_address)
            daemon.start()
            return daemon

        self.daemon = self.process.run(start)
        self.tcp_address, self.http_address = self.daemon.tcp_address, self.daemon.http_address

    def stop(self) -> None:
        """Stop it in good order."""
        self.process.run(self.daemon.stop)

    def kill(self) -> None:
        """Kill it, as SIGKILL does: what it has written to files stays."""
        self._world.kill(self.process)
        if self.disk is not None:
            self.disk.release()

    def crash(self) -> None:
        """End it with its machine: of its files, only what was synced is certain to stay, and no peer is told."""
        for connection in self._world.network.open_connections([self.process]):
            connection.become_half_open("none")
        self.kill()
        if self.disk is not None:
            self.disk.crash()

    def restart(self, seconds: float = 0.0) -> None:
        """Stop it, and start it again after a while."""
        self.stop()
        gevent.sleep(seconds)
        self.start()

    def __repr__(self) -> str:
        return f"<{self._name} {self.tcp_address}>"


class Cluster:
    """What a simulated test gets; made by ``tests.simulation.simulated``.

    :param nsqds: how many
    :param nsqlookupds: how many; the nsqds register with all of them
    :param options: of each nsqd; ``data_path=True`` gives each a directory of its own
    """

    def __init__(self, world: World, nsqds: int, nsqlookupds: int, options: dict[str, Any]) -> None:
        self.world = world
        self._options = options
        self._directory: str | None = None
        #: What ends with the test, the last first.
        self.closing: list[Callable[[], object]] = []
        self.nsqlookupds = [self._make_nsqlookupd(number) for number in range(nsqlookupds)]
        for nsqlookupd in self.nsqlookupds:
            nsqlookupd.start()
        self.nsqds: list[Daemon] = []
        for _ in range(nsqds):
            self.add_nsqd()

    def add_nsqd(self) -> Daemon:
        """One more, started."""
        nsqd = self._make_nsqd(len(self.nsqds))
        self.nsqds.append(nsqd)
        nsqd.start()
        return nsqd

    def _make_nsqlookupd(self, number: int) -> Daemon:
        def make(tcp_address: str, http_address: str) -> Nsqlookupd:
            return Nsqlookupd(tcp_address=tcp_address, http_address=http_address)

        return Daemon(self.world, f"nsqlookupd-{number}", make)

    def _make_nsqd(self, number: int) -> Daemon:
        options: dict[str, Any] = {
            "node_id": number,
            "broadcast_address": "127.0.0.1",
            "lookupd_tcp_addresses": tuple(each.tcp_address for each in self.nsqlookupds),
            **self._options,
        }
        disk = None
        if options.get("data_path") is True:
            path = self._data_path(number)
            options["data_path"] = str(path)
            disk = self.world.disk(path)

        def make(tcp_address: str, http_address: str) -> Nsqd:
            return Nsqd(tcp_address=tcp_address, http_address=http_address, **options)

        return Daemon(self.world, f"nsqd-{number}", make, disk)

    def _data_path(self, number: int) -> Path:
        if self._directory is None:
            memory = Path("/dev/shm")
            self._directory = mkdtemp(prefix="simulated-", dir=memory if memory.is_dir() else None)
            os.chdir(self._directory)
        # The same name in every run, because it is a part of nsqd's errors; each run is a process of its own.
        path = Path("/proc/self/cwd", str(number))
        path.mkdir(exist_ok=True)
        return path

    # -- programs --------------------------------------------------------------------------------------

    @property
    def tcp_addresses(self) -> list[str]:
        """Of all nsqds."""
        return [nsqd.tcp_address for nsqd in self.nsqds]

    def discovery(self) -> dict[str, Any]:
        """How a program finds the nsqds."""
        if self.nsqlookupds:
            return {"lookupd_http_addresses": [each.http_address for each in self.nsqlookupds]}
        return {"nsqd_tcp_addresses": self.tcp_addresses}

    def reader(self, topic: Any, channel: str, handler: Any = None, **options: Any) -> gnsq_like.Reader:
        """A Reader, started if it has a handler, which finds the nsqds by nsqlookupd if there is one."""
        reader = gnsq_like.Reader(topic, channel, handler, **{**self.discovery(), **options})
        self.closing.append(reader.stop)
        if handler is not None:
            reader.start()
        return reader

    def producer(self, addresses: Any = None, **options: Any) -> gnsq_like.Producer:
        """A Producer for all nsqds, or for these addresses."""
        producer = gnsq_like.Producer(self.tcp_addresses if addresses is None else addresses, **options)
        self.closing.append(producer.close)
        return producer

    def publish(self, topic: str, *bodies: bytes, nsqd: int = 0) -> None:
        """Publish to one nsqd, by a Producer of its own."""
        with gnsq_like.Producer(self.nsqds[nsqd].tcp_address) as producer:
            producer.multi_publish(topic, list(bodies))

    # -- time ------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self.world.now

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        gevent.sleep(seconds)

    def wait(self, condition: Callable[[], object], seconds: float = 60.0) -> float:
        """Wait until ``condition()``, which is looked at before each move of the time; it must not switch.

        :returns: the virtual seconds that it took
        :raises NotInTime: if it took more than ``seconds``
        """
        start = self.now
        if condition():
            return 0.0
        met = Event()

        def check() -> None:
            if condition():
                met.set()

        self.world.checks.append(check)
        try:
            if not met.wait(seconds):
                raise NotInTime(f"waited {seconds:g} virtual seconds in vain")
        finally:
            self.world.checks.remove(check)
        return self.now - start

    def always(self, condition: Callable[[], object], what: str = "") -> None:
        """From now on, ``condition()`` must hold before each move of the time; it must not switch."""

        def check() -> None:
            if not condition():
                raise AssertionError(f"at {self.now:.6f} s: {what or condition} does not hold")

        self.world.checks.append(check)

    # -- the end ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop everything that still runs."""
        self.world.checks.clear()
        for close in reversed(self.closing):
            close()
        for daemon in [*self.nsqds, *self.nsqlookupds]:
            if daemon.is_running:
                daemon.stop()

    def check_nothing_left(self) -> None:
        """After ``close``: no greenlet, timer or socket is left, and no error was lost."""
        gevent.sleep(1.0)
        alive = [process for process in self.world.processes if process.is_alive]
        left = leftovers(self.world, alive)
        assert not left, "left at the end:\n" + "\n".join(left)

    def remove_files(self) -> None:
        """Remove the data paths."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
