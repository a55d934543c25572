"""The outbox in one of the project's databases: ``DjangoDatabase`` for the relay's store, and ``add`` for new rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import connections, transaction
from django.db.models import F
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from gnsq_like.contrib.django.outbox.models import OutboxMessage, OutboxSequence
from gnsq_like.contrib.shared.outbox.rows import NewRows
from gnsq_like.contrib.shared.outbox.store import Run
from gnsq_like.contrib.shared.outbox.waking import CHANNEL, wake_all


class DjangoDatabase:
    """A database of the project; see :class:`gnsq_like.contrib.shared.outbox.store.Database`."""

    table: str = OutboxMessage._meta.db_table

    def __init__(self, using: str) -> None:
        self._using = using
        connection = connections[using]
        self.vendor: str = connection.vendor
        self.file = str(connection.settings_dict["NAME"]) if connection.vendor == "sqlite" else ""

    def quote(self, name: str) -> str:
        return str(connections[self._using].ops.quote_name(name))

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        with transaction.atomic(using=self._using), connections[self._using].cursor() as cursor:

            def run(statement: str, parameters: Sequence[object]) -> Sequence[Any]:
                cursor.execute(statement, parameters)
                return cursor.fetchall() if cursor.description else ()

            yield run

    def now(self, offset: float = 0.0) -> object:
        connection = connections[self._using]
        return connection.ops.adapt_datetimefield_value(timezone.now() + timedelta(seconds=offset))

    def age(self, time: Any) -> float:
        time = parse_datetime(time) if isinstance(time, str) else time
        now = timezone.now()
        if timezone.is_aware(now) and timezone.is_naive(time):
            time = timezone.make_aware(time, connections[self._using].timezone)
        if timezone.is_naive(now) and timezone.is_aware(time):
            time = timezone.make_naive(time)
        return float((now - time).total_seconds())

    def connect(self) -> tuple[Any, Callable[[], object]]:
        connection = connections.create_connection(self._using)
        connection.ensure_connection()
        return connection.connection, connection.close

    def refresh(self) -> None:
        connections[self._using].close_if_unusable_or_obsolete()

    def reset(self) -> None:
        connections[self._using].close()


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
