"""A daemon as a child process, gnsq_like's own or NSQ's: starts it, reads its addresses, and ends it.

The commands, the test kit and the benchmarks all start daemons this way, from any thread, with or without a hub. So it
uses the standard library's ``subprocess`` and not gevent's, which works only in the main thread, and whose SIGCHLD
handler reaps every child of the process: other users of ``subprocess`` then read status 0 for all their children. In a
monkey-patched program the standard library's is gevent's.

A daemon logs the addresses it listens on. Its stderr is read to the end, because it would block on a full pipe.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import gevent
from gevent import monkey

from gnsq_like.errors import NSQError
from gnsq_like.runtime import native
from gnsq_like.runtime.hub_calls import sleep

#: Seconds for a daemon to log its addresses: less than one on an idle machine, more than 20 on an overloaded one. A
#: daemon that ends is noticed at once.
START_TIMEOUT = 60.0
#: Seconds between two looks at a child.
_POLL_INTERVAL = 0.01
#: Lines of the log that are kept, some 100 bytes each.
_LOG_LINES = 10_000

_LISTENING = re.compile(r"\b(TCP|HTTP|HTTPS): listening on (\S+)$")
#: The beginning of log lines, which errors leave out.
_LOG_PREFIX = re.compile(r"^\[\w+\] \S+ \S+ ")

#: Where `python -m gnsq_like` finds the package that is running here.
_HOME = Path(__file__).resolve().parents[2]


class DaemonFailed(NSQError):
    """A daemon did not start, or ended too early; the text is a sentence without its full stop."""


class DaemonProcess:
    """An nsqd or nsqlookupd as a child process. Next: :meth:`start`, and always :meth:`end`.

    A daemon of ours does not outlive its parent: it ends when its stdin does, even if the parent is killed. It has a
    process group of its own, so that Ctrl-C reaches the parent alone, which ends its children in good order.

    :param name: its name in errors, as "nsqd 1"
    :param arguments: of ``gnsq-like``, as ``["nsqd", "--node-id=1"]``; or of ``program``
    :param program: the command of another daemon than ours, as ``["/usr/bin/nsqd"]``
    :param listens: the protocols it will listen for: some of "TCP", "HTTP", "HTTPS"
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        program: Sequence[str] = (),
        listens: Sequence[str] = ("TCP", "HTTP"),
    ) -> None:
        self.name = name
        self._is_ours = not program
        self._command = [*program, *arguments]
        if self._is_ours:
            self._command = [sys.executable, "-m", "gnsq_like", arguments[0], "--exit-with-parent", *arguments[1:]]
        self._listens = set(listens)
        #: The addresses that it has logged so far, by "TCP", "HTTP" and "HTTPS".
        self._addresses: dict[str, str] = {}
        self._lines: deque[str] = deque(maxlen=_LOG_LINES)
        #: Whether stderr has ended.
        self._is_silent = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def tcp_address(self) -> str:
        """Empty until it listens there, as the other two."""
        return self._addresses.get("TCP", "")

    @property
    def http_address(self) -> str:
        """For HTTP."""
        return self._addresses.get("HTTP", "")

    @property
    def https_address(self) -> str:
        """For HTTP over TLS."""
        return self._addresses.get("HTTPS", "")

    @property
    def log(self) -> str:
        """The last lines that it wrote to stderr."""
        return "".join(f"{line}\n" for line in self._lines)

    @property
    def pid(self) -> int:
        """Its process id; only after :meth:`start`."""
        assert self._process is not None
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self.status is None

    @property
    def how_it_ended(self) -> str:
        """In words; only for one that has ended."""
        status = self.status
        if status is not None and status < 0:
            return f"it was killed by {signal.Signals(-status).name}"
        return f"it ended with status {status}"

    def start(self) -> None:
        """Start the process and return. Next: :meth:`wait_until_listening`.

        :raises DaemonFailed: when the program does not exist
        """
        try:
            self._process = subprocess.Popen(
                self._command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                process_group=0 if self._is_ours else None,
                env=_environment() if self._is_ours else None,
            )
        except OSError as exc:
            raise DaemonFailed(f"{self.name} did not start: {self._command[0]}: {exc.strerror}") from exc
        if monkey.is_module_patched("subprocess"):
            gevent.spawn(self._follow, self._process)  # its pipes are read in the hub
        else:
            native.start_new_thread(self._follow, (self._process,))

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        """Read stderr to its end; in a native thread or a greenlet."""
        assert process.stderr is not None
        rest = b""
        while data := process.stderr.read(65536):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._read(line.decode("utf-8", "replace").rstrip())
        self._is_silent = True

    def _read(self, line: str) -> None:
        self._lines.append(line)
        if found := _LISTENING.search(line):
            self._addresses[found[1]] = found[2]

    def wait_until_listening(self, timeout: float = START_TIMEOUT) -> None:
        """Wait until it listens. May switch, or block.

        :raises DaemonFailed: when it ended, or does not listen within ``timeout`` seconds
        """
        if not _wait_for(lambda: self._is_silent or self._listens <= self._addresses.keys(), timeout):
            raise DaemonFailed(f"{self.name} did not start: it did not listen within {timeout:g} s")
        if not self._listens <= self._addresses.keys():
            _wait_for(lambda: not self.is_running, timeout)
            said = [line for line in self._lines if line]
            raise DaemonFailed(
                f"{self.name} did not start: {_LOG_PREFIX.sub('', said[-1]) if said else self.how_it_ended}"
            )

    def signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def end(self, timeout: float) -> bool:
        """Wait for its end, then kill it; twice is fine. May switch, or block.

        :returns: whether it ended by itself within ``timeout`` seconds
        """
        process = self._process
        if process is None:
            return True
        try:
            return _wait_for(lambda: not self.is_running, timeout)
        finally:
            process.kill()
            process.wait()
            _wait_for(lambda: self._is_silent, 1.0)
            with process:  # closes the pipes
                pass


def _environment() -> dict[str, str]:
    """This process's environment; modules are found in the same places, but never in the current directory."""
    paths = [str(_HOME), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def _wait_for(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait until ``condition()`` is true; False after ``timeout`` seconds. May switch, or block."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            return False
        sleep(_POLL_INTERVAL)
    return True
