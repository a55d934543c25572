"""Combines concurrent publishes into one MPUB per topic.

A batch is open until the control loop's next pass (or for ``linger`` seconds), until it is full, or until the deadline
of a member is near. Each member keeps its own caller, deadline and outcome; members whose caller is gone when the batch
leaves are left out. nsqd accepts an MPUB whole or not at all: if it refuses one, the members are sent again as single
PUBs, so that only the invalid one fails.
"""

from __future__ import annotations

import time

from gnsq_like.errors import NotSent, PublishRefused
from gnsq_like.options import ProducerOptions
from gnsq_like.producer.encoder import COUNT_BYTES, SIZE_BYTES, Encoder
from gnsq_like.producer.publish import BatchOwner, Publish
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.wire.names import encode_topic

#: A batch of this size leaves at once if nothing is unanswered, so that nsqd works on it while more publishes are added
#: to the next. [A hundred greenlets: 10 % more per second; 20 to 50 differ little.]
_EARLY_COUNT = 32


class Member(Publish):
    """One message of a batch."""

    __slots__ = ("body", "topic")

    def __init__(self, pool: BatchOwner, topic: str, body: bytes, deadline: float) -> None:
        super().__init__(pool, b"", deadline)
        self.topic = topic
        self.body = body


class PublishBatch(Publish):
    """Members sent as one MPUB; its deadline is the last of theirs, which each of them meets by itself.

    :param closes_at: monotonic time when it leaves
    """

    __slots__ = ("_batching", "bytes", "closes_at", "members", "topic")

    def __init__(self, pool: BatchOwner, topic: str, closes_at: float, batching: Batching) -> None:
        super().__init__(pool, b"", 0.0, count=0)  # 0, because each member counts itself
        self.topic = topic
        self._batching = batching
        self.members: list[Member] = []
        #: Size of its MPUB's body.
        self.bytes = COUNT_BYTES
        self.closes_at = closes_at

    def add(self, member: Member) -> None:
        """Add a message. Never switches."""
        self.members.append(member)
        member.carrier = self
        self.bytes += SIZE_BYTES + len(member.body)
        self.deadline = max(self.deadline, member.deadline)

    def encode(self) -> bytes:
        """The MPUB of all members that are not done; empty if there are none."""
        members = [member for member in self.members if not member.done]
        self.members = members
        if not members:
            self.forget()
            return b""
        return self._batching.encoder.mpub(self.topic, [member.body for member in members])

    def settle(self, error: Exception | None = None) -> None:
        """Settle the batch and all its members. Never switches."""
        if self.done:
            return
        if isinstance(error, PublishRefused) and len(self.members) > 1:
            for member in self.members:
                self._batching.send_alone(member)
        elif error is not None:
            for member in self.members:
                member.settle(error)
        else:
            self.owner.counts.confirmed += self.confirm_all(self.members)
            for member in self.members:
                if member.is_abandoned:
                    member.settle(None)
        PendingReply.settle(self, error)


class Batching:
    """Collects publishes into batches; one per pool. Nothing here switches."""

    def __init__(self, pool: BatchOwner, options: ProducerOptions, encoder: Encoder) -> None:
        self.encoder = encoder
        self._pool = pool
        self._most_count = options.max_batch_count
        self._most_bytes = min(options.max_batch_bytes, options.max_body_bytes)
        self._linger = options.linger
        self._open: dict[str, PublishBatch] = {}

    @property
    def held(self) -> int:
        """The number of publishes in open batches."""
        return sum(len(batch.members) for batch in self._open.values())

    def add(self, member: Member, now: float) -> None:
        """Add a message to its topic's batch."""
        if member.done:
            return
        batch = self._open.get(member.topic)
        if batch is not None and batch.bytes + SIZE_BYTES + len(member.body) > self._most_bytes:
            self._close(batch)
            batch = None
        if batch is None:
            encode_topic(member.topic)
            batch = self._open[member.topic] = PublishBatch(self._pool, member.topic, now + self._linger, self)
        batch.add(member)
        self._pool.watch(member)
        count = len(batch.members)
        is_full = count >= self._most_count or batch.bytes >= self._most_bytes
        if self._linger:
            leaves = is_full or member.deadline < now + self._linger
        else:
            leaves = is_full or (count == _EARLY_COUNT and not self._pool.unanswered_count)
        if leaves:
            self._close(batch)
        elif self._linger:
            self._pool.control.by(batch.closes_at, self.close_due)
        else:
            self._pool.control.soon(self.flush)

    def close_due(self) -> None:
        """Send the batches that have been open long enough."""
        now = time.monotonic()
        for batch in list(self._open.values()):
            if batch.closes_at <= now:
                self._close(batch)
            else:
                self._pool.control.by(batch.closes_at, self.close_due)

    def flush(self) -> None:
        """Send all open batches, regardless of ``linger``."""
        for batch in list(self._open.values()):
            self._close(batch)

    def _close(self, batch: PublishBatch) -> None:
        del self._open[batch.topic]
        if len(batch.members) > 1:
            self._pool.send(batch, time.monotonic())
        else:
            self.send_alone(batch.members[0])
            batch.forget()

    def send_alone(self, member: Member) -> None:
        """Send a member as a PUB: no other publish joined it, or nsqd has refused its batch."""
        member.carrier = None
        if member.is_abandoned:
            member.settle(NotSent("its caller is gone"))
        else:  # one that is done is not written
            member.command = self.encoder.pub_of(member.topic, member.body)
            self._pool.send(member, time.monotonic())

    def let_go(self) -> None:
        """In a forked child: drop all open batches."""
        self._open.clear()
