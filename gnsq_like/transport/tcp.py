"""TCP and unix sockets from gevent's own socket module, which works patched or not."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import gevent
from gevent import socket

#: Bytes per read. Larger reads cost more (a fresh allocation each) than they save.
READ_BYTES = 64 * 1024
#: libev's and libuv's event mask for "readable".
_READABLE = 1


class TcpTransport:
    """A connected stream socket; made by :func:`~gnsq_like.transport.dial.dial`."""

    #: Bytes that ``send_now`` accepted and the kernel did not: while there are any, it is called again. Always 0 here.
    unsent = 0

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        #: The socket without gevent, whose calls never wait.
        self.bare: Any = sock._sock
        self._process = os.getpid()
        self._hub: Any = gevent.get_hub()
        #: Watches for input; made by the first :meth:`wait`.
        self._watcher: Any = None

    def fileno(self) -> int:
        """The socket's descriptor, for a watcher of the hub's loop."""
        return int(self._sock.fileno())

    def hand_over(self) -> Any:
        """The socket, for another transport; this one is not used any more. Never switches."""
        self._drop_watcher()
        return self._sock

    def wait(self) -> None:
        """Wait for input, or for the end of the stream; one greenlet at a time. May switch. Next: :meth:`receive_now`.

        As gevent's ``hub.wait``, with one watcher and without a Waiter. The hub runs no Python code for it, so a signal
        handler that raises there cannot keep it from waking the greenlet.
        """
        if self._watcher is None:
            self._watcher = self._hub.loop.io(self.fileno(), _READABLE)
        watcher = self._watcher
        watcher.start(gevent.getcurrent().switch)
        try:
            self._hub.switch()
        finally:
            watcher.stop()

    def shut(self) -> None:
        """End the stream in both directions, which wakes :meth:`wait`; :meth:`close` follows. Never switches."""
        if os.getpid() == self._process:
            # Closing alone would not end it before a child that was forked a moment ago has closed its copy.
            with suppress(OSError):  # it has ended, or was closed before
                self._sock.shutdown(socket.SHUT_RDWR)

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
        """Write as much as the kernel accepts at once; returns the number of bytes. Never switches.

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
        self.shut()
        self._sock.close()

    def _drop_watcher(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
            watcher.close()
