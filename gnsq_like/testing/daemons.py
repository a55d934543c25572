"""A daemon of any kind, started and ended: in this process, as a process of ours, or NSQ's own on PATH.

Every kind listens on free loopback ports, says which, and keeps them when it is started again.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from gnsq_like.durations import format_duration
from gnsq_like.errors import InvalidOption
from gnsq_like.suggestion import did_you_mean
from gnsq_like.testing.place import Place
from gnsq_like.testing.waiting import wait_until

#: "thread": ours, in a thread of its own; "hub": ours, in the caller's hub; "process": ours, as a process;
#: "real": NSQ's own, as a process.
Kind = Literal["thread", "hub", "process", "real"]

#: Seconds until a process must have said where it listens, and until it must have ended.
START_TIMEOUT = 20.0
STOP_TIMEOUT = 10.0

FREE_PORTS = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}


class Daemon:
    """A daemon of any kind. ``start`` begins again after ``stop`` or ``kill``, on the same ports.

    :param has_data_path: whether it keeps its data in a directory of its own
    """

    def __init__(self, has_data_path: bool) -> None:
        self.tcp_address = ""
        self.http_address = ""
        #: Empty without a tls_cert.
        self.https_address = ""
        #: In this process: the Nsqd or Nsqlookupd, with its broker or registry; it belongs to its thread.
        self.daemon: Any = None
        self._has_data_path = has_data_path
        #: From the first start until it is closed.
        self._directory: Path | None = None

    @property
    def is_running(self) -> bool:
        """Whether it serves."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it; it listens when this returns. May switch."""
        raise NotImplementedError

    def stop(self) -> None:
        """Let it end in good order; nothing if it does not run. May switch."""
        raise NotImplementedError

    def kill(self) -> None:
        """End it at once; nothing if it does not run. May switch."""
        raise NotImplementedError

    def close(self) -> None:
        """Kill it and remove what it left; it cannot be started again. May switch."""
        try:
            self.kill()
        finally:
            directory, self._directory = self._directory, None
            if directory is not None:
                shutil.rmtree(directory)

    def _make_directory(self) -> Path:
        """Its own directory, made if there is none."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="gnsq_like-test-"))
        return self._directory


class InProcess(Daemon):
    """A daemon of ours in this process.

    :param make: makes an Nsqd or Nsqlookupd of its options
    """

    def __init__(
        self, make: Callable[[Any], Any], options: Any, *, own_thread: bool | None, has_data_path: bool = False
    ) -> None:
        super().__init__(has_data_path)
        self._make = make
        self._options = options
        self._place = Place(own_thread)

    @property
    def is_running(self) -> bool:
        return self.daemon is not None and bool(self.daemon.is_running)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the daemon's hub."""
        return self._place.run(function, *arguments)

    def start(self) -> None:
        if self._has_data_path:
            self._options = replace(self._options, data_path=str(self._make_directory()))
        self._place.open()
        self._place.run(self._start)
        for name in ("tcp_address", "http_address", "https_address"):
            address = getattr(self.daemon, name)
            setattr(self, name, address)
            if address:
                self._options = replace(self._options, **{name: address})

    def _start(self) -> None:
        self.daemon = self._make(self._options)
        self.daemon.start()

    def stop(self) -> None:
        if self.is_running:
            self._place.run(self.daemon.stop)

    def kill(self) -> None:
        if self.is_running:
            self._place.run(self._kill)

    def _kill(self) -> None:
        """In its hub: end it, and leave on disk what was there, for a stop writes down the rest."""
        if not self._has_data_path:
            self.daemon.stop(0)
            return
        directory = self._make_directory()
        left = directory.with_name(directory.name + "-left")
        shutil.copytree(directory, left)
        self.daemon.stop(0)
        shutil.rmtree(directory)
        left.rename(directory)

    def close(self) -> None:
        try:
            self.stop()  # a kill would first put aside a copy of all that is on disk
        finally:
            try:
                super().close()
            finally:
                self._place.close()


