"""Combines concurrent publishes into one MPUB per topic.

A batch is open until the hub's next iteration (or for ``linger`` seconds), until it is full, or until the deadline of a
member is near. Each member keeps its own caller, deadline and outcome; members whose caller is gone when the batch
leaves are left out. nsqd accepts an MPUB whole or not at all: if it refuses one, the members are sent again as single
PUBs, so that only the invalid one fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from gnsq_like.errors import NotSent, PublishRefused
from gnsq_like.options import ProducerOptions
from gnsq_like.producer.encoder import COUNT_BYTES, SIZE_BYTES, Encoder
from gnsq_like.producer.publish import Publish, PublishOwner
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.runtime.timer import Soon, Timer
from gnsq_like.wire.names import encode_topic

#: A batch of this size leaves at once if nothing is unanswered, so that nsqd works on it while more publishes are added
#: to the next. [A hundred greenlets: 10 % more per second; 20 to 50 differ little.]
_EARLY_COUNT = 32

#: Sends publishes or batches at a monotonic time: the pool's ``submit``, or that of ``replicas``.
Submit = Callable[[Publish, float], None]


class Member(Publish):
    """One message of a batch."""

    __slots__ = ("body", "topic")

    def __init__(self, pool: PublishOwner, topic: str, body: bytes, deadline: float) -> None:
        super().__init__(pool, b"", deadline)
        self.topic = topic
        self.body = body


class PublishBatch(Publish):
    """Members sent as one MPUB."""

    __slots__ = ("_batching", "bytes", "linger", "members", "topic")

    def __init__(self, pool: PublishOwner, topic: str, deadline: float, batching: Batching) -> None:
        # The deadline is the nearest of its members. Count 0, because each member counts itself.
        super().__init__(pool, b"", deadline, count=0)
        self.topic = topic
        self._batching = batching
        self.members: list[Member] = []
        #: Size of its MPUB's body.
        self.bytes = COUNT_BYTES
        #: Closes the batch after ``linger`` seconds; None without that option.
        self.linger: Timer | None = None

    @property
    def last_deadline(self) -> float:
        return max(member.deadline for member in self.members)

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
            self._batching.send_singly(self.members)
        elif error is not None:
            for member in self.members:
                member.settle(error)
        else:
            self.owner.counts.confirmed += self.confirm_all(self.members)
            for member in self.members:
                if member.is_abandoned:
                    member.settle(None)
        PendingReply.settle(self, error)  # last: until then, its deadline is that of its members

    def expire(self) -> None:
        """The nearest deadline of its members has passed. Never switches."""
        now = time.monotonic()
        for member in self.members:
            if member.deadline <= now and not member.done:
                member.expire()
        self.set_deadline()

    def set_deadline(self) -> None:
        """Watch the nearest deadline of its members; the others are close to it. Never switches."""
        left = [member.deadline for member in self.members if not member.done]
        if left:
            self.deadline = min(left)
            self._batching.watch(self)


class BatchDeadline:
    """A batch's deadline as it was when it was watched: the queue of deadlines needs it in its place.

    The batch's own moves when a member comes or is out of time.
    """

    __slots__ = ("_batch", "deadline")

    def __init__(self, batch: PublishBatch) -> None:
        self._batch = batch
        self.deadline = batch.deadline

    @property
    def done(self) -> bool:
        """Whether the batch has no deadline any more, or another one."""
        return self._batch.done or self._batch.deadline != self.deadline

    def expire(self) -> None:
        """It has passed. Never switches."""
        self._batch.expire()


class Batching:
    """Collects publishes into batches; one per pool.

    :param submit: sends a batch, or a member that is alone
    """

    def __init__(self, pool: PublishOwner, options: ProducerOptions, encoder: Encoder, submit: Submit) -> None:
        self.encoder = encoder
        self._pool = pool
        self._submit = submit
        self._flush_soon = Soon(pool.hub.loop, self.flush)
        self._most_count = options.max_batch_count
        self._most_bytes = min(options.max_batch_bytes, options.max_body_bytes)
        self._linger = options.linger
        self._open: dict[str, PublishBatch] = {}

    @property
    def held(self) -> int:
        """The number of publishes in open batches."""
        return sum(len(batch.members) for batch in self._open.values())

    def add(self, member: Member) -> None:
        """Add a message to its topic's batch. Never switches."""
        if member.done:
            return
        added = SIZE_BYTES + len(member.body)
        batch = self._open.get(member.topic)
        if batch is not None and batch.bytes + added > self._most_bytes:
            self._close(batch)
            batch = None
        if batch is None:
            batch = self._begin(member)
        members = batch.members
        members.append(member)
        member.carrier = batch
        batch.bytes += added
        if member.deadline < batch.deadline:
            batch.deadline = member.deadline
            self.watch(batch)
        if (
            len(members) >= self._most_count
            or batch.bytes >= self._most_bytes
            or (self._linger and member.deadline < time.monotonic() + self._linger)
            or (len(members) == _EARLY_COUNT and not self._linger and not self._pool.nsqds.unanswered_count)
        ):
            self._close(batch)
        if self._open and not self._linger:
            self._flush_soon()

    def _begin(self, member: Member) -> PublishBatch:
        encode_topic(member.topic)
        batch = PublishBatch(self._pool, member.topic, member.deadline, self)
        self._open[member.topic] = batch
        self.watch(batch)
        if self._linger:
            batch.linger = Timer(partial(self._close, batch))
            batch.linger.set(self._linger)
        return batch

    def flush(self) -> None:
        """Send all open batches, regardless of ``linger``. Never switches."""
        for batch in list(self._open.values()):
            self._close(batch)

    def watch(self, batch: PublishBatch) -> None:
        """Watch the batch's deadline as it is now. Never switches."""
        self._pool.deadlines.add(BatchDeadline(batch))

    def _close(self, batch: PublishBatch) -> None:
        """Send a batch. Never switches."""
        try:
            self._open.pop(batch.topic, None)
            if batch.linger is not None:
                batch.linger.cancel()
            if len(batch.members) == 1:
                self._alone(batch.members[0])
                batch.forget()
                return
            self._submit(batch, time.monotonic())
        except BaseException:  # a signal handler has raised: nothing else would settle those not sent
            self._open.pop(batch.topic, None)
            for member in batch.members:
                if not member.is_sent:
                    member.settle(member.too_late())
            raise

    def look(self) -> None:
        """Go on, if a signal handler that raised has interrupted this. Never switches."""
        if self._open and not self._linger:
            self._flush_soon()

    def _alone(self, member: Member) -> None:
        member.carrier = None
        if member.is_abandoned:
            member.settle(NotSent("its caller is gone"))
        else:  # one that is done is not written
            member.command = self.encoder.pub_of(member.topic, member.body)
            self._pool.deadlines.add(member)
            self._submit(member, time.monotonic())

    def send_singly(self, members: list[Member]) -> None:
        """Send each member of a refused batch as a PUB. Never switches."""
        for member in members:
            self._alone(member)

    def let_go(self) -> None:
        """In a forked child: drop all open batches."""
        for batch in self._open.values():
            if batch.linger is not None:
                batch.linger.cancel()
        self._open.clear()
