"""Pending publishes: the queue, the choice of an nsqd, and retries.

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
from gnsq_like.producer.batching import Batching
from gnsq_like.producer.destinations import Destination, Discovery
from gnsq_like.producer.publish import Awake, Group, Publish, PublishCounts
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
        self.awaited: list[tuple[PendingReply, Callable[[], bool]]] = []
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
        #: Sends publishes or batches: ``submit``, or copies of it by that.
        self.send: Callable[[Publish, float], None] = self.submit
        if options.replicas > 1:
            self.send = self._send_copies
        #: The number of nsqds that must confirm a publish.
        self._needed = options.replicas if options.quorum is None else options.quorum
        self.batching = Batching(self, options) if options.batching else None
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
                self.send(publish, now)
                self.watch(publish)  # last, because that costs no time while nsqd works on its answer
        finally:
            self.beginning = False

    def submit(self, publish: Publish, now: float) -> None:
        """Send a publish, or queue it. Never switches."""
        may_send = self.away is None and (not self.queue or publish.group is not None)
        if not (may_send and self._send(publish, now)):
            self._enqueue(publish)
            self.changed()

    def _send_copies(self, publish: Publish, now: float) -> None:
        """Send a publish to several nsqds. Never switches."""
        if not publish.done:  # else its caller is gone
            publish.carrier = group = Group(self, publish, self.options.replicas, self._needed)
            group.send(now)

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
        self._check_awaited()

    def _check_away(self, now: float) -> None:
        """With ``fail_fast``: let publishes fail at once, or be sent again, from now on."""
        if not self.options.fail_fast:
            return
        destinations, needed = self.discovery.destinations, self._needed
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
        self.awaited.append((reply, condition))
        self.changed()
        return reply

    def _check_awaited(self) -> None:
        for awaited in list(self.awaited):
            reply, condition = awaited
            if condition():
                self.awaited.remove(awaited)
                reply.settle()

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
            for reply, _ in self.awaited:
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