class Process(Daemon):
    """A daemon as a process; its log is in ``log``, its data in a directory of its own."""

    def __init__(self, command: list[str], options: Mapping[str, Any], has_data_path: bool) -> None:
        super().__init__(has_data_path)
        self._command = command
        self._options = dict(options)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> str:
        """What it wrote since its last start."""
        return "" if self._directory is None else (self._directory / "stderr").read_text(errors="replace")

    def start(self) -> None:
        directory = self._make_directory()
        if self._has_data_path:
            self._options["data_path"] = str(directory)
        # stdin stays a pipe of ours: a daemon of ours then ends with us, even if we are killed.
        with (directory / "stderr").open("wb") as log:
            self.process = subprocess.Popen(
                [*self._command, *flags(self._options)], stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        try:
            self.tcp_address = self._wait_until_listening("TCP")
            if self._options["http_address"]:
                self.http_address = self._wait_until_listening("HTTP")
            if self._options.get("tls_cert"):
                self._options["https_address"] = self.https_address = self._wait_until_listening("HTTPS")
        except BaseException:
            self.kill()
            raise
        self._options |= {"tcp_address": self.tcp_address, "http_address": self.http_address}

    def _wait_until_listening(self, what: str) -> str:
        return wait_until(lambda: self._listening(what), START_TIMEOUT, f"{self._command[0]} listens for {what}")

    def _listening(self, what: str) -> str:
        ended = self.process is None or self.process.poll() is not None
        found = re.search(rf"INFO: {what}: listening on (\S+)\n", self.log)
        if found:
            return found[1]
        assert not ended, f"{' '.join(self._command)} ended: {self.log}"
        return ""

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
                wait_until(lambda: process.poll() is not None, STOP_TIMEOUT, f"the end of {self._command[0]}")
            except BaseException:
                process.kill()
                raise


def flags(options: Mapping[str, Any]) -> list[str]:
    """NSQ's flags: durations as Go writes them, lists as repeated flags."""
    made = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, list | tuple):
            singular = flag.removesuffix("es") if flag.endswith("sses") else flag.removesuffix("s")
            made += [f"{singular}={each}" for each in value]
        elif isinstance(value, bool):
            made.append(f"{flag}={str(value).lower()}")
        elif isinstance(value, float):
            made.append(f"{flag}={format_duration(value)}")
        else:
            made.append(f"{flag}={value}")
    return made


def make_daemon(
    kind: Kind | None,
    daemon: Callable[..., Any],
    options_class: type[Any],
    options: Mapping[str, Any],
    *,
    real_command: str = "",
) -> Daemon:
    """A daemon that is not started yet.

    :param kind: None for "thread", or "hub" where sockets are monkey-patched
    :param daemon: Nsqd or Nsqlookupd, or what makes one of its options
    :param options: of ``options_class``; for processes they become flags
    :param real_command: the real one's path; empty for its name on PATH
    :raises InvalidOption: an option that is none
    """
    name = options_class.__name__.removesuffix("Options").lower()
    known = {option.name: option for option in fields(options_class)}
    for given, value in options.items():
        if given not in known:
            raise InvalidOption(given, value, f"{name} has no such option{did_you_mean(given, known)}")
    options = FREE_PORTS | {given: _converted(value, known[given].default) for given, value in options.items()}
    if options.get("tls_cert"):
        options.setdefault("https_address", "127.0.0.1:0")
    checked = options_class(**options)
    has_data_path = "data_path" in known and "data_path" not in options
    if kind in (None, "thread", "hub"):
        own_thread = None if kind is None else kind == "thread"
        return InProcess(daemon, checked, own_thread=own_thread, has_data_path=has_data_path)
    if options.get("log_level", "info") not in ("info", "debug"):
        raise InvalidOption("log_level", options["log_level"], "a process tells its ports at level info")
    if kind == "process":
        command = [sys.executable, "-m", "gnsq_like", name, "--exit-with-parent"]
        return Process(command, options, has_data_path)
    if kind == "real":
        options = {"broadcast_address": "127.0.0.1", **options}
        path = real_command or shutil.which(name)
        if not path:
            raise InvalidOption("kind", kind, f"there is no {name} on PATH")
        return Process([path], options, has_data_path)
    raise InvalidOption("kind", kind, "it is thread, hub, process or real")


def _converted(value: Any, default: Any) -> Any:
    """In the options lists are tuples; what is a duration is a float, and must be one for the flags."""
    if isinstance(default, tuple) and not isinstance(value, str):
        return tuple(value)
    return float(value) if isinstance(default, float) else value
