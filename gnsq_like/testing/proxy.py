"""A TCP proxy that does to a connection what networks do.

It stands between a client and a daemon and hands on what both say: late, slowly, damaged, up to a byte, or not
at all. Every fault may be set while connections are open, for both directions or for one::

    with FaultProxy(nsqd.tcp_address) as proxy:
        reader = Reader("clicks", "archive", handler, nsqd_tcp_addresses=proxy.address)
        proxy.delay = 0.05                   # each way
        proxy.to_client.bytes_per_second = 10_000
        proxy.to_client.freeze()             # nothing more from nsqd; the way there goes on
        proxy.to_server.reset_at(100)        # RST as soon as exactly 100 bytes have gone there
        proxy.lose_server()                  # nsqd's machine is gone, without a word

It runs in a thread of its own, or in the caller's hub where sockets are monkey-patched, and may be called from
any thread. What the faults do depends on bytes, not on luck; only delay and rate know time.

How it works: each direction of a connection has a greenlet that receives, and one that hands on when the time has
come. Before every write it looks for strikes, the faults at a byte: one that is just there is done, and the write
ends where the next one is.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from fcntl import ioctl
from types import TracebackType
from typing import Any

import gevent
from gevent import socket
from gevent.event import Event
from gevent.queue import Queue
from gevent.server import StreamServer

from gnsq_like.addresses import join_host_port, parse_address
from gnsq_like.testing.place import Place

_READ_BYTES = 65536
#: Makes close() send RST and drop what is unsent.
_RESET = struct.pack("ii", 1, 0)
#: Asks how many bytes of a socket the peer has not got yet, where there is such a question (Linux).
_SIOCOUTQ = 0x5411
#: Seconds for which a peer has time to take what was sent before a reset, and to close after an end.
_LINGER = 2.0
#: Seconds between two writes of a direction with a rate.
_RATE_STEP = 0.01


@dataclass(frozen=True, eq=False)
class _Strike:
    """A fault at a byte of a connection's stream."""

    #: Bytes that go before it.
    offset: int
    #: "cut", "reset" or "corrupt".
    what: str
    #: What a corrupt one puts in place of as many bytes, None for all bits turned.
    overlay: tuple[int | None, ...] = ()
    #: Whether it hits every connection; else the first one that comes so far.
    every: bool = False


class Direction:
    """One way through a proxy, for all its connections."""

    def __init__(self, place: Place) -> None:
        self._place = place
        #: Seconds by which it is late; for what is received from now on.
        self.delay = 0.0
        #: Bytes that each connection hands on in a second; 0 for any number.
        self.bytes_per_second = 0.0
        #: Bytes handed on so far, by all connections.
        self.count = 0
        #: Whether nothing is handed on.
        self.is_frozen = False
        self._thawed: Event | None = None
        self._strikes: list[_Strike] = []

    def freeze(self) -> None:
        """Hand nothing on; the connections stay open. What comes is kept for :meth:`thaw`."""
        self.is_frozen = True

    def thaw(self) -> None:
        """End a :meth:`freeze`; what came meanwhile is handed on. May switch."""
        if self.is_frozen:
            self._place.run(self._thaw)

    def _thaw(self) -> None:
        self.is_frozen = False
        if self._thawed is not None:
            self._thawed.set()
            self._thawed = None

    def cut_at(self, offset: int, *, every: bool = False) -> None:
        """Close a connection, both ways, as soon as exactly ``offset`` bytes of it have been handed on this way.

        It hits the first connection that comes so far, once; with ``every``, each one.
        """
        self._strikes.append(_Strike(offset, "cut", every=every))

    def reset_at(self, offset: int, *, every: bool = False) -> None:
        """The same as :meth:`cut_at`, but the connection ends with RST."""
        self._strikes.append(_Strike(offset, "reset", every=every))

    def corrupt_at(self, offset: int, data: bytes | None = None, *, every: bool = False) -> None:
        """Turn all bits of byte ``offset`` of a connection's stream; the first byte is 0.

        It hits the first connection that comes so far, once; with ``every``, each one.

        :param data: to be put there instead, in place of as many bytes
        """
        self._strikes.append(_Strike(offset, "corrupt", (None,) if data is None else tuple(data), every))

    def clear(self) -> None:
        """Be a good network again: no delay, no rate, no fault to come, not frozen. May switch."""
        self.delay = 0.0
        self.bytes_per_second = 0.0
        self._strikes = []
        self.thaw()

    # -- for the connections, in the proxy's hub -----------------------------------------------------

    def wait_until_thawed(self) -> None:
        """May switch."""
        while self.is_frozen:
            if self._thawed is None:
                self._thawed = Event()
            self._thawed.wait()

    def strikes_of(self, done: set[_Strike]) -> list[_Strike]:
        """Those to come for a connection that has met those ``done``, the nearest first."""
        return sorted((s for s in self._strikes if s not in done), key=lambda strike: strike.offset)

    def use_up(self, strike: _Strike) -> None:
        """It has struck a connection."""
        if not strike.every:
            self._strikes.remove(strike)


