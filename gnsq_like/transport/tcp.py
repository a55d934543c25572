"""TCP and unix sockets from gevent's own socket module, which works patched or not."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - getaddrinfo imports it; in a child forked meanwhile, the import would never end
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent
from gevent import monkey, socket

from gnsq_like.addresses import Address
from gnsq_like.errors import ConnectionFailed
from gnsq_like.runtime.timer import LEAST_TIMEOUT

#: Bytes per read. Larger reads cost more (a fresh allocation each) than they save.
READ_BYTES = 64 * 1024
#: libev's and libuv's event mask for "readable".
_READABLE = 1

#: Errors of a dial. UnicodeError: a name that DNS cannot encode, such as "foo..bar" or one with a label over 63
#: characters. RuntimeError: the resolver's thread cannot be started, as at the interpreter's exit.
_FAILURES = (OSError, UnicodeError, RuntimeError)

_getaddrinfo = monkey.get_original("socket", "getaddrinfo")


class TcpTransport:
    """A connected stream socket; made by :func:`dial`."""

    #: Bytes that ``send_now`` accepted and the kernel did not; always 0 here.
    unsent = 0

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        #: The socket without gevent, whose calls never wait.
        self.bare: Any = sock._sock
        self._process = os.getpid()
        #: Watches for input; made by the first :meth:`watch`.
        self._watcher: Any = None

    def fileno(self) -> int:
        """The socket's descriptor, for a watcher of the hub's loop."""
        return int(self._sock.fileno())

    def watch(self, on_input: Callable[[], object]) -> None:
        """Have the hub call ``on_input`` in each iteration in which ``receive_now`` would not return None.

        Next: :meth:`unwatch`, unless it is closed. Never switches.
        """
        if self._watcher is None:
            self._watcher = gevent.get_hub().loop.io(self.fileno(), _READABLE)
        self._watcher.start(on_input)

    @property
    def is_watched(self) -> bool:
        """Whether it is; gevent watches no longer when something has raised in ``on_input``."""
        return self._watcher is not None and bool(self._watcher.active)

    def unwatch(self) -> None:
        """Watch for input no more; twice is fine. Never switches."""
        if self._watcher is not None:
            self._watcher.stop()

    def receive(self, timeout: float) -> bytes:
        """Wait for bytes, before :meth:`watch`; empty at the end of the stream. May switch.

        :raises OSError: if the socket fails; TimeoutError after ``timeout`` seconds without a byte
        """
        self._sock.settimeout(max(timeout, LEAST_TIMEOUT))
        try:
            return self._sock.recv(READ_BYTES)
        finally:
            self._sock.settimeout(None)

    def receive_now(self) -> bytes | None:
        """Read without waiting; empty at the end of the stream, None if nothing has arrived. Never switches.

        :raises OSError: if the socket fails
        """
        try:
            data: bytes = self.bare.recv(READ_BYTES)
        except BlockingIOError:
            return None
        return data

    def send_now(self, data: bytes | memoryview) -> int:
        """Write what the kernel accepts at once; returns the number of bytes. Never switches.

        :raises OSError: if the socket fails
        """
        try:
            sent: int = self.bare.send(data)
        except BlockingIOError:
            return 0
        return sent

    def has_input(self) -> bool:
        """Whether a read would return at once: bytes, the end of the stream or an error. Never switches."""
        try:
            self.bare.recv(1, socket.MSG_PEEK)
        except OSError as exc:
            return not isinstance(exc, BlockingIOError)
        return True

    def abandon(self, loop_lives: bool = True) -> None:
        """In a forked child, or after the end of its thread: close the descriptor, not the connection of the parent.

        Never switches.

        :param loop_lives: see ``owner``; if not, the socket must not be used or collected any more
        """
        if loop_lives:
            self._drop_watcher()
        descriptor = self._sock.detach() if loop_lives else self._sock.fileno()
        if descriptor >= 0:
            os.close(descriptor)

    def close(self) -> None:
        """End the connection and close the socket; twice is fine. In a forked child, only its copy is closed."""
        self._drop_watcher()
        if os.getpid() == self._process:
            # Closing alone would not end it before a child that was forked a moment ago has closed its copy.
            with suppress(OSError):  # it has ended, or was closed before
                self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _drop_watcher(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
            watcher.close()


def dial(address: Address, timeout: float) -> TcpTransport:
    """Connect to ``address`` within ``timeout`` seconds, trying all addresses its name resolves to. May switch.

    :raises ConnectionFailed: if none accepts the connection
    """
    deadline = time.monotonic() + timeout
    if address.path:
        return _connect(socket.AF_UNIX, address.path, address, deadline)
    failure: ConnectionFailed | None = None
    for family, _, _, _, target in _resolve(address, timeout):
        try:
            return _connect(family, target, address, deadline)
        except ConnectionFailed as exc:
            failure = exc
    raise failure or ConnectionFailed(str(address), "its name resolves to no address")


def _resolve(address: Address, timeout: float) -> Any:
    try:
        # A numeric address needs no resolver, which gevent runs in threads.
        return _getaddrinfo(address.host, address.port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    except OSError:
        pass
    except UnicodeError as exc:
        raise ConnectionFailed(str(address), f"its name cannot be resolved: {_reason(exc)}") from exc
    try:
        with gevent.Timeout(timeout) as mine:
            return socket.getaddrinfo(address.host, address.port, 0, socket.SOCK_STREAM)
    except gevent.Timeout as exc:
        if exc is not mine:  # the caller's
            raise
        raise ConnectionFailed(str(address), f"its name was not resolved within {timeout:g} s") from exc
    except _FAILURES as exc:
        raise ConnectionFailed(str(address), f"its name cannot be resolved: {_reason(exc)}") from exc


def _connect(family: int, target: Any, address: Address, deadline: float) -> TcpTransport:
    left = deadline - time.monotonic()
    if left <= 0:
        raise ConnectionFailed(str(address), "the time to connect is over")
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as exc:  # no file descriptors are left, or the family is switched off
        raise ConnectionFailed(str(address), _reason(exc)) from exc
    try:
        sock.settimeout(max(left, LEAST_TIMEOUT))
        sock.connect(target)
        sock.settimeout(None)
        if family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except _FAILURES as exc:
        sock.close()
        raise ConnectionFailed(str(address), _reason(exc)) from exc
    except BaseException:
        sock.close()
        raise
    return TcpTransport(sock)


def _reason(exc: Exception) -> str:
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    return getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
