"""Limits of an HTTP server: the number of connections, and the time to wait for a client.

A client that sends half a request, or does not read its response, holds a descriptor and a greenlet. So every wait for
a client is limited: ``seconds``, and more for each byte received. A connection between two requests is idle and may
stay; it is closed only to make room.

When there are too many connections, the one that has been idle longest is closed; if none is idle, the one that has
kept the server waiting longest; if all are being served, the new one is refused. Closing shuts the socket down, so the
greenlet that waits for it finds its end, as if the client had disconnected.

No gevent: threads use it as well (``gnsq_like/workers/pages.py``).
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

#: Connections of one server, unless the limit of descriptors allows less.
MOST_CONNECTIONS = 4096
#: Seconds for a head, a body, a handshake, or for reading a response; and the bytes for which there is one more. A
#: telephone line is faster.
SECONDS = 20.0
BYTES_PER_SECOND = 1024


class TooManyConnections(Exception):
    """All connections are being served: there is no room for another one."""


class HTTPConnection:
    """An open connection; made by :meth:`HTTPConnections.opened`."""

    def __init__(self, connections: HTTPConnections, sock: socket.socket) -> None:
        self._connections = connections
        #: The socket; replaced after a TLS handshake.
        self.sock = sock
        #: The deadline of the client (monotonic); only while the server waits for it.
        self.deadline = 0.0

    @property
    def seconds(self) -> float:
        """Seconds that a client has for a head or a body."""
        return self._connections.seconds

    @property
    def seconds_left(self) -> float:
        """Seconds that the client has left of the present wait."""
        return self.deadline - self._connections.clock()

    def idle(self) -> None:
        """Note that the connection is idle: the next request has not begun."""
        self._connections.idle[self] = None

    @contextmanager
    def owed(self, seconds: float) -> Iterator[None]:
        """Context manager around a wait for the client: the connection is shut down after this many seconds."""
        connections = self._connections
        connections.idle.pop(self, None)
        self.deadline = connections.clock() + seconds
        connections.owing[self] = None
        connections.watch()
        try:
            yield
        finally:
            connections.owing.pop(self, None)

    def shut(self) -> None:
        """Shut the socket down, which ends every wait for the client. Never switches."""
        self._connections.idle.pop(self, None)
        self._connections.owing.pop(self, None)
        with suppress(OSError, ValueError):
            # Not the object's own method: TLS would break off in the middle of a read, and gevent would raise there.
            bare = socket.socket(fileno=self.sock.fileno())
            try:
                bare.shutdown(socket.SHUT_RDWR)
            finally:
                bare.detach()


class HTTPConnections:
    """The connections of one server.

    :param most: how many; half of the process's descriptors at most
    :param seconds: that a client has for a head, a body, a handshake, or to read a response
    :param watch: called when a wait for a client begins: must ensure that :meth:`shut_overdue` is called
    :param clock: monotonic
    """

    def __init__(
        self,
        most: int = MOST_CONNECTIONS,
        seconds: float = SECONDS,
        watch: Callable[[], object] = lambda: None,
        # Not runtime.native's: the supervisor's master, which has pages too, loads no gevent.
        clock: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        self._most = min(most, _descriptors() // 2)
        self.seconds = seconds
        self.watch = watch
        self.clock = clock
        #: All open connections. Several threads may use these, so every iteration copies them first.
        self._open: dict[HTTPConnection, None] = {}
        #: Idle connections, and those that the server waits for; in each, the longest first.
        self.idle: dict[HTTPConnection, None] = {}
        self.owing: dict[HTTPConnection, None] = {}

    @contextmanager
    def opened(self, sock: socket.socket) -> Iterator[HTTPConnection]:
        """Context manager for the life of a connection.

        :raises TooManyConnections: if there is no room for it
        """
        if len(self._open) >= self._most and not self.make_room():
            raise TooManyConnections
        connection = HTTPConnection(self, sock)
        self._open[connection] = None
        connection.idle()
        try:
            yield connection
        finally:
            del self._open[connection]
            self.idle.pop(connection, None)
            self.owing.pop(connection, None)

    def make_room(self) -> bool:
        """Shut down the connection that is idle or has kept the server waiting longest. Never switches.

        :return: whether there was one
        """
        for kept in (self.idle, self.owing):
            for connection in [*kept][:1]:
                connection.shut()
                return True
        return False

    def shut_overdue(self) -> None:
        """Shut down all connections whose time is over. Never switches."""
        now = self.clock()
        for connection in [each for each in [*self.owing] if each.deadline <= now]:
            connection.shut()


def _descriptors() -> int:
    """The number of descriptors that this process may have."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return 2 * MOST_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
