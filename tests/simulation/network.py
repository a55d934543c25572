"""TCP in memory: descriptors, connections and what can happen to their bytes.

Every port of the cluster is one of 127.0.0.1; which process has opened it says where it lies. What a process sends
arrives after the latency of its way to the other process. Nothing is lost or reordered within a connection, because TCP
repeats it; a partition delays it until it ends. A connection ends as TCP's do: in good order, by a reset, or half-open,
so that one side never hears of it.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Iterable
from random import Random
from zlib import crc32

from tests.simulation.loop import READABLE, WRITABLE, Io, Loop
from tests.simulation.process import Process

HOST = "127.0.0.1"
#: Descriptors begin here, above the real ones.
_FIRST_DESCRIPTOR = 1_000_000
#: Ports that are given to those who bind port 0, and to clients.
_FIRST_PORT = 20_000
#: Bytes that may be on their way or unread in one direction.
WINDOW_BYTES = 256 * 1024
#: Seconds until a lost SYN is sent again, doubled each time.
_SYN_AGAIN = 1.0
#: Seconds at most until what a partition held back is sent again after its end.
_SEND_AGAIN = 0.3

#: As numbers: the enumerations of ``socket`` are slow.
_PEEK, _SOL_SOCKET, _SO_ERROR = int(socket.MSG_PEEK), int(socket.SOL_SOCKET), int(socket.SO_ERROR)

NEW, LISTENING, CONNECTING, CONNECTED, FAILED, CLOSED = range(6)
_STATES = ("new", "listening", "connecting", "connected", "failed", "closed")


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


class Descriptor:
    """What lies below a socket object: the kernel's side. None of its calls waits."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = 0
    timeout = 0.0

    def __init__(self, network: Network, owner: Process) -> None:
        self._network = network
        self.owner = owner
        self.watchers: dict[Io, None] = {}
        self.state = NEW
        self.number = network.add(self)
        self.port = 0
        #: Of a listener: connections that are not accepted, and how many may be.
        self.waiting: deque[Descriptor] = deque()
        self.backlog = 128
        #: What was received and not read; whether the end was received after it.
        self.unread = bytearray()
        self.at_end = False
        #: Reported once, by the next call or by SO_ERROR.
        self.error = 0
        #: The direction from here to the peer, and back.
        self.out: Direction | None = None
        self.back: Direction | None = None
        self._wrote_end = False

    def __repr__(self) -> str:
        peer = "" if self.out is None else f" to port {self.out.target.port} of {self.out.target.owner.name}"
        return f"<descriptor {self.number} {_STATES[self.state]} port {self.port}{peer}, {len(self.unread)} unread>"

    def fileno(self) -> int:
        return -1 if self.state == CLOSED else self.number

    @property
    def listens(self) -> bool:
        """Whether it is a listener."""
        return self.state == LISTENING

    def events(self) -> int:
        """What would not wait."""
        state = self.state
        if state == CONNECTED:
            ready = READABLE if self.unread or self.at_end or self.error else 0
            if self.error or self._wrote_end or self.out.room > 0:  # type: ignore[union-attr]
                ready |= WRITABLE
            return ready
        if state == LISTENING:
            return READABLE if self.waiting else 0
        return READABLE | WRITABLE if state in (FAILED, NEW) else 0

    # -- calls of a program ----------------------------------------------------------------------------

    def setsockopt(self, *_: object) -> None:
        pass

    def getsockopt(self, level: int, option: int, *_: object) -> int:
        if level == _SOL_SOCKET and option == _SO_ERROR:
            code, self.error = self.error, 0
            return code
        return 0

    def bind(self, address: tuple[str, int]) -> None:
        self.port = self._network.take_port(address[1])

    def listen(self, backlog: int = 128) -> None:
        self.state = LISTENING
        self.backlog = backlog
        self._network.listeners[self.port] = self

    def getsockname(self) -> tuple[str, int]:
        return HOST, self.port

    def getpeername(self) -> tuple[str, int]:
        if self.state != CONNECTED or self.out is None:
            raise _error(errno.ENOTCONN)
        return HOST, self.out.target.port

    def connect_ex(self, address: tuple[str, int]) -> int:
        if self.state == NEW:
            self.state = CONNECTING
            self._network.connect(self, address[1])
            return errno.EINPROGRESS
        if self.state == CONNECTING:
            return errno.EALREADY
        return 0 if self.state == CONNECTED else errno.ECONNREFUSED

    def connect(self, address: tuple[str, int]) -> None:
        if code := self.connect_ex(address):
            raise _error(code)

    def _accept(self) -> tuple[int, tuple[str, int]]:
        if self.state == CLOSED:
            raise _error(errno.EBADF)
        if not self.waiting:
            raise _error(errno.EAGAIN)
        accepted = self.waiting.popleft()
        return accepted.number, accepted.getpeername()

    def recv(self, size: int, flags: int = 0) -> bytes:
        unread = self.unread
        if unread:
            data = bytes(unread[:size])
            if not flags & _PEEK:
                del unread[:size]
                self.owner.counts.reads += 1
                self.back.has_read()  # type: ignore[union-attr]
            return data
        if self.state == CLOSED:
            raise _error(errno.EBADF)
        if self.error:
            code, self.error, self.at_end = self.error, 0, True
            raise _error(code)
        if self.at_end:
            return b""
        raise _error(errno.EAGAIN if self.state == CONNECTED else errno.ENOTCONN)

    def recv_into(self, buffer: memoryview, size: int = 0, flags: int = 0) -> int:
        view = memoryview(buffer)
        data = self.recv(size or len(view), flags)
        view[: len(data)] = data
        return len(data)

    def send(self, data: bytes, flags: int = 0) -> int:
        if self.state == CLOSED:
            raise _error(errno.EBADF)
        if self.error:
            code, self.error = self.error, 0
            raise _error(code)
        if self.state != CONNECTED:
            raise _error(errno.ENOTCONN)
        if self._wrote_end or self.out.is_broken:  # type: ignore[union-attr]
            raise _error(errno.EPIPE)
        view = memoryview(data)
        sent = self.out.send(bytes(view[: self.out.room]))  # type: ignore[union-attr]
        if not sent and len(view):
            raise _error(errno.EAGAIN)
        self.owner.counts.writes += 1
        self.owner.counts.bytes += sent
        return sent

    def shutdown(self, how: int) -> None:
        if self.state != CONNECTED:
            raise _error(errno.ENOTCONN)
        if how != 0:
            self._write_end()
        if how != 1:
            self.at_end = True
        self._network.loop.became_ready(self)

    def detach(self) -> int:
        number = self.number
        self.close()
        return number

    def close(self) -> None:
        """As the kernel does: in good order, or by a reset if something is unread."""
        state, self.state = self.state, CLOSED
        if state == CLOSED:
            return
        self.owner.descriptors.pop(self, None)
        self._network.loop.remove_file(self.number)
        if state == LISTENING:
            self._network.listeners.pop(self.port, None)
            for client in self.waiting:
                client.close()
            self.waiting.clear()
        elif state == CONNECTED:
            if self.unread:
                self.out.reset()  # type: ignore[union-attr]
            else:
                self._write_end()

    # -- from the network ------------------------------------------------------------------------------

    def _write_end(self) -> None:
        if not self._wrote_end:
            self._wrote_end = True
            self.out.send_end()  # type: ignore[union-attr]

    def become_connected(self, out: Direction, back: Direction) -> None:
        self.state = CONNECTED
        self.out, self.back = out, back
        self._network.loop.became_ready(self)

    def fail(self, code: int) -> None:
        """Connecting has failed, or the connection has."""
        if self.state == CONNECTING:
            self.state = FAILED
        self.error = code
        self._network.loop.became_ready(self)