class _Pipe:
    """One direction of one connection: a greenlet that takes in and one that hands on."""

    def __init__(self, direction: Direction, source: Any, sink: Any, link: _Link) -> None:
        self._direction = direction
        self._source = source
        self._sink = sink
        self._link = link
        #: Bytes handed on.
        self._offset = 0
        #: Strikes that this connection has met.
        self._done: set[_Strike] = set()
        #: What takes the place of the next bytes.
        self._overlay: tuple[int | None, ...] = ()
        #: What came and when it is due; empty bytes for the end.
        self._late: Queue[tuple[float, bytes]] = Queue()
        self.greenlets = [gevent.spawn(self._take_in), gevent.spawn(self._hand_on)]

    def _take_in(self) -> None:
        try:
            while True:
                data = self._source.recv(_READ_BYTES)
                self._late.put((time.monotonic() + self._direction.delay, data))
                if not data:
                    return
        except OSError:
            self._link.end(reset=True)  # that is how the other end left, too

    def _hand_on(self) -> None:
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
        """Do what is to happen just here, before ``data``; whether that was the connection's end. May switch."""
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
        """Hand on the beginning of ``data``, up to the next strike; how much that was. May switch."""
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
        self._sink.sendall(changed + data[len(changed) : count])
        if rate:
            gevent.sleep(count / rate)
            direction.wait_until_thawed()
        return count


class _Link:
    """One connection through the proxy: two sockets and a pipe each way."""

    def __init__(self, proxy: FaultProxy, client: Any, server: Any) -> None:
        self._client = client
        self._server = server
        #: Directions that have come to their end.
        self._ends = 0
        #: Set when nothing is handed on any more.
        self._over = Event()
        #: Whether the sockets are to be closed at once then.
        self._at_once = False
        to_server = _Pipe(proxy.to_server, client, server, self)
        to_client = _Pipe(proxy.to_client, server, client, self)
        self._greenlets = to_server.greenlets + to_client.greenlets

    def run(self) -> None:
        """Until the end. Switches."""
        try:
            self._over.wait()
            if not self._at_once:
                self._linger()
        finally:
            self._kill()
            self._client.close()
            self._server.close()

    def note_end(self) -> None:
        """One direction is at its end, by FIN."""
        self._ends += 1
        if self._ends == 2:
            self._over.set()

    def end(self, *, reset: bool, at_once: bool = False) -> None:
        """End the connection at both ends. Never switches."""
        self._kill()
        self._at_once = reset or at_once
        for sock in (self._client, self._server):
            try:
                if reset:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    sock.close()
                else:
                    sock.shutdown(socket.SHUT_WR)
            except OSError:
                continue  # it is closed already
        self._over.set()

    def lose(self, *, server: bool) -> None:
        """One end is gone: the other keeps its socket, on which nothing moves any more. Never switches."""
        self._kill()
        (self._server if server else self._client).close()

    def _linger(self) -> None:
        """Read what still comes: closing on unread data would send RST."""
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


