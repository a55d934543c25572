"""Daemons of a command: ``gnsq-like nsqlookupd`` and ``gnsq-like nsqd`` as child processes.

No child outlives us. It ends with the end of its stdin, which only we hold, so even SIGKILL takes it along.
It is in a process group of its own, so that Ctrl-C reaches us alone and we end the children in good order.

A child's stderr is read to its end all the time: it says where the child listens, and why it ended.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import gevent
import gevent.os
from gevent.event import Event

import gnsq_like

#: Seconds until a daemon must have said where it listens; it takes less than one on an idle machine.
START_TIMEOUT = 20.0
#: Seconds that a daemon has after SIGTERM, before SIGKILL.
STOP_TIMEOUT = 3.0
#: Seconds between two looks whether a process has ended; nothing else tells an unpatched program.
_POLL_INTERVAL = 0.01

_LISTENING = re.compile(r"\b(TCP|HTTP): listening on (\S+)")
#: What log lines begin with; of no use in a sentence.
_LOG_PREFIX = re.compile(r"^\[\w+\] \S+ \S+ ")

#: Where `python -m gnsq_like` finds the same package as we have.
_HOME = Path(gnsq_like.__file__).resolve().parent.parent


class ChildFailed(Exception):
    """A daemon did not start; the text is a sentence."""


class Child:
    """A daemon as a child process.

    :param name: what to call it
    :param arguments: of the command ``gnsq-like``
    """

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        #: Where it listens; empty until it has said so.
        self.tcp_address = ""
        self.http_address = ""
        self._command = [sys.executable, "-m", "gnsq_like", *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._follower: Any = None
        #: The last line that it wrote.
        self._last_line = ""
        #: Set when it listens, or has ended without.
        self._decided = Event()

    def start(self) -> None:
        """Start the process; does not wait for it. Next: :meth:`wait_until_listening`, and always :meth:`end`.

        :raises ChildFailed: when there is no such process
        """
        try:
            self._process = subprocess.Popen(
                self._command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                process_group=0,
                env=_environment(),
            )
        except OSError as exc:
            raise ChildFailed(f"{self.name} did not start: {self._command[0]}: {exc.strerror}") from exc
        self._follower = gevent.spawn(self._follow, self._process)

    def wait_until_listening(self, timeout: float = START_TIMEOUT) -> None:
        """Wait until it has said where it listens. May switch.

        :raises ChildFailed: when it ended, or said nothing for ``timeout`` seconds
        """
        if not self._decided.wait(timeout):
            raise ChildFailed(f"{self.name} did not start: it did not listen within {timeout:g} s")
        if not self.http_address:
            raise ChildFailed(f"{self.name} did not start: {self._last_line or self.how_it_ended}")

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def how_it_ended(self) -> str:
        """In words; only for one that has ended."""
        status = None if self._process is None else self._process.poll()
        if status is not None and status < 0:
            return f"it was killed by {signal.Signals(-status).name}"
        return f"it ended with status {status}"

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        descriptor = process.stderr.fileno()
        gevent.os.make_nonblocking(descriptor)
        rest = b""
        while data := gevent.os.nb_read(descriptor, 65536):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._read(line.decode("utf-8", "replace").strip())
        _wait_for(lambda: process.poll() is not None, STOP_TIMEOUT)
        self._decided.set()

    def _read(self, line: str) -> None:
        if found := _LISTENING.search(line):
            if found[1] == "TCP":
                self.tcp_address = found[2]
            else:
                self.http_address = found[2]
            if self.tcp_address and self.http_address:
                self._decided.set()
        elif line:
            self._last_line = _LOG_PREFIX.sub("", line)

    def signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def end(self, deadline: float) -> None:
        """Wait for its end until ``deadline`` (monotonic), then kill it; twice is fine. May switch."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            _wait_for(lambda: process.poll() is not None, deadline - time.monotonic())
        finally:
            process.kill()
            if self._follower is not None:
                self._follower.kill()
            with process:  # closes the pipes and waits
                pass


class Cluster:
    """nsqlookupds, and nsqds that are registered with all of them; a context manager that ends them all.

    :param nsqds: how many nsqds; each has its number as its node id, for ids of different nsqds must differ
    :param lookupds: how many nsqlookupds
    :param nsqd_port: TCP port of the first nsqd; the next number is its HTTP port, then come the others'. 0: free ones
    :param lookupd_port: the same for nsqlookupds
    :param data_path: directory in which each nsqd has one of its own; empty: they keep all in memory
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
            Child(
                "nsqlookupd" if lookupds == 1 else f"nsqlookupd {number}",
                ["nsqlookupd", *_addresses(lookupd_port, number)],
            )
            for number in range(1, lookupds + 1)
        ]
        #: Made when the nsqlookupds' addresses are known.
        self.nsqds: list[Child] = []
        self._nsqd_count = nsqds
        self._nsqd_port = nsqd_port
        self._data_path = data_path
        self._nsqd_flags = nsqd_flags
        self._stop_timeout = stop_timeout

    def start(self) -> None:
        """Start all, and wait until they listen. May switch.

        :raises ChildFailed: when one does not; :meth:`stop` ends the others
        """
        self._start(self.lookupds)
        registers = [f"--lookupd-tcp-address={lookupd.tcp_address}" for lookupd in self.lookupds]
        for number in range(1, self._nsqd_count + 1):
            arguments = [f"--node-id={number}", *registers, *self._data_path_of(number)]
            arguments += [*_addresses(self._nsqd_port, number), *self._nsqd_flags]
            self.nsqds.append(Child(f"nsqd {number}", ["nsqd", *arguments]))
        self._start(self.nsqds)

    def _start(self, children: Sequence[Child]) -> None:
        for child in children:
            child.start()
        for child in children:
            child.wait_until_listening()

    def _data_path_of(self, number: int) -> list[str]:
        if not self._data_path:
            return ["--data-path="]
        path = Path(self._data_path).absolute() / f"nsqd-{number}"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise ChildFailed(f"nsqd {number} did not start: {path}: {exc.strerror}") from exc
        return [f"--data-path={path}"]

    def stop(self) -> None:
        """End all; none is left after this. May switch."""
        children = [*self.nsqds, *self.lookupds]
        deadline = time.monotonic() + self._stop_timeout
        for child in children:
            child.signal(signal.SIGTERM)
        for child in children:
            child.end(deadline)

    @property
    def alive(self) -> list[Child]:
        """The nsqds that run."""
        return [child for child in self.nsqds if child.alive]

    def __iter__(self) -> Iterator[Child]:
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
    return [f"--tcp-address=127.0.0.1:{tcp_port}", f"--http-address=127.0.0.1:{http_port}", "--exit-with-parent"]


def _environment() -> dict[str, str]:
    """Ours; but modules come from where ours do, and never from the directory that we were started in."""
    paths = [str(_HOME), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def _wait_for(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait until ``condition()`` is true; False after ``timeout`` seconds. May switch."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            return False
        gevent.sleep(_POLL_INTERVAL)
    return True
