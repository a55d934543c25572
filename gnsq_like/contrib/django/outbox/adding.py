"""New rows of the outbox, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from gnsq_like.contrib.django.outbox.models import OutboxMessage, OutboxSequence
from gnsq_like.contrib.shared.outbox import envelope
from gnsq_like.contrib.shared.outbox.rows import shard_of
from gnsq_like.contrib.shared.outbox.waking import CHANNEL, wake_all


def add(
    topic: str,
    bodies: Sequence[tuple[bytes, bool]],
    *,
    key: str,
    defer: float | None,
    wrapped: bool,
    extensions: Mapping[str, str],
    check: Callable[[bytes], object],
    using: str | None,
) -> list[OutboxMessage]:
    """Insert rows in the open transaction, or in one of their own. May block: for a key, until others have committed.

    :param bodies: each encoded, and whether it is JSON
    :param key: "" for none
    :param wrapped: whether each gets the envelope
    :param extensions: further attributes of envelopes
    :param check: called with each body as it will be sent; if it raises, nothing is inserted
    """
    with transaction.atomic(using=using):
        last = _advance(topic, key, len(bodies), using) if key else None
        now = timezone.now()
        rows = []
        for number, (body, is_json) in enumerate(bodies):
            sequence = None if last is None else last - len(bodies) + 1 + number
            if wrapped:
                body = envelope.wrap(
                    body, is_json=is_json, topic=topic, key=key, sequence=sequence, extensions=extensions
                )
                check(body)
            rows.append(
                OutboxMessage(
                    topic=topic,
                    key=key,
                    sequence=sequence,
                    shard=shard_of(topic, key, is_deferred=defer is not None),
                    body=body,
                    created_at=now,
                    due_at=None if defer is None else now + timedelta(seconds=defer),
                )
            )
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
