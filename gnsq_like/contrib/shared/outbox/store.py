"""The outbox's table as its relay uses it, in SQL that every framework's connection runs.

On PostgreSQL a claim is a transaction: a shard of keys is held by an advisory lock, rows without a key by their own
locks, which another relay skips. Both end with the transaction, even if the relay or its connection dies, and work
through a pooler. SQLite has no such locks, and a transaction would block writers while messages are sent; so a lock on
a file beside the database ensures that only one relay works. On other databases, run one relay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from gnsq_like.contrib.shared.outbox.file_lock import FileLock, lock_path
from gnsq_like.contrib.shared.outbox.relay import Lag
from gnsq_like.contrib.shared.outbox.rows import DEFERRED, NO_KEY, SHARDS, Row, Skipped, lock_number
from gnsq_like.contrib.shared.outbox.waking import CHANNEL, Listening

#: Runs a statement with a ``%s`` for each parameter; returns the rows of a SELECT.
Run = Callable[[str, Sequence[object]], Sequence[Any]]


class Database(Protocol):
    """An application's database through its framework; used in the relay's thread only."""

    #: "postgresql", "sqlite" or another.
    vendor: str
    #: That of SQLite; "" for any other.
    file: str
    #: The table of messages.
    table: str

    def quote(self, name: str) -> str:
        """Quote a name for a statement, such as "key", which is a keyword of SQL."""

    def transaction(self) -> AbstractContextManager[Run]:
        """A transaction, or a part of the one that is open in this thread."""

    def now(self, offset: float = 0.0) -> object:
        """The time this many seconds from now, as a parameter."""

    def age(self, time: Any) -> float:
        """Seconds since a time that a statement returned."""

    def connect(self) -> tuple[Any, Callable[[], object]]:
        """A separate connection of the driver, in autocommit mode, and a function that closes it."""

    def refresh(self) -> None:
        """Called before each round: drop a connection that has become unusable."""

    def reset(self) -> None:
        """Drop this thread's connection."""


