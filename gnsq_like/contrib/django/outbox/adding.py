"""New rows of the outbox, in the caller's transaction."""

from __future__ import annotations

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from gnsq_like.contrib.django.outbox.models import OutboxMessage, OutboxSequence
from gnsq_like.contrib.shared.outbox.rows import NewRows
from gnsq_like.contrib.shared.outbox.waking import CHANNEL, wake_all


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
