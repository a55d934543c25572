"""The outbox's table as its relay uses it, in SQLAlchemy.

On PostgreSQL a claim is a transaction: a shard of keys is held by an advisory lock, rows without a key by their own
locks, which another relay skips. On SQLite, where a transaction would keep writers out while messages are sent, one
relay works, which a lock on a file beside the database makes sure of. On other databases, run one relay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from gnsq_like.contrib.shared.extras import missing
from gnsq_like.contrib.shared.outbox.file_lock import FileLock, lock_path
from gnsq_like.contrib.shared.outbox.relay import Lag
from gnsq_like.contrib.shared.outbox.rows import DEFERRED, NO_KEY, SHARDS, Row, Skipped, lock_number
from gnsq_like.contrib.shared.outbox.waking import CHANNEL, Listening

try:
    from sqlalchemy import and_, case, delete, exists, func, literal_column, not_, or_, select, union_all, update
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.schema import Table
    from sqlalchemy.sql import ColumnElement, Delete, Select, Update
except ModuleNotFoundError as exc:
    raise missing(exc, distribution="sqlalchemy") from exc


def now() -> datetime:
    """The time as it is in the table: UTC."""
    return datetime.now(UTC)


class SQLAlchemyStore:
    """The outbox in a table.

    :param keep: seconds for which published rows are kept
    """

    def __init__(self, engine: Engine, table: Table, keep: float) -> None:
        self._engine = engine
        self._table = table
        self._keep = keep
        self._is_postgresql = engine.dialect.name == "postgresql"
        file = engine.url.database if engine.dialect.name == "sqlite" else ""
        self._alone = FileLock(lock_path(file or ""))
        #: During a claim on PostgreSQL: its transaction.
        self._claim: Connection | None = None

    def is_mine(self) -> bool:
        """Whether no other relay has this database, which is a file."""
        return self._alone.acquire()

    def shards(self) -> Sequence[int]:
        """One question to the index of unpublished rows for each shard, in one statement."""
        c = self._table.c
        unpublished: list[Select[Any]] = [
            select(literal_column(str(shard)).label("shard")).where(
                exists().where(c.published_at.is_(None), c.shard == shard)
            )
            for shard in range(SHARDS + 1)
        ]
        due: Select[Any] = select(literal_column(str(DEFERRED)).label("shard")).where(
            exists().where(c.published_at.is_(None), c.due_at <= now())
        )
        with self._engine.connect() as connection:
            return [shard for (shard,) in connection.execute(union_all(*unpublished, due))]

    @contextmanager
    def claimed(self, shard: int, limit: int, skipped: Skipped) -> Iterator[Sequence[Row]]:
        """The first rows of a shard, held for the block; see the module's text."""
        query = self._due(shard, limit, skipped)
        if not self._is_postgresql:
            with self._engine.connect() as connection:
                rows = _rows(connection, query)
            yield rows
            return
        with self._engine.begin() as connection:
            self._claim = connection
            try:
                if shard >= NO_KEY:
                    yield _rows(connection, query.with_for_update(skip_locked=True))
                elif connection.execute(
                    select(func.pg_try_advisory_xact_lock(lock_number(self._table.fullname), shard))
                ).scalar():
                    yield _rows(connection, query)
                else:
                    yield []
            finally:
                self._claim = None

    def _due(self, shard: int, limit: int, skipped: Skipped) -> Select[object]:
        c = self._table.c
        wanted: list[ColumnElement[bool]] = [c.published_at.is_(None), c.shard == shard]
        if shard == DEFERRED:
            wanted.append(c.due_at <= now())
        if shard >= NO_KEY and skipped.ids:
            wanted.append(c.id.not_in(skipped.ids))
        if shard < NO_KEY:
            wanted += [not_(and_(c.topic == topic, c.key == key)) for topic, key in skipped.keys]
        order = c.due_at if shard == DEFERRED else c.id
        return select(c.id, c.topic, c.key, c.body).where(*wanted).order_by(order).limit(limit)

    def mark(self, rows: Iterable[Row]) -> None:
        """These are published."""
        table = self._table
        ids = table.c.id.in_([row.id for row in rows])
        published = update(table).where(ids).values(published_at=now(), refused=None)
        self._change(published if self._keep else delete(table).where(ids))

    def keep_back(self, row: Row, reason: str) -> None:
        """For whoever looks at the table."""
        self._change(update(self._table).where(self._table.c.id == row.id).values(refused=reason))

    def _change(self, statement: Update | Delete) -> None:
        """In the claim's transaction if there is one."""
        if self._claim is not None:
            self._claim.execute(statement)
        else:
            with self._engine.begin() as connection:
                connection.execute(statement)

    def lag(self) -> Lag:
        """All rows that are due, from every process."""
        c = self._table.c
        since = case((c.due_at.is_(None), c.created_at), else_=c.due_at)
        due = select(func.count(), func.min(since)).where(
            c.published_at.is_(None), or_(c.due_at.is_(None), c.due_at <= now())
        )
        with self._engine.connect() as connection:
            count, oldest = connection.execute(due).one()
        if oldest is None:
            return Lag(0, 0.0)
        if oldest.tzinfo is None:  # SQLite
            oldest = oldest.replace(tzinfo=UTC)
        return Lag(count, max(0.0, (now() - oldest).total_seconds()))

    def prune(self, limit: int) -> int:
        """Delete rows whose time is over."""
        if not self._keep:
            return 0
        c = self._table.c
        old = select(c.id).where(c.published_at < now() - timedelta(seconds=self._keep)).limit(limit)
        if self._is_postgresql:
            old = old.with_for_update(skip_locked=True)
        with self._engine.begin() as connection:
            return int(connection.execute(delete(self._table).where(c.id.in_(old.scalar_subquery()))).rowcount)

    def listen(self) -> Listening | None:
        """A second connection, on PostgreSQL."""
        if not self._is_postgresql:
            return None
        pooled = self._engine.raw_connection()
        raw: Any = pooled.driver_connection
        pooled.detach()  # the pool would take it back
        if not Listening.is_possible(raw):
            pooled.close()
            return None
        raw.autocommit = True
        cursor = raw.cursor()
        cursor.execute(f"LISTEN {CHANNEL}")
        cursor.close()
        return Listening(raw, pooled.close)

    def reset(self) -> None:
        """Nothing: the pool drops connections that are broken."""

    def close(self) -> None:
        """Let another relay have the file."""
        self._alone.release()


def _rows(connection: Connection, query: Select[Any]) -> list[Row]:
    return [Row(number, topic, key, bytes(body)) for number, topic, key, body in connection.execute(query)]