class SQLStore:
    """An outbox in a database; a relay's store.

    :param keep: seconds for which published rows are kept
    """

    def __init__(self, database: Database, keep: float) -> None:
        self._database = database
        self._keep = keep
        self._is_postgresql = database.vendor == "postgresql"
        self._alone = FileLock(lock_path(database.file))
        self._table = database.quote(database.table)
        #: During a claim on PostgreSQL: runs statements in its transaction.
        self._claim: Run | None = None

    def is_mine(self) -> bool:
        """Whether no other relay has this database, which is a file."""
        self._database.refresh()
        return self._alone.acquire()

    def shards(self) -> Sequence[int]:
        """One question to the index of unpublished rows for each shard, in one statement."""
        one = f"SELECT {{0}} WHERE EXISTS (SELECT 1 FROM {self._table} WHERE published_at IS NULL AND {{1}})"
        questions = [one.format(shard, f"shard = {shard}") for shard in range(SHARDS + 1)]
        questions.append(one.format(DEFERRED, "due_at <= %s"))
        return [int(shard) for (shard,) in self._run(" UNION ALL ".join(questions), [self._database.now()])]

    @contextmanager
    def claimed(self, shard: int, limit: int, skipped: Skipped) -> Iterator[Sequence[Row]]:
        """The first rows of a shard, held for the block; see the module's text."""
        statement, parameters = self.due(shard, limit, skipped)
        if not self._is_postgresql:
            yield _rows(self._run(statement, parameters))
            return
        with self._database.transaction() as run:
            self._claim = run
            try:
                if shard >= NO_KEY:
                    yield _rows(run(f"{statement} FOR UPDATE SKIP LOCKED", parameters))
                elif self._has_locked(shard):
                    yield _rows(run(statement, parameters))
                else:
                    yield []
            finally:
                self._claim = None

    def _has_locked(self, shard: int) -> bool:
        number = lock_number(self._database.table)
        [(is_locked,)] = self._run("SELECT pg_try_advisory_xact_lock(%s, %s)", [number, shard])
        return bool(is_locked)

    def due(self, shard: int, limit: int, skipped: Skipped) -> tuple[str, list[object]]:
        """The statement for the first rows of a shard, and its parameters."""
        key = self._database.quote("key")
        wanted = ["published_at IS NULL", "shard = %s"]
        given: list[object] = [shard]
        if shard == DEFERRED:
            wanted.append("due_at <= %s")
            given.append(self._database.now())
        if shard >= NO_KEY and skipped.ids:
            wanted.append(f"id NOT IN ({_places(skipped.ids)})")
            given += skipped.ids
        if shard < NO_KEY:
            for place in skipped.keys:
                wanted.append(f"NOT (topic = %s AND {key} = %s)")
                given += place
        order = "due_at" if shard == DEFERRED else "id"
        columns = f"id, topic, {key}, body"
        where = " AND ".join(wanted)
        return f"SELECT {columns} FROM {self._table} WHERE {where} ORDER BY {order} LIMIT {limit:d}", given

    def _run(self, statement: str, parameters: Sequence[object]) -> Sequence[Any]:
        """In the claim's transaction if there is one."""
        if self._claim is not None:
            return self._claim(statement, parameters)
        with self._database.transaction() as run:
            return run(statement, parameters)

    def mark(self, rows: Iterable[Row]) -> None:
        """These are published."""
        ids = [row.id for row in rows]
        if not self._keep:
            self._delete(ids)
        elif ids:
            change = f"UPDATE {self._table} SET published_at = %s, refused = NULL WHERE id IN ({_places(ids)})"
            self._run(change, [self._database.now(), *ids])

    def _delete(self, ids: list[int]) -> None:
        if ids:
            self._run(f"DELETE FROM {self._table} WHERE id IN ({_places(ids)})", ids)

    def keep_back(self, row: Row, reason: str) -> None:
        """Store the reason in the table."""
        self._run(f"UPDATE {self._table} SET refused = %s WHERE id = %s", [reason, row.id])

    def lag(self) -> Lag:
        """All rows that are due, from every process."""
        due = "published_at IS NULL AND (due_at IS NULL OR due_at <= %s)"
        question = f"SELECT COUNT(*), MIN(COALESCE(due_at, created_at)) FROM {self._table} WHERE {due}"
        [(count, oldest)] = self._run(question, [self._database.now()])
        return Lag(count, 0.0 if oldest is None else max(0.0, self._database.age(oldest)))

    def prune(self, limit: int) -> int:
        """Delete rows whose time is over."""
        if not self._keep:
            return 0
        old = f"SELECT id FROM {self._table} WHERE published_at < %s ORDER BY published_at LIMIT {limit:d}"
        before = [self._database.now(-self._keep)]
        if not self._is_postgresql:
            # Not in one transaction: SQLite refuses to write in one that began to read before somebody else wrote.
            found = [number for (number,) in self._run(old, before)]
            self._delete(found)
            return len(found)
        with self._database.transaction() as run:
            found = [number for (number,) in run(f"{old} FOR UPDATE SKIP LOCKED", before)]
            if found:
                run(f"DELETE FROM {self._table} WHERE id IN ({_places(found)})", found)
        return len(found)

    def listen(self) -> Listening | None:
        """A second connection, on PostgreSQL."""
        if not self._is_postgresql:
            return None
        raw, close = self._database.connect()
        if not Listening.is_possible(raw):
            close()
            return None
        cursor = raw.cursor()
        cursor.execute(f"LISTEN {CHANNEL}")
        cursor.close()
        return Listening(raw, close)

    def reset(self) -> None:
        """Drop a connection that may be broken."""
        self._database.reset()

    def close(self) -> None:
        """Give the connection back, and let another relay have the file."""
        self._alone.release()
        self._database.reset()


def _places(parameters: Iterable[object]) -> str:
    return ", ".join("%s" for _ in parameters)


def _rows(found: Sequence[Any]) -> list[Row]:
    return [Row(number, topic, key, bytes(body)) for number, topic, key, body in found]
