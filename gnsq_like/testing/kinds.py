"""A daemon of any kind, started and ended: in this process, as a process of ours, or NSQ's own on PATH.

Every kind listens on free loopback ports and keeps them when it is started again: meanwhile they are bound, but not
listened on, so that connections are refused and no other program gets them.
"""

from __future__ import annotations

import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from gevent import monkey

from gnsq_like.addresses import join_host_port, parse_address
from gnsq_like.errors import InvalidOption, did_you_mean
from gnsq_like.runtime.hub_calls import HubHandle
from gnsq_like.server.daemon_process import START_TIMEOUT, DaemonProcess
from gnsq_like.server.shared.gotext import format_duration
from gnsq_like.testing.hub import kit_hub

#: "thread": ours, in a thread of its own; "hub": ours, in the caller's hub; "process": ours, as a process;
#: "real": NSQ's own, as a process.
Kind = Literal["thread", "hub", "process", "real"]

#: Seconds for a process to end after SIGTERM.
STOP_TIMEOUT = 10.0

_ADDRESSES = ("tcp_address", "http_address", "https_address")
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
        #: Bound to its ports, from the first start until it is closed.
        self._reserved: list[socket.socket] = []

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
        """Kill it and remove its data; it cannot be started again. May switch."""
        try:
            self.kill()
        finally:
            reserved, self._reserved = self._reserved, []
            for each in reserved:
                each.close()
            directory, self._directory = self._directory, None
            if directory is not None:
                shutil.rmtree(directory)

    def _make_directory(self) -> Path:
        """The directory of its own, created at the first call."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="gnsq_like-test-"))
        return self._directory

    def _reserve(self, options: Mapping[str, Any]) -> dict[str, str]:
        """The options for its addresses, with a reserved port in place of each port 0."""
        found = {}
        for name in _ADDRESSES:
            address = options.get(name)
            where = parse_address(address, to_listen=True) if address else None
            if where is not None and not where.path and not where.port:
                found[name], reserved = reserve(where.host)
                self._reserved.append(reserved)
        return found


def reserve(host: str = "127.0.0.1") -> tuple[str, socket.socket]:
    """An address that refuses connections, and the socket that keeps it from others.

    Sockets with SO_REUSEADDR, such as the daemons', may listen there.
    """
    # Not gevent's, even in a patched program: it is closed in any thread.
    reserved: socket.socket = monkey.get_original("socket", "socket")(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM
    )
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((host, 0))
    return join_host_port(host, reserved.getsockname()[1]), reserved


class InProcess(Daemon):
    """A daemon of ours in this process.

    :param make: makes an Nsqd or Nsqlookupd of its options
    :param own_thread: see :func:`~gnsq_like.testing.hub.kit_hub`
    """

    def __init__(
        self, make: Callable[[Any], object], options: Any, *, own_thread: bool | None, has_data_path: bool = False
    ) -> None:
        super().__init__(has_data_path)
        self._make = make
        self._options = options
        self._own_thread = own_thread
        #: From the first start until it is closed.
        self._hub: HubHandle | None = None
        self._cleanup = ExitStack()

    @property
    def is_running(self) -> bool:
        return self.daemon is not None and bool(self.daemon.is_running)

    def run(self, function: Callable[..., object], *arguments: object) -> object:
        """Call a function in the daemon's hub. May switch, or block.

        :raises RuntimeError: before the first start, and after ``close``
        """
        if self._hub is None:
            raise RuntimeError("not started, or closed")
        return self._hub.run(function, *arguments)

    def start(self) -> None:
        if self._has_data_path:
            self._options = replace(self._options, data_path=str(self._make_directory()))
        self._options = replace(self._options, **self._reserve(vars(self._options)))
        if self._hub is None:
            self._hub = self._cleanup.enter_context(kit_hub(self._own_thread))
        self.run(self._start)
        for name in _ADDRESSES:
            setattr(self, name, getattr(self.daemon, name))

    def _start(self) -> None:
        self.daemon = self._make(self._options)
        self.daemon.start()

    def stop(self) -> None:
        if self.is_running:
            self.run(self.daemon.stop)

    def kill(self) -> None:
        if self.is_running:
            self.run(self._kill)

    def _kill(self) -> None:
        """In its hub: stop it, but restore the data on disk, because a stop writes messages from memory there."""
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
            self.stop()  # a kill would first copy everything on disk
        finally:
            try:
                super().close()
            finally:
                self._hub = None
                self._cleanup.close()


class Process(Daemon):
    """A daemon as a process, with its data in a directory of its own.

    :param name: "nsqd" or "nsqlookupd"
    :param program: the path of NSQ's own; empty for ours
    """

    #: Seconds until it must listen, and until it must have ended.
    start_timeout = START_TIMEOUT
    stop_timeout = STOP_TIMEOUT

    def __init__(self, name: str, options: Mapping[str, object], has_data_path: bool, program: str = "") -> None:
        super().__init__(has_data_path)
        self.name = name
        self._program = program
        self._options = dict(options)
        #: Of the last start.
        self.process: DaemonProcess | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_running

    @property
    def log(self) -> str:
        """Its log since the last start."""
        return "" if self.process is None else self.process.log

    def start(self) -> None:
        if self._has_data_path:
            self._options["data_path"] = str(self._make_directory())
        self._options |= self._reserve(self._options)
        listens = ["TCP", *(["HTTP"] if self._options["http_address"] else [])]
        listens += ["HTTPS"] if self._options.get("tls_cert") else []
        arguments = [*([] if self._program else [self.name]), *flags(self._options)]
        program = [self._program] if self._program else []
        self.process = DaemonProcess(self.name, arguments, program=program, listens=listens)
        self.process.start()
        try:
            self.process.wait_until_listening(self.start_timeout)
        except BaseException as exc:
            exc.add_note(self.log)
            self.kill()
            raise
        for name in _ADDRESSES:
            setattr(self, name, getattr(self.process, name))

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self.process is not None:
            self.process.signal(number)
            if not self.process.end(self.stop_timeout):
                raise AssertionError(f"{self.name} did not end within {self.stop_timeout:g} s: {self.log}")


def flags(options: Mapping[str, object]) -> list[str]:
    """NSQ's flags for options: durations as Go writes them, lists as repeated flags."""
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
    daemon: Callable[..., object],
    options_class: type[Any],
    options: Mapping[str, object],
    *,
    real_command: str = "",
) -> Daemon:
    """A daemon that is not started yet.

    :param kind: None for "thread", or "hub" where sockets are monkey-patched
    :param daemon: Nsqd or Nsqlookupd, or a function that makes one of its options
    :param options: of ``options_class``; for processes they become flags
    :param real_command: the path of NSQ's own; empty to find it on PATH
    :raises InvalidOption: for an unknown option, and a wrong value
    """
    name = options_class.__name__.removesuffix("Options").lower()
    known = {option.name: option for option in fields(options_class)}
    for given, value in options.items():
        if given not in known:
            raise InvalidOption(given, value, f"{name} has no such option{did_you_mean(given, known)}")
    options = FREE_PORTS | {given: _converted(given, value, known[given].default) for given, value in options.items()}
    if options.get("tls_cert"):
        options.setdefault("https_address", "127.0.0.1:0")
    checked = options_class(**options)
    has_data_path = "data_path" in known and "data_path" not in options
    if kind in (None, "thread", "hub"):
        own_thread = None if kind is None else kind == "thread"
        return InProcess(daemon, checked, own_thread=own_thread, has_data_path=has_data_path)
    if options.get("log_level", "info") not in ("info", "debug"):
        raise InvalidOption("log_level", options["log_level"], "a process logs its ports at level info")
    if kind == "process":
        if problem := why_no_process():
            raise InvalidOption("kind", kind, problem)
        return Process(name, options, has_data_path)
    if kind == "real":
        options = {"broadcast_address": "127.0.0.1", **options}
        path = real_command or shutil.which(name)
        if not path:
            raise InvalidOption("kind", kind, f"there is no {name} on PATH")
        return Process(name, options, has_data_path, path)
    raise InvalidOption("kind", kind, "it must be thread, hub, process or real")


def why_no_process() -> str:
    """Why our daemons cannot run as processes here, which the command ``gnsq-like`` does; empty if they can."""
    for needed in ("click", "rich"):
        if find_spec(needed) is None:
            return f"{needed} is not installed; processes need the command line: install the extra [cli]"
    return ""


def _converted(name: str, value: Any, default: object) -> object:
    """A value of the option's type: tuples for lists, and floats for durations, by which ``flags`` knows them.

    :raises InvalidOption: for a text such as "1s" where a number is wanted
    """
    if isinstance(default, tuple):
        return (value,) if isinstance(value, str) else tuple(value)
    if not isinstance(default, int | float) or isinstance(default, bool):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        wanted = "seconds, as a number" if isinstance(default, float) else "a whole number"
        raise InvalidOption(name, value, f"it must be {wanted}")
    return float(value) if isinstance(default, float) else value
