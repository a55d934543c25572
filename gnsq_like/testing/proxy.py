"""A TCP proxy with the faults of networks.

It stands between a client and a daemon and forwards their bytes: late, slowly, damaged, up to some byte, or not at
all. Every fault may be set while connections are open, for both directions or for one::

    with FaultProxy(nsqd.tcp_address) as proxy:
        reader = Reader("clicks", "archive", handler, nsqd_tcp_addresses=proxy.address)
        proxy.delay = 0.05                   # each way
        proxy.to_client.bytes_per_second = 10_000
        proxy.to_client.freeze()             # nothing more from nsqd; the other direction goes on
        proxy.to_server.reset_at(100)        # RST as soon as exactly 100 bytes have been forwarded to nsqd
        proxy.lose_server()                  # nsqd's machine is gone, without FIN or RST

An ``observer`` sees every byte that passes, and can count frames.

It runs in a thread of its own, or in the caller's hub where sockets are monkey-patched, and may be called from
any thread. Faults are placed by bytes, so they are exact; only delay and rate depend on time.

How it works: each direction of a connection has a greenlet that receives, and one that forwards when it is time.
Before every write it looks for strikes, the faults at a byte: a strike at the current byte is carried out, and the
write ends where the next one is.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from fcntl import ioctl
from types import TracebackType

import gevent
from gevent import socket
from gevent.event import Event
from gevent.queue import Queue
from gevent.server import StreamServer

from gnsq_like.addresses import join_host_port, parse_address
from gnsq_like.runtime.hub_calls import HubHandle
from gnsq_like.testing.direction import Direction, Strike
from gnsq_like.testing.hub import kit_hub

_READ_BYTES = 65536
#: Makes close() send RST and drop unsent bytes.
_RESET = struct.pack("ii", 1, 0)
#: On Linux, asks how many bytes of a socket the peer has not acknowledged.
_SIOCOUTQ = 0x5411
#: Seconds for a peer to receive what was sent before a reset, and to close after an end.
_LINGER = 2.0
#: Seconds between two writes of a direction with a rate.
_RATE_STEP = 0.01

#: Called with the number of a connection, a place and the bytes that pass there: "from client", "to server",
#: "from server", "to client". At the end of either side, without bytes: "client closed", "server closed".
Observer = Callable[[int, str, bytes], object]


class _Pipe:
    """One direction of one connection: a greenlet that receives and one that forwards."""

    def __init__(
        self, direction: Direction, source: socket.socket, sink: socket.socket, link: _Link, *, is_to_server: bool
    ) -> None:
        self._direction = direction
        self._is_to_server = is_to_server
        self._source = source
        self._sink = sink
        self._link = link
        #: Bytes forwarded.
        self._offset = 0
        #: Strikes that have hit this connection.
        self._done: set[Strike] = set()
        #: Replaces the next bytes.
        self._overlay: tuple[int | None, ...] = ()
        #: When data is due, and the data; empty bytes for the end.
        self._late: Queue[tuple[float, bytes]] = Queue()
        self.greenlets = [gevent.spawn(self._receive), gevent.spawn(self._forward)]

    def _receive(self) -> None:
        try:
            while True:
                data = self._source.recv(_READ_BYTES)
                self._received(data)
                self._late.put((time.monotonic() + self._direction.delay, data))
                if not data:
                    return
        except OSError:
            self._link.end(reset=True)  # as the other end left

    def _received(self, data: bytes) -> None:
        side = "client" if self._is_to_server else "server"
        if data:
            self._link.observe(f"from {side}", data)
        else:
            self._link.note_closed(side)

    def _forward(self) -> None:
        direction = self._direction
        try:
            while not self._strike(b""):
                due, data = self._late.get()
                gevent.sleep(max(0.0, due - time.monotonic()))
                direction.wait_until_thawed()
                if not data:
                    self._sink.shutdown(socket.SHUT_WR)
                    self._link.note_end()
                    return
                while data:
                    if self._strike(data):
                        return
                    data = data[self._write(data) :]
        except OSError:
            self._link.end(reset=True)

    def _strike(self, data: bytes) -> bool:
        """Carry out the strikes at this byte, before ``data``; returns whether one ended the connection. May switch."""
        for strike in self._direction.strikes_of(self._done):
            if strike.offset != self._offset or (strike.what == "corrupt" and not data):
                continue
            self._done.add(strike)
            self._direction.use_up(strike)
            if strike.what == "corrupt":
                self._overlay = strike.overlay
                continue
            if strike.what == "reset":
                _wait_until_taken(self._sink)
            self._link.end(reset=strike.what == "reset")
            return True
        return False

    def _write(self, data: bytes) -> int:
        """Forward the beginning of ``data``, up to the next strike; returns how many bytes. May switch."""
        direction = self._direction
        rate = direction.bytes_per_second
        count = max(1, min(len(data), int(rate * _RATE_STEP))) if rate else len(data)
        for strike in direction.strikes_of(self._done):
            if self._offset < strike.offset < self._offset + count:
                count = strike.offset - self._offset
        overlay, self._overlay = self._overlay[:count], self._overlay[count:]
        changed = bytes([byte ^ 0xFF if new is None else new for byte, new in zip(data, overlay, strict=False)])
        self._offset += count
        direction.count += count
        forwarded = changed + data[len(changed) : count]
        self._link.observe("to server" if self._is_to_server else "to client", forwarded)
        self._sink.sendall(forwarded)
        if rate:
            gevent.sleep(count / rate)
            direction.wait_until_thawed()
        return count


class _Link:
    """One connection through the proxy: two sockets, and a pipe for each direction."""

    def __init__(self, proxy: FaultProxy, client: socket.socket, server: socket.socket, number: int) -> None:
        self._number = number
        self._observer = proxy.observer
        #: The sides whose end the observer knows: "client", "server".
        self._closed: set[str] = set()
        self._client = client
        self._server = server
        #: Directions that have ended.
        self._ends = 0
        #: Set when nothing more is forwarded.
        self._over = Event()
        #: Whether to close the sockets at once then.
        self._at_once = False
        to_server = _Pipe(proxy.to_server, client, server, self, is_to_server=True)
        to_client = _Pipe(proxy.to_client, server, client, self, is_to_server=False)
        self._greenlets = to_server.greenlets + to_client.greenlets

    def observe(self, where: str, data: bytes) -> None:
        """Show the observer bytes that pass. Never switches."""
        if self._observer is not None:
            self._observer(self._number, where, data)

    def note_closed(self, *sides: str) -> None:
        """Show the observer that "client" or "server" has left, or was cut off; twice is fine. Never switches."""
        for side in sides:
            if side not in self._closed:
                self._closed.add(side)
                self.observe(f"{side} closed", b"")

    def run(self) -> None:
        """Wait for the end, and close the sockets. Switches."""
        try:
            self._over.wait()
            if not self._at_once:
                self._linger()
        finally:
            self._kill()
            self.note_closed("client", "server")
            self._client.close()
            self._server.close()

    def note_end(self) -> None:
        """Note that one direction has ended, by FIN."""
        self._ends += 1
        if self._ends == 2:
            self._over.set()

    def end(self, *, reset: bool, at_once: bool = False) -> None:
        """End the connection at both ends. Never switches."""
        self._kill()
        self.note_closed("client", "server")
        self._at_once = reset or at_once
        for sock in (self._client, self._server):
            try:
                if reset:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    sock.close()
                else:
                    sock.shutdown(socket.SHUT_WR)
            except OSError:
                continue  # already closed
        self._over.set()

    def lose(self, *, server: bool) -> None:
        """Drop one end: the other keeps its socket, on which nothing arrives any more. Never switches."""
        if self._over.is_set():
            return  # it has ended, and is only read out
        self._kill()
        self.note_closed("server" if server else "client")
        (self._server if server else self._client).close()
        self._greenlets = [gevent.spawn(self._outlast, self._client if server else self._server)]

    def _outlast(self, sock: socket.socket) -> None:
        """After a loss: wait until the remaining end closes."""
        try:
            while data := sock.recv(_READ_BYTES):
                if sock is self._client:
                    self.observe("from client", data)
        except OSError:
            pass
        self._at_once = True
        self._over.set()

    def _linger(self) -> None:
        """Read what still arrives: closing on unread data would send RST."""
        with gevent.Timeout(_LINGER, False):
            for sock in (self._client, self._server):
                try:
                    while sock.recv(_READ_BYTES):
                        pass
                except OSError:
                    continue

    def _kill(self) -> None:
        current = gevent.getcurrent()
        gevent.killall([greenlet for greenlet in self._greenlets if greenlet is not current], block=False)


def _wait_until_taken(sock: socket.socket) -> None:
    """Wait until the peer's machine has all bytes sent, because RST drops the rest. May switch."""
    deadline = time.monotonic() + _LINGER
    while time.monotonic() < deadline:
        try:
            [unsent] = struct.unpack("i", ioctl(sock.fileno(), _SIOCOUTQ, b"\0\0\0\0"))
        except (OSError, ValueError):  # closed meanwhile
            return
        if not unsent:
            return
        gevent.sleep(0.001)


