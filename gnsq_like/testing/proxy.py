"""A TCP proxy that does to a connection what networks do.

It stands between a client and a daemon and hands on what both say, late, or not at all, or for so many
bytes only. Every fault is an attribute or a method, and may be changed while connections are open::

    with FaultProxy(nsqd.tcp_address) as proxy:
        reader = Reader("t", "c", handler, nsqd_tcp_addresses=proxy.address)
        proxy.delay = 0.05       # each way
        proxy.freeze()           # half-open: both ends keep their sockets, and nothing arrives
        proxy.reset()            # every connection ends with RST
"""

from __future__ import annotations

import struct
import time
from types import TracebackType
from typing import Any

import gevent
from gevent import socket
from gevent.event import Event
from gevent.queue import Queue
from gevent.server import StreamServer

from gnsq_like.addresses import join_host_port, parse_address

_READ_BYTES = 65536
#: Makes close() send RST and drop what is unsent.
_RESET = struct.pack("ii", 1, 0)


class _Link:
    """One connection through the proxy: two sockets and a pump for each direction."""

    def __init__(self, proxy: FaultProxy, client: Any, server: Any) -> None:
        self._proxy = proxy
        self._sockets = (client, server)
        self._pumps = [
            gevent.spawn(self._pump, client, server, True),
            gevent.spawn(self._pump, server, client, False),
        ]

    def join(self) -> None:
        gevent.joinall(self._pumps)

    def close(self, reset: bool) -> None:
        gevent.killall(self._pumps, block=False)
        for sock in self._sockets:
            if reset:
                try:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                except OSError:
                    continue  # closed already
            sock.close()

    def _pump(self, source: Any, sink: Any, to_server: bool) -> None:
        """Take in as things come, hand on when they are due."""
        late: Queue[tuple[float, bytes]] = Queue()
        writer = gevent.spawn(self._hand_on, late, sink, to_server)
        try:
            while True:
                data = source.recv(_READ_BYTES)
                late.put((time.monotonic() + self._proxy.delay, data))
                if not data:
                    break
            writer.join()
        except OSError:
            self.close(reset=False)
        finally:
            writer.kill(block=False)

    def _hand_on(self, late: Queue[tuple[float, bytes]], sink: Any, to_server: bool) -> None:
        proxy = self._proxy
        try:
            while True:
                due, data = late.get()
                gevent.sleep(max(0.0, due - time.monotonic()))
                proxy.flowing.wait()
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                if to_server:
                    proxy.to_server_count += len(data)
                else:
                    proxy.to_client_count += len(data)
                sink.sendall(data)
        except OSError:
            self.close(reset=False)


class FaultProxy:
    """Listens on a free loopback port and connects each client to ``target``.

    :param target: the daemon's TCP address, "host:port"
    :param delay: seconds by which each direction is late
    """

    def __init__(self, target: str, delay: float = 0.0) -> None:
        self._target = parse_address(target)
        #: Seconds by which each direction is late; for what is received from now on.
        self.delay = delay
        #: Whether new connections are accepted; if not, they are closed at once.
        self.accepting = True
        #: Cleared while frozen.
        self.flowing = Event()
        self.flowing.set()
        #: Bytes handed on so far.
        self.to_server_count = 0
        self.to_client_count = 0
        self._links: set[_Link] = set()
        self._server = StreamServer(("127.0.0.1", 0), self._handle)

    @property
    def address(self) -> str:
        """Where clients connect, "host:port"."""
        return join_host_port(self._server.server_host, self._server.server_port)

    def start(self) -> None:
        """Listen. May switch."""
        self._server.start()

    def freeze(self) -> None:
        """Hand nothing on: the connections stay open, as when a cable is pulled."""
        self.flowing.clear()

    def thaw(self) -> None:
        """End a :meth:`freeze`; what came meanwhile is handed on."""
        self.flowing.set()

    def cut(self) -> None:
        """Close all connections."""
        self._end(reset=False)

    def reset(self) -> None:
        """End all connections with RST."""
        self._end(reset=True)

    def close(self) -> None:
        """Cut, and listen no more; twice is fine. May switch."""
        self.cut()
        self._server.stop(timeout=1)

    def _end(self, reset: bool) -> None:
        for link in list(self._links):
            link.close(reset)

    def _handle(self, client: Any, _address: object) -> None:
        if not self.accepting:
            return
        try:
            server = socket.create_connection((self._target.host, self._target.port), timeout=5)
        except OSError:
            return
        server.settimeout(None)
        link = _Link(self, client, server)
        self._links.add(link)
        try:
            link.join()
        finally:
            self._links.discard(link)
            link.close(reset=False)

    def __enter__(self) -> FaultProxy:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
