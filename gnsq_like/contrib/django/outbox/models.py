"""The tables of the outbox; ``gnsq_like.contrib.shared.outbox`` explains them."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils import timezone

from gnsq_like.contrib.shared.outbox.rows import MAX_KEY_CHARS

#: Of NSQ's names, docs/internals 1.1.
_MAX_TOPIC_CHARS = 64

_UNPUBLISHED = models.Q(published_at=None)


class OutboxMessage(models.Model):
    """A message to be published when its transaction has committed."""

    id = models.BigAutoField(primary_key=True)
    topic = models.CharField(max_length=_MAX_TOPIC_CHARS)
    #: "" for none.
    key = models.CharField(max_length=MAX_KEY_CHARS, blank=True, default="")
    #: Among the messages with this topic and key, without gaps; None without a key.
    sequence = models.BigIntegerField(null=True, blank=True)
    #: See ``shard_of``.
    shard = models.PositiveSmallIntegerField()
    #: As it is sent, with the envelope if it has one.
    body = models.BinaryField()
    created_at = models.DateTimeField(default=timezone.now)
    #: Of a deferred message: when it is published.
    due_at = models.DateTimeField(null=True, blank=True)
    #: When nsqd has confirmed it; such rows are deleted after the setting OUTBOX_KEEP.
    published_at = models.DateTimeField(null=True, blank=True)
    #: Why nsqd, or the Producer, has refused it so far.
    refused = models.TextField(null=True, blank=True)

    class Meta:
        app_label = "gnsq_like_outbox"
        verbose_name = "message"
        indexes: ClassVar = [
            models.Index(fields=["shard", "id"], name="nsq_outbox_unpublished", condition=_UNPUBLISHED),
            models.Index(
                fields=["due_at"], name="nsq_outbox_due", condition=_UNPUBLISHED & models.Q(due_at__isnull=False)
            ),
            models.Index(
                fields=["published_at"], name="nsq_outbox_published", condition=models.Q(published_at__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.key} {self.sequence}" if self.key else f"{self.topic} {self.pk}"


class OutboxSequence(models.Model):
    """The last number of a topic and key. Its lock, held until the commit, orders the transactions of a key."""

    id = models.BigAutoField(primary_key=True)
    topic = models.CharField(max_length=_MAX_TOPIC_CHARS)
    key = models.CharField(max_length=MAX_KEY_CHARS)
    last = models.BigIntegerField(default=0)

    class Meta:
        app_label = "gnsq_like_outbox"
        verbose_name = "sequence"
        constraints: ClassVar = [models.UniqueConstraint(fields=["topic", "key"], name="nsq_outbox_sequence")]

    def __str__(self) -> str:
        return f"{self.topic} {self.key} {self.last}"