class FaultProxy:
    """Listens on a free loopback port and connects each client to ``target``.

    :param target: the daemon's TCP address, "host:port"; may be set later, before the first client connects
    :param delay: seconds by which each direction is delayed
    :param own_thread: whether it runs in a thread of its own; None: yes, unless sockets are monkey-patched, where it
        runs in the caller's hub
    :param observer: sees all bytes, as (number, where, data): the connection's number, from 0; "from client",
        "to server", "from server" or "to client"; the bytes. Once for each connection, where is "client closed", and
        once "server closed": that end has left, or was cut off. It is called in the proxy's thread and must not switch
    """

    def __init__(
        self,
        target: str = "",
        delay: float = 0.0,
        *,
        own_thread: bool | None = None,
        observer: Observer | None = None,
    ) -> None:
        #: Where new connections go.
        self.target = target
        #: For connections made from now on.
        self.observer = observer
        self._numbers = itertools.count()
        #: Whether new connections are accepted; if not, they are closed at once.
        self.accepting: bool = True
        self._own_thread = own_thread
        #: Where it runs, from start to close.
        self._hub: HubHandle | None = None
        self._cleanup = ExitStack()
        #: From clients to the daemon, and from the daemon to clients.
        self.to_server: Direction = Direction(self._run)
        self.to_client: Direction = Direction(self._run)
        self.delay = delay
        #: "host:port", where clients connect; empty until it listens.
        self.address: str = ""
        self._links: set[_Link] = set()
        self._server: StreamServer | None = None

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return parse_address(self.address).port

    @property
    def delay(self) -> float:
        """Seconds by which each direction is delayed; the larger number if they differ."""
        return max(self.to_server.delay, self.to_client.delay)

    @delay.setter
    def delay(self, seconds: float) -> None:
        self.to_server.delay = self.to_client.delay = seconds

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._links)

    def start(self) -> None:
        """Listen. May switch."""
        self._hub = self._cleanup.enter_context(kit_hub(self._own_thread))
        self._run(self._listen)

    def _run(self, function: Callable[..., object], *arguments: object) -> object:
        if self._hub is None:
            raise RuntimeError("not started, or closed")
        return self._hub.run(function, *arguments)

    def _listen(self) -> None:
        self._server = StreamServer(("127.0.0.1", 0), self._handle)
        self._server.start()
        self.address = join_host_port(self._server.server_host, self._server.server_port)

    # -- faults --------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Forward nothing in either direction: the connections stay open, as when a cable is pulled."""
        self.to_server.freeze()
        self.to_client.freeze()

    def thaw(self) -> None:
        """End a :meth:`freeze`, and forward the bytes received meanwhile. May switch."""
        self.to_server.thaw()
        self.to_client.thaw()

    def cut(self) -> None:
        """Close all connections. May switch."""
        self._each(lambda link: link.end(reset=False))

    def reset(self) -> None:
        """End all connections with RST. May switch."""
        self._each(lambda link: link.end(reset=True))

    def lose_server(self) -> None:
        """Lose the server without FIN or RST: clients keep connections on which nothing ever arrives.

        The daemon sees their end, as if the clients had left. New connections are not affected. May switch.
        """
        self._each(lambda link: link.lose(server=True))

    def lose_client(self) -> None:
        """Lose the clients without FIN or RST: the daemon keeps connections on which nothing ever arrives.

        The clients see their end. New connections are not affected. May switch.
        """
        self._each(lambda link: link.lose(server=False))

    def clear(self) -> None:
        """Remove all faults, for bytes and connections from now on. May switch."""
        self.accepting = True
        self.to_server.clear()
        self.to_client.clear()

    def close(self) -> None:
        """Cut all connections, and stop listening; twice is fine. May switch."""
        server, self._server = self._server, None
        if server is not None:
            self._each(lambda link: link.end(reset=False, at_once=True))
            self._run(server.stop, 1)
        self._hub = None
        self._cleanup.close()

    def _each(self, act: Callable[[_Link], None]) -> None:
        def work() -> None:
            for link in list(self._links):
                act(link)

        self._run(work)

    def _handle(self, client: socket.socket, _address: object) -> None:
        if not self.accepting:
            return
        target = parse_address(self.target)
        try:
            server = socket.create_connection((target.host, target.port), timeout=5)
        except OSError:
            return
        server.settimeout(None)
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(self, client, server, next(self._numbers))
        self._links.add(link)
        try:
            link.run()
        finally:
            self._links.discard(link)

    def __enter__(self) -> FaultProxy:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
