"""An outbox in memory, for tests of what is around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from gnsq_like import NsqdHTTPClient, Reader
from gnsq_like.contrib.shared.outbox.relay import Lag
from gnsq_like.contrib.shared.outbox.rows import Row, Skipped, shard_of
from gnsq_like.contrib.shared.outbox.waking import Listening
from gnsq_like.testing import RunningNsqd
from tests.faults.tap import Commands, bodies_of


class Memory:
    """A Store without a database."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.marked: list[int] = []
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
