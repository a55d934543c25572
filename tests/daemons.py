"""Daemons for tests: ours in this process, ours as a process, or the real ones on PATH.

::

    with running_nsqlookupd("ours") as lookupd:
        lookupd.tcp_address                          # for lookupd_tcp_addresses=[...] of running_nsqd
    with running_nsqd("ours", msg_timeout=1) as nsqd:
        nsqd.tcp_address, nsqd.http_address          # "127.0.0.1:41234"
        nsqd.stop(); nsqd.start()                    # again, on the same ports
        nsqd.kill()                                  # at once, without saying goodbye

Options are those of NsqdOptions and NsqlookupdOptions, in seconds; for processes they become flags.
An in-process daemon runs in the test's own hub: the test must wait the gevent way (gevent sockets,
gevent.sleep), or use kind="process".
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, Literal, TypeVar

import gevent
import pytest

from gnsq_like.server import Nsqd, NsqdOptions, Nsqlookupd, NsqlookupdOptions

Kind = Literal["ours", "process", "real"]
T = TypeVar("T")

#: For @pytest.mark.parametrize("kind", KINDS): the same assertions for ours and the real ones.
KINDS = ["ours", pytest.param("real", marks=pytest.mark.real_nsqd)]

#: Seconds until a process must have said where it listens, and until it must have ended.
START_TIMEOUT = 20.0
STOP_TIMEOUT = 10.0

NO_FLAGS: Mapping[str, Any] = {}

_LOOPBACK = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}


def wait_for(condition: Callable[[], T], what: str = "", timeout: float = 10.0) -> T:
    """Wait, the gevent way, until ``condition()`` is true, and give what it gave; AssertionError after ``timeout``."""
    deadline = monotonic() + timeout
    while not (value := condition()):
        assert monotonic() < deadline, f"not within {timeout} s: {what or condition}"
        gevent.sleep(0.005)
    return value


class Running:
    """A daemon of any kind. ``start`` begins again after ``stop`` or ``kill``, on the same ports."""

    def __init__(self) -> None:
        self.tcp_address = ""
        self.http_address = ""
        #: In this process: the Nsqd or Nsqlookupd, with its broker or registry.
        self.daemon: Any = None

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Let it end in good order; nothing if it does not run."""
        raise NotImplementedError

    def kill(self) -> None:
        """End it at once; nothing if it does not run."""
        raise NotImplementedError

    def close(self) -> None:
        """Kill it and remove what it left."""
        self.kill()


class InProcess(Running):
    """A daemon of ours in this process."""

    def __init__(self, make: Callable[[Any], Any], options: Any) -> None:
        super().__init__()
        self._make = make
        self._options = options

    def start(self) -> None:
        self.daemon = self._make(self._options)
        self.daemon.start()
        self.tcp_address, self.http_address = self.daemon.tcp_address, self.daemon.http_address
        self._options = replace(self._options, tcp_address=self.tcp_address, http_address=self.http_address)

    def stop(self) -> None:
        self.daemon.stop()

    def kill(self) -> None:
        self.daemon.stop(0)


class Process(Running):
    """A daemon as a process; its log is in ``log``, its data in a directory of its own."""

    def __init__(self, command: list[str], options: Mapping[str, Any], has_data_path: bool) -> None:
        super().__init__()
        self._command = command
        self._options = dict(options)
        self._directory = Path(tempfile.mkdtemp(prefix="gnsq_like-test-"))
        if has_data_path:
            self._options["data_path"] = str(self._directory)
        self._log_path = self._directory / "stderr"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    def start(self) -> None:
        # stdin stays a pipe of ours: a daemon of ours then ends with us, even if we are killed.
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*self._command, *_flags(self._options)], stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        try:
            self.tcp_address = wait_for(lambda: self._listening("TCP"), f"{self._command}", START_TIMEOUT)
            self.http_address = wait_for(lambda: self._listening("HTTP"), f"{self._command}", START_TIMEOUT)
        except BaseException:
            self.kill()
            raise
        self._options |= {"tcp_address": self.tcp_address, "http_address": self.http_address}

    def _listening(self, what: str) -> str:
        assert self.process is not None
        assert self.process.poll() is None, f"{self._command} ended: {self.log}"
        found = re.search(rf"INFO: {what}: listening on (\S+)\n", self.log)
        return found[1] if found else ""

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        assert process.stdin is not None
        with process:
            process.send_signal(number)
            try:
                wait_for(lambda: process.poll() is not None, f"{self._command} did not end", STOP_TIMEOUT)
            except BaseException:
                process.kill()
                raise

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._directory)


def _flags(options: Mapping[str, Any]) -> list[str]:
    """NSQ's flags: durations in ms, lists as repeated flags."""
    flags = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, list | tuple):
            flags += [f"{flag.removesuffix('es')}={each}" for each in value]
        elif isinstance(value, bool):
            flags.append(f"{flag}={str(value).lower()}")
        elif isinstance(value, float):
            flags.append(f"{flag}={value * 1000:g}ms")
        else:
            flags.append(f"{flag}={value}")
    return flags


def _running(
    kind: Kind, name: str, daemon: Any, options_class: Any, options: dict[str, Any], flags: Mapping[str, Any]
) -> Running:
    options = _LOOPBACK | options
    if "lookupd_tcp_addresses" in options:
        options["lookupd_tcp_addresses"] = tuple(options["lookupd_tcp_addresses"])
    # What is a duration is a float in the options, and must be one for the flags; 1 for 1.0 is fine here.
    checked = options_class(**options)
    options |= {
        key: float(value) for key, value in options.items() if isinstance(getattr(options_class, key, 0), float)
    }
    if kind == "ours":
        return InProcess(daemon, checked)
    if kind == "process":
        return Process([sys.executable, "-m", "gnsq_like", name, "--exit-with-parent"], options, has_data_path=False)
    options = {"broadcast_address": "127.0.0.1", **options, **flags}
    return Process([shutil.which(name) or name], options, has_data_path=name == "nsqd")


@contextmanager
def _until_closed(running: Running) -> Iterator[Running]:
    running.start()
    try:
        yield running
    finally:
        running.close()


def running_nsqd(
    kind: Kind = "ours", *, flags: Mapping[str, Any] = NO_FLAGS, **options: Any
) -> AbstractContextManager[Running]:
    """Context manager: an nsqd on free loopback ports. "ours" has its Nsqd as ``.daemon``.

    ``flags`` are for the real one alone: {"snappy": False}.
    """
    return _until_closed(_running(kind, "nsqd", Nsqd, NsqdOptions, options, flags))


def running_nsqlookupd(kind: Kind = "ours", **options: Any) -> AbstractContextManager[Running]:
    """Context manager: a nsqlookupd on free loopback ports. "ours" has its Nsqlookupd as ``.daemon``."""
    return _until_closed(_running(kind, "nsqlookupd", Nsqlookupd, NsqlookupdOptions, options, NO_FLAGS))
