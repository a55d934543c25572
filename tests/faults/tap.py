"""What passes on connections to one nsqd, decoded from the bytes that a proxy's observer sees.

The four places of an observer tell different things: what a client has said (``from client``), what it can have
received (``to client``), and what nsqd has sent (``from server``), which may still wait in the proxy.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Protocol

from gnsq_like.server.shared.requests import Requests
from gnsq_like.wire.frames import FrameDecoder, RawMessage
from tests.faults.bodies import number_of

_MAGIC = b"  V2"


class Wire(Protocol):
    """Is told what passes; ``connection`` is unique in a run."""

    def identified(self, connection: object, client: str) -> None: ...
    def granted(self, connection: object, rdy: int, at: float) -> None: ...
    def unsubscribed(self, connection: object, at: float) -> None: ...
    def published(self, nsqd: int, number: int, at: float) -> None: ...
    def delivered(
        self, nsqd: int, connection: object, message_id: bytes, number: int, attempts: int, at: float
    ) -> None: ...
    def received(self, connection: object, message_id: bytes, at: float) -> None: ...
    def answered(self, nsqd: int, connection: object, message_id: bytes, how: str, at: float) -> None: ...
    def client_closed(self, connection: object, at: float) -> None: ...
    def server_closed(self, nsqd: int, connection: object, at: float) -> None: ...


class Commands:
    """The commands of one client."""

    def __init__(self) -> None:
        self._requests = Requests()
        self._begun = False
        #: The line whose body is still to come.
        self._line: list[bytes] | None = None
        self._size: int | None = None

    def feed(self, data: bytes) -> Iterator[tuple[list[bytes], bytes]]:
        """The complete commands: the words of the line, and the body."""
        self._requests.feed(data)
        while (command := self._take()) is not None:
            yield command

    def _take(self) -> tuple[list[bytes], bytes] | None:
        requests = self._requests
        if not self._begun:
            magic = requests.take_bytes(len(_MAGIC))
            if magic is None:
                return None
            assert magic == _MAGIC, magic
            self._begun = True
        if self._line is None:
            self._line = requests.take_line()
            if self._line is None:
                return None
        body = b""
        if self._line[0] in (b"IDENTIFY", b"AUTH", b"PUB", b"MPUB", b"DPUB"):
            if self._size is None:
                self._size = requests.take_int32()
                if self._size is None:
                    return None
            taken = requests.take_bytes(self._size)
            if taken is None:
                return None
            body = taken
        line, self._line, self._size = self._line, None, None
        return line, body


def bodies_of(line: list[bytes], body: bytes) -> list[bytes]:
    """The messages of a command that publishes."""
    if line[0] in (b"PUB", b"DPUB"):
        return [body]
    if line[0] != b"MPUB":
        return []
    found = []
    [count] = struct.unpack_from(">i", body)
    position = 4
    for _ in range(count):
        [size] = struct.unpack_from(">i", body, position)
        found.append(body[position + 4 : position + 4 + size])
        position += 4 + size
    return found


class _Connection:
    """The decoders of one connection."""

    def __init__(self) -> None:
        self.commands = Commands()
        self.from_server = FrameDecoder()
        self.to_client = FrameDecoder()
        #: How many of its two sides have ended.
        self.ends = 0


class Tap:
    """The observer of the proxy before one nsqd.

    :param clock: monotonic seconds
    """

    def __init__(self, nsqd: int, wire: Wire, clock: Callable[[], float]) -> None:
        self._nsqd = nsqd
        self._wire = wire
        self._clock = clock
        #: None for one that is over.
        self._connections: dict[int, _Connection | None] = {}

    def __call__(self, number: int, where: str, data: bytes) -> None:
        if number not in self._connections:
            self._connections[number] = _Connection()
        connection = self._connections[number]
        if connection is None:
            return
        name = (self._nsqd, number)
        now = self._clock()
        if where == "from client":
            for line, body in connection.commands.feed(data):
                self._command(name, line, body, now)
        elif where == "from server":
            for _, attempts, message_id, body in _messages(connection.from_server, data):
                self._wire.delivered(self._nsqd, name, message_id, number_of(body), attempts, now)
        elif where == "to client":
            for _, _, message_id, _ in _messages(connection.to_client, data):
                self._wire.received(name, message_id, now)
        elif where == "client closed":
            self._wire.client_closed(name, now)
            self._end(number, connection)
        elif where == "server closed":
            self._wire.server_closed(self._nsqd, name, now)
            self._end(number, connection)

    def _end(self, number: int, connection: _Connection) -> None:
        connection.ends += 1
        if connection.ends == 2:
            self._connections[number] = None

    def _command(self, name: tuple[int, int], line: list[bytes], body: bytes, now: float) -> None:
        word = line[0]
        if word == b"RDY":
            self._wire.granted(name, int(line[1]), now)
        elif word in (b"FIN", b"REQ"):
            self._wire.answered(self._nsqd, name, line[1], word.decode(), now)
        elif word == b"CLS":
            self._wire.unsubscribed(name, now)
        elif word == b"IDENTIFY":
            self._wire.identified(name, json.loads(body)["client_id"])
        for each in bodies_of(line, body):
            self._wire.published(self._nsqd, number_of(each), now)


def _messages(decoder: FrameDecoder, data: bytes) -> Iterator[RawMessage]:
    """The messages that ``data`` completes; none any more after a byte that a fault has garbled."""
    if decoder.error is None:
        for item in decoder.feed(data):
            if isinstance(item, list):
                yield from item
