"""Combines concurrent publishes into one MPUB per topic.

A batch is open until the control loop's next pass (or for ``linger`` seconds), until it is full, or until the deadline
of a member is near. Each member is a PUB that keeps its own caller, deadline and outcome; members whose caller is gone
when the batch leaves are left out. nsqd accepts an MPUB whole or not at all: if it refuses one, the members are sent
again as they are, so that only the invalid one fails.
"""

from __future__ import annotations

import math
import time

from gnsq_like.errors import NotSent, PublishRefused
from gnsq_like.options import ProducerOptions
from gnsq_like.producer.encoder import COUNT_BYTES, mpub_of
from gnsq_like.producer.publish import BatchOwner, Publish
from gnsq_like.runtime.pending_reply import PendingReply

#: A batch of this size leaves at once if nothing is unanswered, so that nsqd works on it while more publishes are added
#: to the next. [A hundred greenlets: 10 % more per second; 20 to 50 differ little.]
_EARLY_COUNT = 32


class PublishBatch(Publish):
    """Publishes sent as one MPUB; its deadline is the last of theirs, which each of them meets by itself.

    :param line: the first line of each, with their topic
    :param closes_at: monotonic time when it leaves
    """

    __slots__ = ("_batching", "bytes", "closes_at", "line", "members")

    def __init__(self, pool: BatchOwner, line: bytes, closes_at: float, batching: Batching) -> None:
        super().__init__(pool, b"", 0.0, count=0)  # 0, because each member counts itself
        self.line = line
        self._batching = batching
        self.members: list[Publish] = []
        #: Size of its MPUB's body.
        self.bytes = COUNT_BYTES
        self.closes_at = closes_at

    def encode(self) -> bytes:
        """The MPUB of all members that are not done; empty if there are none."""
        members = self.members = [member for member in self.members if not member.done]
        if not members:
            self.forget()
            return b""
        skipped = len(self.line)
        return mpub_of(self.line, len(members), b"".join([memoryview(each.command)[skipped:] for each in members]))

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

    def __init__(self, pool: BatchOwner, options: ProducerOptions) -> None:
        self._pool = pool
        self._most_count = options.max_batch_count
        self._most_bytes = min(options.max_batch_bytes, options.max_body_bytes)
        self._linger = options.linger
        #: By the line of their publishes.
        self._open: dict[bytes, PublishBatch] = {}

    @property
    def held(self) -> int:
        """The number of publishes in open batches."""
        return sum(len(batch.members) for batch in self._open.values())

    def add(self, member: Publish, now: float) -> None:
        """Add a PUB to its topic's batch."""
        if member.done:
            return
        line = member.command[: member.command.index(b"\n") + 1]
        size = len(member.command) - len(line)
        batch = self._open.get(line)
        if batch is not None and batch.bytes + size > self._most_bytes:
            self._close(batch)
            batch = None
        if batch is None:
            batch = self._open[line] = PublishBatch(self._pool, line, now + self._linger, self)
        batch.members.append(member)
        member.carrier = batch
        batch.bytes += size
        batch.deadline = max(batch.deadline, member.deadline)
        self._pool.watch(member)
        count = len(batch.members)
        is_full = count >= self._most_count or batch.bytes >= self._most_bytes
        is_early = count == _EARLY_COUNT and not self._linger and not self._pool.unanswered_count
        if is_full or is_early or member.deadline < batch.closes_at:
            self._close(batch)
        elif self._linger:
            self._pool.control.by(batch.closes_at, self.close_due)
        else:
            self._pool.control.soon(self.close_due)

    def close_due(self) -> None:
        """Send the batches that have been open long enough."""
        self.flush(time.monotonic())

    def flush(self, now: float = math.inf) -> None:
        """Send the batches that are due by this time; all of them by default."""
        for batch in list(self._open.values()):
            if batch.closes_at <= now:
                self._close(batch)
            else:
                self._pool.control.by(batch.closes_at, self.close_due)

    def _close(self, batch: PublishBatch) -> None:
        del self._open[batch.line]
        if len(batch.members) > 1:
            self._pool.send(batch, time.monotonic())
        else:
            self.send_alone(batch.members[0])
            batch.forget()

    def send_alone(self, member: Publish) -> None:
        """Send a member by itself: no other publish joined it, or nsqd has refused its batch."""
        member.carrier = None
        if member.is_abandoned:
            member.settle(NotSent("its caller is gone"))
        else:  # one that is done is not written
            self._pool.send(member, time.monotonic())

    def let_go(self) -> None:
        """In a forked child: drop all open batches."""
        self._open.clear()
