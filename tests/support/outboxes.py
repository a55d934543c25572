"""An outbox in memory, for tests of what is around it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from gnsq_like import Reader
from gnsq_like.contrib.shared.outbox.relay import Lag
from gnsq_like.contrib.shared.outbox.rows import Row, Skipped, shard_of
from gnsq_like.contrib.shared.outbox.waking import Listening
from gnsq_like.server.shared.requests import Requests
from gnsq_like.testing import RunningNsqd
from tests.support.patient import NsqdHTTPClient


class Memory:
    """A Store without a database."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.marked: list[int] = []
        self.kept_back: dict[int, str] = {}
        #: Raised by the next calls.
        self.failures: list[Exception] = []
        self.resets = self.closes = 0
        self.mine = True

    def add(self, topic: str, key: str, *bodies: bytes) -> None:
        for body in bodies:
            self.rows.append(Row(len(self.rows) + 1, topic, key, body))

    def left(self) -> list[Row]:
        return [row for row in self.rows if row.id not in self.marked]

    def is_mine(self) -> bool:
        if self.failures:
            raise self.failures.pop()
        return self.mine

    def shards(self) -> Sequence[int]:
        return sorted({shard_of(row.topic, row.key) for row in self.left()})

    @contextmanager
    def claimed(self, shard: int, limit: int, skipped: Skipped) -> Iterator[Sequence[Row]]:
        rows = [row for row in self.left() if shard_of(row.topic, row.key) == shard]
        kept = [row for row in rows if row.id not in skipped.ids and (row.topic, row.key) not in skipped.keys]
        yield kept[:limit]

    def mark(self, rows: Iterable[Row]) -> None:
        self.marked += [row.id for row in rows]

    def keep_back(self, row: Row, reason: str) -> None:
        self.kept_back[row.id] = reason

    def lag(self) -> Lag:
        left = self.left()
        return Lag(len(left), 7.0 if left else 0.0)

    def prune(self, limit: int) -> int:
        return 0

    def listen(self) -> Listening | None:
        return None

    def reset(self) -> None:
        self.resets += 1

    def close(self) -> None:
        self.closes += 1


# -- what clients have published: as it passed a FaultProxy, and as an nsqd has it -----------------


_MAGIC = b"  V2"


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


class Published:
    """The observer of a proxy before one nsqd: bodies in the order in which they pass."""

    def __init__(self) -> None:
        #: Of all connections; repetitions too.
        self.bodies: list[bytes] = []
        self._connections: dict[int, Commands] = {}

    def __call__(self, number: int, where: str, data: bytes) -> None:
        if where == "from client":
            for line, body in self._connections.setdefault(number, Commands()).feed(data):
                self.bodies += bodies_of(line, body)
        elif where == "client closed":
            self._connections.pop(number, None)


def all_of(nsqd: RunningNsqd, topic: str, count: int) -> list[bytes]:
    """The bodies that nsqd has of a topic, in the order of their arrival."""
    with NsqdHTTPClient(nsqd.http_address) as client:
        assert sum(each["message_count"] for each in client.stats(topic=topic)["topics"]) == count
    bodies: list[bytes] = []
    with Reader(topic, "tests#ephemeral", nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=1) as reader:
        for message in reader:
            bodies.append(message.body)
            message.finish()
            if len(bodies) == count:
                break
    return bodies
