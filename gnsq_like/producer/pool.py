"""Pending publishes: batches, the queue, the choice of an nsqd, and retries.

A publish is sent at once by its caller if a connection has room: to the nsqds in turn. Otherwise it is queued, and the
control loop sends it when something changes: a new connection, room on one, the time for another try to connect. The
caller is woken only once, with the outcome. A publish that nsqd does not have (NotSent) is queued again until its
deadline. A refusal is passed to the caller, and so is an unknown outcome, unless ``retry_unknown`` accepts the risk of
a duplicate.

With ``fail_fast``, publishes fail at once while fewer nsqds are left than a publish needs (``_check_away``). An nsqd is
away if the last try to connect to it failed, or if it is connected but doubted; one whose first try is under way is
not. Nothing fails at once before the first round of discovery has ended, because it may find other nsqds. Meanwhile
nsqds are redialled, at least twice a second, even those with a doubted connection. Publishes are sent again when
enough nsqds have answered IDENTIFY, or send something on the doubted connection again.

Rules for editors: a Pool may be made in any thread; its methods are called in that of its hub. Only ``drain`` and
``close`` may switch. A publish in the queue has ``sent_to`` None.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable

from gnsq_like.addresses import Address
from gnsq_like.errors import NotRunning, NotSent, NSQError, OutcomeUnknown, PublishRefused
from gnsq_like.options import ProducerOptions
from gnsq_like.producer.destinations import Destination, Discovery
from gnsq_like.producer.publish import COUNT_BYTES, Awake, Group, Publish, PublishCounts, mpub_of
from gnsq_like.runtime import owner
from gnsq_like.runtime.control_loop import ControlLoop
from gnsq_like.runtime.dispatcher import HookRunner, log_soon
from gnsq_like.runtime.hub_calls import HubHandle
from gnsq_like.runtime.native import draw
from gnsq_like.runtime.pending_reply import PendingReply

logger = logging.getLogger(__name__)

_CLOSED = "the Producer was closed before this was sent"
#: Seconds of lateness from which the hub is considered to have been blocked.
_HELD_UP = 0.01
#: Seconds between two looks at all deadlines, at least: of many unanswered publishes, each may have another one.
_EXPIRY_SPACING = 0.02
#: Seconds between two looks while publishes fail at once, at most: nothing reports a heartbeat of a doubted nsqd.
_AWAY_INTERVAL = 0.5
#: With more nsqds than this, the first publishes of one iteration of the hub go to one nsqd each, further ones in
#: groups: a write for each of a hundred costs more than all the rest.
_FEW = 8
_SINGLE = 4
_GROUP = 16
#: A batch of this size leaves at once if nothing is unanswered, so that nsqd works on it while more publishes are added
#: to the next. [A hundred greenlets: 10 % more per second; 20 to 50 differ little.]
_EARLY_COUNT = 32


class Turns:
    """The position at which the search for the next nsqd begins."""

    def __init__(self) -> None:
        self.position = 0
        #: Where the last publish was sent, in which iteration of the hub, after how many others.
        self.last: Destination | None = None
        self._iteration = 0.0
        self._count = 0

    def last_of_group(self, iteration: float, count: int) -> Destination | None:
        """The nsqd of the last publish, if the next one belongs to its group.

        :param iteration: the loop's time, which it reads once in each
        :param count: how many nsqds there are
        """
        if iteration != self._iteration:
            if self._count > _SINGLE:
                self.position = int(draw() * count)  # or the groups would go to the same nsqds again and again
            self._iteration, self._count = iteration, 0
        self._count += 1
        return self.last if self._count > _SINGLE and self._count % _GROUP else None


class Pool:
    """The pending publishes of a Producer, and its nsqds; made by its first publish, until a fork or the thread's end.

    :param addresses: the fixed nsqds
    :param lookupds: nsqlookupds to poll for further nsqds
    :param hub_handle: the hub in which all of this runs
    :param counts: of the Producer's messages
    """

    def __init__(
        self,
        addresses: Iterable[Address],
        lookupds: list[str],
        options: ProducerOptions,
        hooks: HookRunner,
        hub_handle: HubHandle,
        counts: PublishCounts,
    ) -> None:
        self.options = options
        self.hub_handle = hub_handle
        self.hooks = hooks
        self.counts = counts
        self.discovery = Discovery(addresses, lookupds, self)
        self._turns = Turns()
        #: Publishes that wait for a connection or for room, oldest first.
        self.queue: deque[Publish] = deque()
        #: Replies, and the conditions under which they are settled; looked at after each answer.
        self.awaited: dict[PendingReply, Callable[[], bool]] = {}
        #: The publishes of this hub's greenlets that are done.
        self.awake = Awake(hub_handle.hub.loop)
        #: The publishes that end at their deadlines unless they are settled before, wherever they are; in their order.
        self.pending: dict[Publish, None] = {}
        #: The earliest of their deadlines, or earlier.
        self._expires_at = math.inf
        self.control = ControlLoop("Producer", self._look)
        #: Why publishes fail at once (``fail_fast``), and the monotonic time since which they do; None otherwise.
        self.away: str | None = None
        self.away_since: float | None = None
        self.batching = Batching(self) if options.batching else None
        #: Whether ``begin`` runs: a signal handler that interrupts it must begin no other, because each publish would
        #: take the other's answer, or wait for one that never comes.
        self.beginning = False
        self.stopped = False

    # -- sending ------------------------------------------------------------------------------------

    def begin(self, publish: Publish, now: float) -> None:
        """Send a publish, or add it to a batch. Never switches."""
        try:
            self.beginning = True
            if self.batching is not None and self.away is None and publish.command.startswith(b"PUB "):
                self.batching.add(publish, now)
            else:
                self.submit(publish, now)
                self.watch(publish)  # last, because that costs no time while nsqd works on its answer
        finally:
            self.beginning = False

    def submit(self, publish: Publish, now: float) -> None:
        """Send a publish or a batch, or copies of it to several nsqds, or queue it. Never switches."""
        if self.options.replicas > 1 and publish.group is None:
            if not publish.done:  # else its caller is gone
                publish.carrier = group = Group(self, publish, self.options)
                group.send(now)
            return
        may_send = self.away is None and (not self.queue or publish.group is not None)
        if not (may_send and self._send(publish, now)):
            self._enqueue(publish)
            self.changed()

    def _send(self, publish: Publish, now: float) -> bool:
        """Send a publish to the next nsqd in turn that takes it. Returns whether one does."""
        destinations, turns = self.discovery.destinations, self._turns
        count = len(destinations)
        if count == 1 and publish.group is None:
            return destinations[0].send(publish, now)
        if count > _FEW and publish.group is None:
            last = turns.last_of_group(self.hub_handle.hub.loop.now(), count)
            # It may have left the list since, and must not be dialled then.
            if last is not None and last.usable and last.send(publish, now):
                return True
        taken = () if publish.group is None else publish.group.taken
        doubted: list[Destination] = []
        for step in range(count):
            position = (turns.position + step) % count
            destination = destinations[position]
            if destination.name in taken:
                continue
            if destination.connected and destination.doubted:
                doubted.append(destination)
            elif destination.send(publish, now):
                turns.position = position + 1
                turns.last = destination
                return True
        return any(destination.send(publish, now) for destination in doubted)

    def _enqueue(self, publish: Publish) -> None:
        refusal = _CLOSED if self.stopped else self.away
        if refusal is not None:
            publish.settle(publish.doubt or NotSent(refusal))
            return
        publish.sent_to = None
        self.queue.append(publish)
        self.discovery.begin()

    def failed(self, publish: Publish, error: Exception) -> None:
        """A try failed: try again, or settle the publish. Never switches."""
        again = isinstance(error, NotSent)
        if isinstance(error, OutcomeUnknown):
            publish.doubt = error
            again = self.options.retry_unknown
        if again and not self.stopped and publish.deadline > time.monotonic():
            self.counts.retried += 1
            self._enqueue(publish)
            self.changed()
            return
        if isinstance(error, PublishRefused):
            error = PublishRefused(error.error, error.address, publish.description)
        publish.settle(publish.doubt or error)

    # -- the control loop ---------------------------------------------------------------------------

    def changed(self) -> None:
        """Something happened that may let queued publishes be sent, or removed. Never switches."""
        self.control.soon(self._pump)

    def watch(self, publish: Publish) -> None:
        """Have a publish expire at its deadline. Never switches."""
        if publish.done:
            return
        self.pending[publish] = None
        if publish.deadline < self._expires_at:
            self.control.start()  # here, because it must be in this thread
            self._expires_at = publish.deadline
            self.control.by(publish.deadline, self._expire)

    def _look(self) -> None:
        """Once a second: check everything, and make up for work that was interrupted."""
        self.awake.resume()
        if self._expires_at < math.inf:
            self.control.by(self._expires_at, self._expire)
        if self.batching is not None:
            self.batching.close_due()
        self.discovery.look_for_outages()
        if self.queue:
            self.discovery.begin()
        self._pump()

    def _expire(self) -> None:
        now = time.monotonic()
        if self.control.late > _HELD_UP:
            # Everything in this process was held up. Answers that came meanwhile are read first: the hub polls before.
            self.control.by(now, self._expire)
            return
        # Until all were looked at, it is due.
        self._expires_at, earliest = now, math.inf
        for publish in list(self.pending):
            if publish.done:
                self.pending.pop(publish, None)  # its caller is gone
            elif publish.deadline <= now:
                publish.expire()
            else:
                earliest = min(earliest, publish.deadline)
        self._expires_at = max(earliest, now + _EXPIRY_SPACING)
        if self._expires_at < math.inf:
            self.control.by(self._expires_at, self._expire)
        self._pump()

    def _pump(self) -> None:
        """Send queued publishes, as far as there is room."""
        if self.stopped:
            return
        now = time.monotonic()
        self._check_away(now)
        queue = self.queue
        passed: list[Publish] = []
        try:
            while queue:
                publish = queue.popleft()
                if publish.done or self._send(publish, now):
                    continue
                passed.append(publish)
                if publish.group is None:  # a copy is passed over: others may use nsqds that it must avoid
                    break
        finally:
            queue.extendleft(passed[::-1])
        if queue:
            # An nsqd that was due and was not dialled is avoided by all waiting publishes.
            diallers = [each.dialler for each in self.discovery.destinations if not each.connected]
            times = [at for each in diallers if (at := each.next_try) is not None]
            if times:
                self.control.by(min(times), self._pump)
        for reply in [reply for reply, holds in self.awaited.items() if holds()]:
            del self.awaited[reply]
            reply.settle()

    def _check_away(self, now: float) -> None:
        """With ``fail_fast``: let publishes fail at once, or be sent again, from now on."""
        if not self.options.fail_fast:
            return
        destinations, needed = self.discovery.destinations, self.options.needed
        left = [destination.name for destination in destinations if not destination.away]
        if sum(destination.usable for destination in destinations) >= needed:
            if self.away_since is not None:
                log_soon(logger.warning, "publishes are sent again, after %.1f s", now - self.away_since)
            self.away = self.away_since = None
        elif self.away is None and (len(left) >= needed or not self.discovery.surveyed):
            for destination in destinations:
                if not destination.connected:
                    destination.connect(now)
        else:
            which = "every nsqd is unreachable" if needed == 1 else f"fewer than {needed} nsqds are left"
            self.away = f"{which}: {self.why(but=left)}"
            if self.away_since is None:
                self.away_since = now
                self.discovery.hurry()
                log_soon(logger.warning, "publishes fail at once from now on: %s", self.away)
            due = [destination.connect(now) for destination in destinations if not destination.usable]
            self.control.by(min([now + _AWAY_INTERVAL, *due]), self._pump)
            if self.batching is not None:
                self.batching.flush()
            self._fail_queued(self.away)

    def _fail_queued(self, reason: str) -> None:
        while self.queue:
            publish = self.queue.popleft()
            publish.settle(publish.doubt or NotSent(reason))

    # -- room ---------------------------------------------------------------------------------------

    def when(self, condition: Callable[[], bool], reply: PendingReply | None = None) -> PendingReply:
        """Settle ``reply``, or a new one, as soon as the condition holds; returns it. Never switches."""
        reply = reply or PendingReply()
        self.awaited[reply] = condition
        self.changed()
        return reply

    @property
    def unanswered_count(self) -> int:
        """The number of commands that nsqd has not answered."""
        return sum(len(each.connection.unanswered) for each in self.discovery.destinations if each.connection)

    @property
    def pending_count(self) -> int:
        """The number of publishes queued, in open batches, or unanswered; abandoned ones count until answered."""
        held = 0 if self.batching is None else self.batching.held
        return len(self.queue) + held + self.unanswered_count

    def why(self, but: Collection[str] = ()) -> str:
        """The reason why nothing could be sent, for an error's text.

        :param but: the addresses of nsqds that it was sent to
        """
        reasons = [each.why() for each in self.discovery.destinations if each.name not in but]
        return "; ".join(reasons or self.discovery.why_none(but))

    # -- what its parts report ----------------------------------------------------------------------

    def doubt(self, address: str) -> None:
        """A publish to this nsqd was not answered in time. Never switches."""
        for destination in self.discovery.destinations:
            if destination.name == address:
                destination.doubt()
        self._check_away(time.monotonic())  # now: the caller may publish again before the control loop runs

    def lost(self, destination: Destination, error: NSQError | None) -> None:
        """A connection has ended; its unanswered publishes are already settled. Never switches."""
        self.hooks.call("on_disconnect", destination.name, error)
        if not self.stopped:
            self.discovery.lost(destination)
        self.changed()

    # -- the end ------------------------------------------------------------------------------------

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is pending; False after ``timeout`` seconds. May switch."""
        if self.batching is not None:
            self.batching.flush()
        return not self.pending_count or self.when(lambda: not self.pending_count).wait(timeout)

    def close(self, timeout: float) -> bool:
        """Drain, and close everything then; what is still pending gets its error. May switch."""
        try:
            return self.drain(timeout)
        finally:
            self.stopped = True
            self.discovery.stop()
            self._fail_queued(_CLOSED)
            for reply in self.awaited:
                reply.settle(NotRunning("the Producer is closed"))
            self.awaited.clear()
            for destination in self.discovery.destinations:
                destination.close()
            self.control.stop()
            self.hooks.join(1.0)

    def let_go(self, loop_lives: bool) -> None:
        """Drop everything in a forked child, or after the end of this thread. From any thread; never switches.

        :param loop_lives: see ``owner``; if not, nothing of it runs any more
        """
        self.stopped = True
        if loop_lives:
            self.control.abandon()
            self.pending.clear()
            self.queue.clear()
            if self.batching is not None:
                self.batching.let_go()
            self.discovery.forked_child()
        else:
            owner.keep(self.control)
        for destination in self.discovery.destinations:
            destination.let_go(loop_lives)


