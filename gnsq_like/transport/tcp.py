"""TCP and unix sockets from gevent's own socket module, which works patched or not."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent
from gevent import socket

from gnsq_like.runtime.timer import LEAST_TIMEOUT

#: Bytes per read. Larger reads cost more (a fresh allocation each) than they save.
READ_BYTES = 64 * 1024
#: libev's and libuv's event mask for "readable".
_READABLE = 1


class TcpTransport:
    """A connected stream socket; made by :func:`~gnsq_like.transport.dial.dial`."""

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
