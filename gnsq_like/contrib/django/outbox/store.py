"""The outbox's table as its relay uses it.

On PostgreSQL a claim is a transaction: a shard of keys is held by an advisory lock, rows without a key by their own
locks, which another relay skips. Both end with the transaction, even if the relay or its connection dies, and work
through a pooler. SQLite has no such locks, and a transaction would keep writers out while messages are sent; there one
relay works, which a lock on a file beside the database makes sure of. On other databases, run one relay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

from django.db import connections, transaction
from django.db.models import Count, F, Min, Q
from django.utils import timezone

from gnsq_like.contrib.django.outbox.models import OutboxMessage, OutboxSequence
from gnsq_like.contrib.shared.outbox.file_lock import FileLock, lock_path
from gnsq_like.contrib.shared.outbox.relay import Lag
from gnsq_like.contrib.shared.outbox.rows import DEFERRED, NO_KEY, SHARDS, NewRows, Row, Skipped, lock_number
from gnsq_like.contrib.shared.outbox.waking import CHANNEL, Listening, wake_all


class DjangoStore:
    """The outbox in one of the project's databases.

    :param using: the database
    :param keep: seconds for which published rows are kept
    """

    def __init__(self, using: str, keep: float) -> None:
        self._using = using
        self._keep = keep
        connection = connections[using]
        self._is_postgresql = connection.vendor == "postgresql"
        self._alone = FileLock(
            lock_path(str(connection.settings_dict["NAME"])) if connection.vendor == "sqlite" else ""
        )

    def _unpublished(self) -> Any:
        return OutboxMessage.objects.using(self._using).filter(published_at=None)

    def is_mine(self) -> bool:
        """Whether no other relay has this database, which is a file."""
        connections[self._using].close_if_unusable_or_obsolete()
        return self._alone.acquire()

    def shards(self) -> Sequence[int]:
        """One question to the index of unpublished rows for each shard, in one statement."""
        connection = connections[self._using]
        table = connection.ops.quote_name(OutboxMessage._meta.db_table)
        one = "SELECT {0} WHERE EXISTS (SELECT 1 FROM {1} WHERE published_at IS NULL AND shard = {0})"
        with connection.cursor() as cursor:
            cursor.execute(" UNION ALL ".join(one.format(shard, table) for shard in range(SHARDS + 1)))
            found = [shard for (shard,) in cursor.fetchall()]
        if self._unpublished().filter(due_at__lte=timezone.now()).exists():
            found.append(DEFERRED)
        return found

    @contextmanager
    def claimed(self, shard: int, limit: int, skipped: Skipped) -> Iterator[Sequence[Row]]:
        """The first rows of a shard, held for the block; see the module's text."""
        if not self._is_postgresql:
            yield _rows(self._due(shard, limit, skipped))
            return
        with transaction.atomic(using=self._using):
            if shard >= NO_KEY:
                yield _rows(self._due(shard, limit, skipped).select_for_update(skip_locked=True))
            elif self._try_lock(shard):
                yield _rows(self._due(shard, limit, skipped))
            else:
                yield []

    def _due(self, shard: int, limit: int, skipped: Skipped) -> Any:
        rows = self._unpublished().filter(shard=shard)
        if shard == DEFERRED:
            rows = rows.filter(due_at__lte=timezone.now())
        if shard >= NO_KEY and skipped.ids:
            rows = rows.exclude(pk__in=skipped.ids)
        if shard < NO_KEY:
            for topic, key in skipped.keys:
                rows = rows.exclude(Q(topic=topic) & Q(key=key))
        return rows.order_by("due_at" if shard == DEFERRED else "pk")[:limit]

    def _try_lock(self, shard: int) -> bool:
        with connections[self._using].cursor() as cursor:
            number = lock_number(OutboxMessage._meta.db_table)
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [number, shard])
            return bool(cursor.fetchone()[0])

    def mark(self, rows: Iterable[Row]) -> None:
        """These are published."""
        published = OutboxMessage.objects.using(self._using).filter(pk__in=[row.id for row in rows])
        if self._keep:
            published.update(published_at=timezone.now(), refused=None)
        else:
            published.delete()

    def keep_back(self, row: Row, reason: str) -> None:
        """For the admin."""
        OutboxMessage.objects.using(self._using).filter(pk=row.id).update(refused=reason)

    def lag(self) -> Lag:
        """All rows that are due, from every process."""
        now = timezone.now()
        due = self._unpublished().filter(Q(due_at=None) | Q(due_at__lte=now))
        found = due.aggregate(count=Count("pk"), created=Min("created_at", filter=Q(due_at=None)), due=Min("due_at"))
        times = [at for at in (found["created"], found["due"]) if at is not None]
        return Lag(found["count"], max(0.0, (now - min(times)).total_seconds()) if times else 0.0)

    def prune(self, limit: int) -> int:
        """Delete rows whose time is over."""
        if not self._keep:
            return 0
        published = OutboxMessage.objects.using(self._using).filter(
            published_at__lt=timezone.now() - timedelta(seconds=self._keep)
        )
        # SQLite refuses to write in a transaction that began to read before somebody else wrote.
        with transaction.atomic(using=self._using) if self._is_postgresql else nullcontext():
            if self._is_postgresql:
                published = published.select_for_update(skip_locked=True)
            old = list(published.order_by("published_at").values_list("pk", flat=True)[:limit])
            OutboxMessage.objects.using(self._using).filter(pk__in=old).delete()
        return len(old)

    def listen(self) -> Listening | None:
        """A second connection, on PostgreSQL."""
        if not self._is_postgresql:
            return None
        connection = connections.create_connection(self._using)
        connection.ensure_connection()
        if not Listening.is_possible(connection.connection):
            connection.close()
            return None
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
        return Listening(connection.connection, connection.close)

    def reset(self) -> None:
        """Close this thread's connection."""
        connections[self._using].close()

    def close(self) -> None:
        """Close this thread's connection, and let another relay have the file."""
        self._alone.release()
        connections[self._using].close()


def _rows(found: Any) -> list[Row]:
    return [
        Row(pk, topic, key, bytes(body)) for pk, topic, key, body in found.values_list("pk", "topic", "key", "body")
    ]


def add(new: NewRows, using: str | None) -> list[OutboxMessage]:
    """Insert rows in the open transaction, or in one of their own.

    May block: for a key, until others have committed.
    """
    with transaction.atomic(using=using):
        last = _advance(new.topic, new.key, len(new), using) if new.key else None
        rows = [OutboxMessage(**values) for values in new.values(last, timezone.now())]
        OutboxMessage.objects.using(using).bulk_create(rows)
        _notify(using)
    return rows


def _advance(topic: str, key: str, count: int, using: str | None) -> int:
    """Take the next numbers, and return the last of them. Other transactions with this key wait for this one's end."""
    counter = OutboxSequence.objects.using(using).filter(topic=topic, key=key)
    if not counter.update(last=F("last") + count):
        OutboxSequence.objects.using(using).bulk_create([OutboxSequence(topic=topic, key=key)], ignore_conflicts=True)
        counter.update(last=F("last") + count)
    last: int = counter.values_list("last", flat=True).get()
    return last


def _notify(using: str | None) -> None:
    connection = transaction.get_connection(using)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            # Passed on at the commit, once for each transaction.
            cursor.execute("SELECT pg_notify(%s, '')", [CHANNEL])
    transaction.on_commit(wake_all, using=using)