class PublishBatch(Publish):
    """Publishes sent as one MPUB; its deadline is the last of theirs, which each of them meets by itself.

    :param line: the first line of each, with their topic
    :param closes_at: monotonic time when it leaves
    """

    __slots__ = ("_batching", "bytes", "closes_at", "line", "members")

    def __init__(self, pool: Pool, line: bytes, closes_at: float, batching: Batching) -> None:
        super().__init__(pool, b"", 0.0, count=0)  # 0, because each member counts itself
        self.line = line
        self._batching = batching
        self.members: list[Publish] = []
        #: Size of its MPUB's body.
        self.bytes = COUNT_BYTES
        self.closes_at = closes_at

    def encode(self) -> bytes:
        """The MPUB of all members that are not done; empty if there are none."""
        for member in self.members:
            if member.is_abandoned:
                member.doubt = member.doubt or self.doubt
                member.leave_out()
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
    """Combines concurrent publishes of a pool into one MPUB per topic. Nothing here switches.

    A batch is open until the control loop's next pass (or for ``linger`` seconds), until it is full, or until the
    deadline of a member is near. Each member is a PUB that keeps its own caller, deadline and outcome; members whose
    caller is gone when the batch leaves are left out. nsqd accepts an MPUB whole or not at all: if it refuses one, the
    members are sent again as they are, so that only the invalid one fails.
    """

    def __init__(self, pool: Pool) -> None:
        options = pool.options
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
            self._pool.submit(batch, time.monotonic())
        else:
            self.send_alone(batch.members[0])
            batch.forget()

    def send_alone(self, member: Publish) -> None:
        """Send a member by itself: no other publish joined it, or nsqd has refused its batch."""
        member.carrier = None
        if member.is_abandoned:
            member.leave_out()
        else:  # one that is done is not written
            self._pool.submit(member, time.monotonic())

    def let_go(self) -> None:
        """In a forked child: drop all open batches."""
        self._open.clear()