def _wait_until_taken(sock: Any) -> None:
    """Wait until the peer's machine has all that was sent, for RST drops the rest. May switch."""
    deadline = time.monotonic() + _LINGER
    while time.monotonic() < deadline:
        try:
            [unsent] = struct.unpack("i", ioctl(sock.fileno(), _SIOCOUTQ, b"\0\0\0\0"))
        except OSError:
            return
        if not unsent:
            return
        gevent.sleep(0.001)


class FaultProxy:
    """Listens on a free loopback port and connects each client to ``target``.

    :param target: the daemon's TCP address, "host:port"; may be set later, before the first client comes
    :param delay: seconds by which each direction is late
    :param own_thread: whether it runs in a thread of its own; None for that, or for the caller's hub where
        sockets are monkey-patched
    """

    def __init__(self, target: str = "", delay: float = 0.0, *, own_thread: bool | None = None) -> None:
        #: Where new connections go.
        self.target = target
        #: Whether new connections are accepted; if not, they are closed at once.
        self.accepting = True
        self._place = Place(own_thread)
        #: What clients say to the daemon, and what it says to them.
        self.to_server = Direction(self._place)
        self.to_client = Direction(self._place)
        self.delay = delay
        #: "host:port", where clients connect, once it listens.
        self.address = ""
        self._links: set[_Link] = set()
        self._server: StreamServer | None = None

    @property
    def port(self) -> int:
        """The port where clients connect."""
        return parse_address(self.address).port

    @property
    def delay(self) -> float:
        """Seconds by which each direction is late; the larger one, where they differ."""
        return max(self.to_server.delay, self.to_client.delay)

    @delay.setter
    def delay(self, seconds: float) -> None:
        self.to_server.delay = self.to_client.delay = seconds

    @property
    def connection_count(self) -> int:
        """Connections that are open."""
        return len(self._links)

    def start(self) -> None:
        """Listen. May switch."""
        self._place.open()
        self._place.run(self._listen)

    def _listen(self) -> None:
        self._server = StreamServer(("127.0.0.1", 0), self._handle)
        self._server.start()
        self.address = join_host_port(self._server.server_host, self._server.server_port)

    # -- faults --------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Hand nothing on, either way: the connections stay open, as when a cable is pulled."""
        self.to_server.freeze()
        self.to_client.freeze()

    def thaw(self) -> None:
        """End a :meth:`freeze`; what came meanwhile is handed on. May switch."""
        self.to_server.thaw()
        self.to_client.thaw()

    def cut(self) -> None:
        """Close all connections. May switch."""
        self._each(lambda link: link.end(reset=False))

    def reset(self) -> None:
        """End all connections with RST. May switch."""
        self._each(lambda link: link.end(reset=True))

    def lose_server(self) -> None:
        """The server is gone without a word: clients keep connections on which nothing ever moves again.

        The daemon sees their end, as if the clients had left. New connections are not concerned. May switch.
        """
        self._each(lambda link: link.lose(server=True))

    def lose_client(self) -> None:
        """Clients are gone without a word: the daemon keeps connections on which nothing ever moves again.

        The clients see their end. New connections are not concerned. May switch.
        """
        self._each(lambda link: link.lose(server=False))

    def clear(self) -> None:
        """Be a good network again, for what comes from now on. May switch."""
        self.accepting = True
        self.to_server.clear()
        self.to_client.clear()

    def close(self) -> None:
        """Cut, and listen no more; twice is fine. May switch."""
        server, self._server = self._server, None
        if server is not None:
            self._each(lambda link: link.end(reset=False, at_once=True))
            self._place.run(server.stop, 1)
        self._place.close()

    def _each(self, act: Callable[[_Link], None]) -> None:
        def work() -> None:
            for link in list(self._links):
                act(link)

        self._place.run(work)

    def _handle(self, client: Any, _address: object) -> None:
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
        link = _Link(self, client, server)
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
