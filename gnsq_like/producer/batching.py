"""Publishes that wait at the same moment, as one MPUB for each topic.

A batch is open until the hub comes round (or for ``linger`` seconds), until it is full, or until one in
it cannot wait. Each member keeps its own caller, deadline and answer; a member whose caller is gone
before the batch leaves is left out of it. nsqd takes an MPUB whole or not at all: when it refuses one,
the members go again singly, so that only the offender fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from gnsq_like.errors import PublishRefused
from gnsq_like.producer.encoder import COUNT_BYTES, SIZE_BYTES, Encoder
from gnsq_like.producer.pool import Pool
from gnsq_like.producer.publish import Publish
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.runtime.timer import Timer
from gnsq_like.wire.names import encode_topic

#: So many go at once where nothing is on its way, although more may come at the same moment: nsqd then works on
#: them meanwhile. [A hundred greenlets: 10 % more a second; 20 to 50 differ little.]
_EARLY_COUNT = 32

#: Sends a Publish, or a batch of them: the pool's submit, or that of ``replicas``.
Submit = Callable[[Publish, float], None]


class Member(Publish):
    """One message of a batch. Who makes one sets ``body``."""

    __slots__ = ("body",)

    body: bytes


class PublishBatch(Publish):
    """Members on their way as one MPUB."""

    __slots__ = ("_batching", "bytes", "linger", "members")

    def __init__(self, pool: Pool, topic: str, batching: Batching) -> None:
        # The nearest deadline of its members, and no count: each member counts itself.
        super().__init__(pool, topic, b"", float("inf"), count=0)
        self._batching = batching
        self.members: list[Member] = []
        #: Of its MPUB's body.
        self.bytes = COUNT_BYTES
        #: Rings when the time that it waits for more is over; None where it does not wait.
        self.linger: Timer | None = None

    def encode(self) -> bytes:
        """The MPUB of those who still want it; empty if nobody does."""
        members = [member for member in self.members if not member.done]
        self.members = members
        if not members:
            self.forget()
            return b""
        return self._batching.encoder.mpub(self.topic, [member.body for member in members])

    def complete(self, error: Exception | None) -> None:
        """The last word for the batch is each member's answer. Never switches."""
        if self.done:
            return
        PendingReply.settle(self, error)
        if isinstance(error, PublishRefused) and len(self.members) > 1:
            self._batching.send_singly(self.members)
            return
        if error is not None:
            for member in self.members:
                member.complete(error)
            return
        self.owner.counts.confirmed += self.settle_all(self.members)
        self.owner.waker.wake_all(self.members)

    def expire(self) -> None:
        """The first of its members' deadlines is here. Never switches."""
        now = time.monotonic()
        for member in self.members:
            if member.deadline <= now and not member.done:
                member.expire()
        self.set_deadline()

    def set_deadline(self) -> None:
        """Watch the nearest deadline of its members, for all of them: they differ little. Never switches."""
        left = [member.deadline for member in self.members if not member.done]
        if left:
            self.deadline = min(left)
            self._batching.watch(self)


class Batching:
    """Gathers publishes; one for each pool.

    :param submit: sends a batch, or a member that goes alone
    """

    def __init__(self, pool: Pool, encoder: Encoder, submit: Submit) -> None:
        options = pool.options
        self.encoder = encoder
        self._pool = pool
        self._submit = submit
        self._loop = pool.hub.loop
        self._most_count = options.max_batch_count
        self._most_bytes = min(options.max_batch_bytes, options.max_body_bytes)
        self._linger = options.linger
        self._open: dict[str, PublishBatch] = {}
        #: Whether the open batches leave when the hub comes round.
        self._due = False
        pool.held = lambda: sum(len(batch.members) for batch in self._open.values())

    def add(self, member: Member) -> None:
        """Put a message into its topic's batch. Never switches."""
        added = SIZE_BYTES + len(member.body)
        batch = self._open.get(member.topic)
        if batch is not None and batch.bytes + added > self._most_bytes:
            self._close(batch)
            batch = None
        if batch is None:
            batch = self._begin(member.topic)
        members = batch.members
        members.append(member)
        member.carrier = batch
        batch.bytes += added
        if member.deadline < batch.deadline:
            batch.deadline = member.deadline
        if (
            len(members) >= self._most_count
            or batch.bytes >= self._most_bytes
            or (self._linger and member.deadline < time.monotonic() + self._linger)
            or (len(members) == _EARLY_COUNT and not self._linger and not self._pool.unanswered_count)
        ):
            self._close(batch)

    def _begin(self, topic: str) -> PublishBatch:
        encode_topic(topic)
        batch = self._open[topic] = PublishBatch(self._pool, topic, self)
        if self._linger:
            batch.linger = Timer(partial(self._close, batch))
            batch.linger.set(self._linger)
        elif not self._due:
            self._due = True
            self._loop.run_callback(self._flush)
        return batch

    def _flush(self) -> None:
        self._due = False
        for batch in list(self._open.values()):
            self._close(batch)

    def watch(self, publish: Publish) -> None:
        """Watch the deadline of a publish. Never switches."""
        self._pool.deadlines.add(publish)

    def flush(self) -> None:
        """Send what has been gathered, whatever ``linger`` says. Never switches."""
        self._flush()

    def _close(self, batch: PublishBatch) -> None:
        """Send a batch. Never switches."""
        if self._open.get(batch.topic) is batch:
            del self._open[batch.topic]
        if batch.linger is not None:
            batch.linger.cancel()
        if len(batch.members) == 1:
            self._alone(batch.members[0])
            return
        self._pool.deadlines.add(batch)
        self._submit(batch, time.monotonic())

    def _alone(self, member: Member) -> None:
        member.carrier = None
        if not member.done:
            member.command = self.encoder.pub(member.topic, member.body)
            self._pool.deadlines.add(member)
            self._submit(member, time.monotonic())

    def send_singly(self, members: list[Member]) -> None:
        """Send each member of a refused batch as a PUB of its own. Never switches."""
        for member in members:
            self._alone(member)

    def forked_child(self) -> None:
        """In a forked child: forget what was gathered."""
        for batch in self._open.values():
            if batch.linger is not None:
                batch.linger.cancel()
        self._open.clear()