class Direction:
    """The bytes of a connection from one end to the other."""

    def __init__(self, network: Network, source: Descriptor, target: Descriptor) -> None:
        self._network = network
        self.source = source
        self.target = target
        #: What is on its way: arrival, and data (None for the end).
        self._segments: deque[tuple[float, bytes | None]] = deque()
        self._on_its_way = 0
        self._last_arrival = 0.0
        #: Whether a partition holds everything back, and whether nothing arrives any more.
        self._held = False
        self.is_lost = False
        #: Whether the peer has reset the connection.
        self.is_broken = False
        #: Bytes that may still be sent before the connection is reset; None for no such fault.
        self.cut_after: int | None = None

    @property
    def room(self) -> int:
        """Bytes that ``send`` would take."""
        return max(0, WINDOW_BYTES - self._on_its_way - len(self.target.unread))

    def has_read(self) -> None:
        """The target has read something."""
        if self.source.state == CONNECTED and self.source.watchers:
            self._network.loop.became_ready(self.source)

    def send(self, data: bytes) -> int:
        """Take all of ``data``."""
        sent = len(data)
        if self.cut_after is None:
            self._send(data)
        elif self.cut_after >= sent:
            self.cut_after -= sent
            self._send(data)
        elif self.cut_after >= 0:
            self._send(data[: self.cut_after])
            self.cut_after = -1  # what follows is dropped until the reset
            self._network.reset_later(self)
        return sent

    def _send(self, data: bytes) -> None:
        if not data:
            return
        network = self._network
        self._on_its_way += len(data)
        network.note_sent(self.source, self.target, data)
        if network.fragment and len(data) > 1 and network.random.random() < network.fragment:
            cut = network.random.randrange(1, len(data))
            self._put(data[:cut])
            self._put(data[cut:])
        else:
            self._put(data)

    def send_end(self) -> None:
        self._put(None)

    def _put(self, data: bytes | None) -> None:
        network = self._network
        arrival = max(self._last_arrival, network.loop.now + network.delay(self.source.owner, self.target.owner))
        if data is not None and network.bandwidth:
            arrival += len(data) / network.bandwidth
        self._last_arrival = arrival
        self._segments.append((arrival, data))
        if not self._held:
            network.loop.at(arrival, self._arrive)

    def _arrive(self) -> None:
        segments = self._segments
        if not segments or self.is_lost or self._held:
            return
        if self._network.is_parted(self.source.owner, self.target.owner):
            self._held = True
            self._network.held.append(self)
            return
        _, data = segments.popleft()
        target = self.target
        if data is None:
            target.at_end = True
        else:
            self._on_its_way -= len(data)
            if target.state != CONNECTED:
                self.reset_back()
                return
            target.unread += data
        if target.state == CONNECTED:
            self._network.loop.became_ready(target)

    def resume(self) -> None:
        """The partition is over."""
        self._held = False
        network = self._network
        start = network.loop.now + network.random.random() * _SEND_AGAIN
        waiting, self._segments = self._segments, deque()
        for arrival, data in waiting:
            start = max(start, arrival)  # no segment is faster than the network
            self._segments.append((start, data))
            network.loop.at(start, self._arrive)
        self._last_arrival = start

    def reset(self) -> None:
        """The source ends the connection by a reset."""
        if self.is_lost:
            return
        network = self._network
        network.loop.at(network.loop.now + network.delay(self.source.owner, self.target.owner), self._reset_arrives)

    def reset_back(self) -> None:
        """Data has met a closed descriptor."""
        back = self.target.out
        if back is not None and not self.is_broken:
            back.reset()

    def _reset_arrives(self) -> None:
        if self._network.is_parted(self.source.owner, self.target.owner) or self.is_lost:
            return  # it is not repeated: the target finds out when it sends
        target = self.target
        if target.out is not None:
            target.out.is_broken = True
        if target.state == CONNECTED:
            if self._network.random.random() < 0.5:
                target.unread.clear()
            target.fail(errno.ECONNRESET)

    def deliver_some(self) -> None:
        """Deliver a random part of what is on its way, and drop the rest."""
        data = b"".join(data for _, data in self._segments if data is not None)
        self._segments.clear()
        self._on_its_way = 0
        self.is_lost = True
        if data and self.target.state == CONNECTED:
            self.target.unread += data[: self._network.random.randrange(len(data) + 1)]

    def lose(self) -> None:
        """Nothing arrives any more."""
        self.is_lost = True
        self._segments.clear()
        self._on_its_way = 0


class Connection:
    """Both directions, for faults."""

    def __init__(self, network: Network, client: Descriptor, server: Descriptor) -> None:
        self._network = network
        self.client = client
        self.server = server
        self.up = Direction(network, client, server)
        self.down = Direction(network, server, client)

    @property
    def is_open(self) -> bool:
        return CONNECTED in (self.client.state, self.server.state)

    def cut(self, code: int = errno.ECONNRESET) -> None:
        """Both ends get a part of what is on its way, and then a reset; the end in good order if ``code`` is 0."""
        for direction in (self.up, self.down):
            direction.deliver_some()
            direction.is_broken = True
        for end in (self.client, self.server):
            if end.state == CONNECTED:
                end.at_end = True
                end.error = code
                self._network.loop.became_ready(end)

    def become_half_open(self, side: str) -> None:
        """Nothing arrives any more. ``side`` ("client", "server" or "none") is told by a reset; the other is not."""
        self.up.lose()
        self.down.lose()
        end = {"client": self.client, "server": self.server}.get(side)
        if end is not None and end.state == CONNECTED:
            end.fail(errno.ECONNRESET)


class Network:
    """The network between the processes.

    :param random: for latencies and for where things are cut
    """

    def __init__(self, loop: Loop, random: Random) -> None:
        self.loop = loop
        self.random = random
        #: Seconds one way, the same for all; what is added at random to each segment; bytes a second, 0 for no limit.
        self.latency = 50e-6
        self.jitter = 0.0
        #: With 1, all delays up to that are equally probable; with more, most are short.
        self.skew = 3
        self.bandwidth = 0.0
        #: The probability that a write arrives in two pieces.
        self.fragment = 0.0
        self.listeners: dict[int, Descriptor] = {}
        self.connections: dict[Connection, None] = {}
        #: How many connections were made so far.
        self.connected = 0
        #: Ports that refuse connections, and ports that do not even answer: their listener's backlog is full.
        self.refused: dict[int, None] = {}
        self.full: dict[int, None] = {}
        #: Directions that a partition holds back.
        self.held: list[Direction] = []
        self._parted: dict[tuple[Process, Process], None] = {}
        self._next_descriptor = _FIRST_DESCRIPTOR
        self._next_port = _FIRST_PORT

    # -- for descriptors -------------------------------------------------------------------------------

    def add(self, descriptor: Descriptor) -> int:
        number = self._next_descriptor
        self._next_descriptor += 1
        self.loop.add_file(number, descriptor)
        descriptor.owner.descriptors[descriptor] = None
        return number

    def take_port(self, port: int = 0) -> int:
        if port:
            if port in self.listeners:
                raise _error(errno.EADDRINUSE)
            return port
        self._next_port += 1
        return self._next_port

    def delay(self, source: Process, target: Process) -> float:
        """Seconds that a segment takes now."""
        if self.jitter:
            return self.latency + self.random.random() ** self.skew * self.jitter
        return self.latency

    def note_sent(self, source: Descriptor, target: Descriptor, data: bytes) -> None:
        self.loop.note(source.number, crc32(data))
        if self.loop.trace is not None:
            self.loop.trace(source.owner, f"sends to {target.owner.name}: {data[:200]!r}")

    def connect(self, client: Descriptor, port: int, again: float = _SYN_AGAIN) -> None:
        client.port = client.port or self.take_port()
        if self.loop.trace is not None:
            self.loop.trace(client.owner, f"connects to port {port}")
        delay = self.delay(client.owner, client.owner)
        self.loop.at(self.loop.now + delay, lambda: self._syn_arrives(client, port, again))

    def _syn_arrives(self, client: Descriptor, port: int, again: float) -> None:
        if client.state != CONNECTING:
            return
        listener = self.listeners.get(port)
        owner = None if listener is None else listener.owner
        is_lost = port in self.full or (
            listener is not None
            and (
                len(listener.waiting) >= max(1, listener.backlog)
                or self.is_parted(client.owner, listener.owner)
                or self.is_parted(listener.owner, client.owner)
            )
        )
        if is_lost:
            self.loop.at(self.loop.now + again, lambda: self.connect(client, port, 2 * again))
            return
        delay = self.delay(client.owner, client.owner)
        if listener is None or owner is None or port in self.refused:
            self.loop.at(self.loop.now + delay, lambda: self._refuse(client))
            return
        server = Descriptor(self, owner)
        server.port = port
        connection = Connection(self, client, server)
        self.connected += 1
        server.become_connected(connection.down, connection.up)
        self.connections[connection] = None
        if len(self.connections) % 256 == 0:
            self.connections = {each: None for each in self.connections if each.is_open}
        listener.waiting.append(server)
        self.loop.became_ready(listener)
        self.loop.at(self.loop.now + delay, lambda: self._established(client, connection))

    def _refuse(self, client: Descriptor) -> None:
        if client.state == CONNECTING:
            client.fail(errno.ECONNREFUSED)

    def _established(self, client: Descriptor, connection: Connection) -> None:
        if client.state == CONNECTING:
            client.become_connected(connection.up, connection.down)
        else:
            connection.up.send_end()

    def reset_later(self, direction: Direction) -> None:
        """After what was sent in this direction has arrived, both ends are reset."""
        connection = next(each for each in self.connections if direction in (each.up, each.down))
        self.loop.at(direction._last_arrival + 1e-6, connection.cut)

    # -- faults ----------------------------------------------------------------------------------------

    def open_connections(self, processes: Iterable[Process] = ()) -> list[Connection]:
        """The open connections, of all or between these processes."""
        wanted = list(processes)
        return [
            each
            for each in self.connections
            if each.is_open and (not wanted or (each.client.owner in wanted or each.server.owner in wanted))
        ]

    def is_parted(self, source: Process, target: Process) -> bool:
        return bool(self._parted) and (source, target) in self._parted

    def part(self, source: Process, target: Process) -> None:
        """Let nothing through from one process to another, in this direction."""
        self._parted[source, target] = None

    def join(self, source: Process, target: Process) -> None:
        """End a partition; what was sent meanwhile arrives."""
        self._parted.pop((source, target), None)
        held, self.held = self.held, []
        for direction in held:
            if self.is_parted(direction.source.owner, direction.target.owner):
                self.held.append(direction)
            elif not direction.is_lost:
                direction.resume()

    def part_both_ways(self, one: Process, other: Process) -> None:
        self.part(one, other)
        self.part(other, one)

    def join_both_ways(self, one: Process, other: Process) -> None:
        self.join(one, other)
        self.join(other, one)
