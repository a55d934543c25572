"""Chooses the nsqd for each publish, and decides about retries.

A publish is sent at once by its caller if a connection has room. Otherwise it is queued, and the hub sends it when
something changes: a new connection, room on one, the time for another try to connect. The caller is woken only once,
with the outcome. While the circuit is open (``circuit``) nothing is queued: every publish fails.

A publish that nsqd does not have (NotSent) is queued again until its deadline. A refusal is passed to the
caller, and so is an unknown outcome, unless ``retry_unknown`` accepts the risk of a duplicate.

Rules for editors: a Pool belongs to one hub's thread. Only ``close`` may switch. A publish in the queue has ``sent_to``
None.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from gnsq_like.addresses import Address
from gnsq_like.connection.connection import Connection
from gnsq_like.discovery.redial import Lost
from gnsq_like.errors import NotRunning, NotSent, NSQError, OutcomeUnknown
from gnsq_like.options import ProducerOptions
from gnsq_like.producer.circuit import Circuit
from gnsq_like.producer.deadlines import Deadlines
from gnsq_like.producer.destination import Destination
from gnsq_like.producer.lone_caller import LoneCaller
from gnsq_like.producer.outcomes import PublishCounts, Waker
from gnsq_like.producer.publish import Publish
from gnsq_like.runtime.draws import draw
from gnsq_like.runtime.hook_runner import HookRunner
from gnsq_like.runtime.hub_calls import HubHandle
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.runtime.timer import Soon, Timer

if TYPE_CHECKING:
    from gnsq_like.discovery.lookupd_poller import LookupdPoller

logger = logging.getLogger(__name__)

#: With more nsqds than this, the first publishes of one iteration of the hub go to one nsqd each, further ones in
#: groups: a write for each of a hundred costs more than all the rest.
_FEW = 8
_SINGLE = 4
_GROUP = 16

#: Seconds between two looks at what should have been done.
_LOOK = 1.0

_CLOSED = "the Producer was closed before this was sent"


class Pool:
    """The nsqds of a Producer, and the publishes that wait for one of them.

    :param addresses: the fixed nsqds
    :param lookupds: nsqlookupds to poll for further nsqds
    :param hub_handle: the hub in which all of this runs; a Pool may be made in another thread
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
        self.hub = hub_handle.hub
        self._loop = hub_handle.hub.loop
        self.hooks = hooks
        self._fixed = tuple(addresses)
        self.destinations: list[Destination] = [Destination(address, self) for address in self._fixed]
        #: Index at which the search for the next destination begins.
        self._turn = 0
        #: Where that search ended, and in which iteration of the hub, after how many others.
        self._last: Destination | None = None
        self._iteration = 0.0
        self._count = 0
        #: Whether several publishes come now, each connection's in one write.
        self.holds = False
        #: Publishes that wait for a connection or for room, oldest first.
        self._queue: deque[Publish] = deque()
        self._pump_soon = Soon(self._loop, self._pump)
        #: A timer that fires once a second while publishes are pending; made in this hub.
        self._looking: Any = None
        #: Fires at the next time to connect.
        self._retry = Timer(self._pump)
        self.deadlines = Deadlines(self.changed)
        self.counts = counts
        self.waker = Waker(self._loop)
        #: Settled when the queue has room, and when nothing is pending.
        self._room: deque[PendingReply] = deque()
        self._drained: list[PendingReply] = []
        #: Returns the number of publishes in open batches; sends these; sees to it that they will be sent.
        self.held: Callable[[], int] = int
        self.flush: Callable[[], object] = int
        self.look_at_batches: Callable[[], object] = int
        self._lookupds = lookupds
        self._discovery: LookupdPoller | None = None
        self._discovered = not lookupds
        #: No margin: connecting creates nothing, and publishes wait for it.
        self._lost: Lost[Address] = Lost(0.0)
        #: Whether all nsqds are known, or no nsqlookupd answers: True from the end of the first round on.
        self.surveyed = not lookupds
        self.circuit = Circuit(self)
        self.lone_caller = LoneCaller(self, hub_handle)
        self.stopped = False

    # -- sending ------------------------------------------------------------------------------------

    def submit(self, publish: Publish, now: float) -> None:
        """Send a publish, or queue it. Never switches."""
        if self.circuit.reason is None and (not self._queue or publish.is_copy):
            destination = self._choose(publish, now)
            if destination is not None:
                if self.holds:
                    destination.hold()
                destination.send(publish)
                return
        self._enqueue(publish)
        self.changed()

    def _enqueue(self, publish: Publish) -> None:
        refusal = _CLOSED if self.stopped else self.circuit.reason
        if refusal is not None:
            publish.complete(publish.doubt or NotSent(refusal))
            return
        publish.sent_to = None
        self._queue.append(publish)
        if self._discovery is None and self._lookupds:
            self._discover()

    def _choose(self, publish: Publish, now: float) -> Destination | None:
        """The next nsqd in turn that is ready for this publish, or the last one again. Never switches."""
        destinations = self.destinations
        count = len(destinations)
        if count == 1 and not publish.is_copy:
            return destinations[0] if destinations[0].ready(now) else None
        if count > _FEW and not publish.is_copy:
            last = self._last_of_group(count)
            # It may have left the list since, and must not be dialled then.
            if last is not None and last.connected and last.ready(now) and not last.doubted:
                return last
        taken = publish.avoids() if publish.is_copy else ()
        doubted = None
        for step in range(count):
            position = (self._turn + step) % count
            destination = destinations[position]
            if destination.name not in taken and destination.ready(now):
                if destination.doubted:
                    doubted = doubted or destination
                    continue
                self._turn = position + 1
                self._last = destination
                return destination
        return doubted

    def _last_of_group(self, count: int) -> Destination | None:
        """The nsqd of the last publish, if the next one belongs to its group."""
        iteration = self._loop.now()  # the loop reads the clock once in each
        if iteration != self._iteration:
            if self._count > _SINGLE:
                self._turn = int(draw() * count)  # or the groups would go to the same nsqds again and again
            self._iteration, self._count = iteration, 0
        self._count += 1
        return self._last if self._count > _SINGLE and self._count % _GROUP else None

    def failed(self, publish: Publish, error: Exception) -> None:
        """A try failed: try again, or settle the publish. Never switches."""
        again = isinstance(error, NotSent)
        if isinstance(error, OutcomeUnknown):
            publish.doubt = error
            again = self.options.retry_unknown
        if again and not self.stopped and publish.deadline > time.monotonic():
            self.counts.retried += 1
            publish.sent_to = None
            self._enqueue(publish)
            self.changed()
            return
        publish.complete(publish.doubt or error)

    def changed(self) -> None:
        """Something happened that may let queued publishes be sent. Never switches."""
        self._pump_soon()

    def begin_to_look(self) -> None:
        """Look after publishes once a second as long as any are pending. Never switches."""
        if self._looking is None:
            self._looking = self._loop.timer(_LOOK, _LOOK)
        if not self._looking.active and not self.stopped:
            self._looking.start(self._look)

    def _look(self) -> None:
        """Once a second: do what an exception of a signal handler has kept from being done. Never switches."""
        self.deadlines.look()
        self.waker.look()
        self.look_at_batches()
        self.changed()
        if not self.pending_count and not self.deadlines:
            self._looking.stop()

    def _pump(self) -> None:
        if self.stopped:
            return
        if self.circuit.check():
            self.flush()
            self._fail_queued(self.circuit.reason)
        queue = self._queue
        now = time.monotonic()
        stuck: list[Publish] = []
        while queue:
            publish = queue[0]
            if not publish.done:
                destination = self._choose(publish, now)
                if destination is not None:
                    queue.popleft()
                    destination.send(publish)
                    continue
                if not publish.is_copy:
                    break
                stuck.append(publish)  # others may use nsqds that this one must avoid
            queue.popleft()
        queue.extendleft(reversed(stuck))
        self._arm_retry(now)
        while self._room and len(queue) < self.options.max_pending_count:
            self._room.popleft().settle()
        self.check_drained()

    def _fail_queued(self, reason: str | None) -> None:
        while self._queue:
            publish = self._queue.popleft()
            publish.complete(publish.doubt or NotSent(reason))

    def _arm_retry(self, now: float) -> None:
        """Set the timer to the next time to connect, if publishes are queued. Never switches.

        :param now: when ``_choose`` was called; what was due then and was not dialled is avoided by all copies queued
        """
        if not self._queue or self._retry.is_set:
            return
        due = [at for each in self.destinations if (at := each.retry_at) is not None and at > now]
        if due:
            self._retry.set_at(min(due))

    def abandoned(self) -> None:
        """The caller of a publish is gone: remove it if it is at the front of the queue. Never switches."""
        queue = self._queue
        while queue and queue[0].done:
            queue.popleft()

    def expired(self, address: str) -> None:
        """A publish to this nsqd was not answered in time. Never switches."""
        for destination in self.destinations:
            if destination.name == address:
                destination.doubt()
        self.circuit.check()  # now: the caller may publish again before _pump runs

    def why(self, but: Collection[str] = ()) -> str:
        """Why nothing could be sent, for an error's text.

        :param but: the addresses of nsqds that it was sent to
        """
        reasons = [destination.why() for destination in self.destinations if destination.name not in but]
        if not reasons:
            if self._lookupds:
                reasons = ["nsqlookupd knows no other" if but else "nsqlookupd knows no nsqd"]
            if not self._discovered:
                reasons = ["no nsqd was found yet"]
            if self._discovery is not None:
                reasons += map(str, self._discovery.failures.values())
        return "; ".join(reasons)

    # -- room, and the end --------------------------------------------------------------------------

    def ask_room(self, reply: PendingReply) -> None:
        """Settle ``reply`` when the queue has room. Never switches."""
        self._room.append(reply)
        self.changed()

    @property
    def waiting_count(self) -> int:
        """The number of publishes that wait for a connection or for room."""
        return len(self._queue)

    @property
    def pending_count(self) -> int:
        """The number of publishes queued, in open batches, or unanswered; abandoned ones count until answered."""
        return len(self._queue) + int(self.held()) + self.unanswered_count

    @property
    def unanswered_count(self) -> int:
        """The number of commands that nsqd has not answered."""
        return sum(
            destination.connection.unanswered_count
            for destination in self.destinations
            if destination.connection is not None
        )

    def drained(self) -> PendingReply:
        """A reply that is settled when nothing is pending. Never switches."""
        reply = PendingReply()
        self._drained.append(reply)
        self.changed()
        return reply

    def check_drained(self) -> None:
        """Settle the replies of ``drained`` if nothing is pending. Never switches."""
        if self._drained and not self.pending_count:
            drained, self._drained = self._drained, []
            for reply in drained:
                reply.settle()

    def answered(self, connection: Connection) -> None:
        """A connection that was not blocked has had answers. Never switches."""
        self.check_drained()
        self.lone_caller.answered(connection)

    def close(self) -> None:
        """Close everything now; pending publishes get their error. May switch."""
        self.stopped = True
        self._cancel_timers()
        if self._discovery is not None:
            self._discovery.stop()
        self._fail_queued(_CLOSED)
        for reply in (*self._room, *self._drained):
            reply.settle(NotRunning("the Producer is closed"))
        self._room.clear()
        self._drained.clear()
        for destination in self.destinations:
            destination.close()
        self.deadlines.close()
        self.hooks.join(1.0)

    def _cancel_timers(self) -> None:
        self._retry.cancel()
        self.circuit.cancel()
        if self._looking is not None:
            self._looking.close()

    def settle_down(self) -> bool:
        """Stop connecting; returns whether publishes are pending and a connection is open. Never switches."""
        for destination in self.destinations:
            destination.wanted = destination.connected
        return bool(self.pending_count) and any(destination.connected for destination in self.destinations)

    def forked_child(self, loop_lives: bool) -> None:
        """In a forked child: drop the parent's publishes, timers and greenlets. Never switches."""
        self.stopped = True
        if not loop_lives:
            return  # nothing of it runs any more
        self._cancel_timers()
        self.deadlines.close()
        self._queue.clear()
        if self._discovery is not None:
            self._discovery.forked_child()
        for destination in self.destinations:
            destination.forked_child()

    def abandon(self) -> None:
        """After the end of this thread: drop the connections. From any thread; never switches."""
        self.stopped = True
        for destination in self.destinations:
            destination.abandon()

    # -- destinations -------------------------------------------------------------------------------

    def _discover(self) -> None:
        # Imported at first use: an application may have to patch before the HTTP client is loaded.
        from gnsq_like.discovery.lookupd_poller import make_poller

        self._discovery = make_poller(self._lookupds, self.options, self._found, self._lookup_failed)
        self._discovery.start()

    def _found(self, addresses: list[Address], complete: bool, began: float) -> float | None:
        self._discovered = True
        self.surveyed = self.surveyed or complete
        found = dict.fromkeys((*self._fixed, *addresses))
        known = {destination.address for destination in self.destinations}
        for destination in self.destinations:
            if destination.connected:
                self._lost.discard(destination.address)
        lost_at = self._lost.found(found.keys(), began)
        for destination in self.destinations:
            listed = destination.address in found or (destination.wanted and not complete)
            destination.wanted = listed and destination.address not in self._lost
        # One that is no longer listed is used while its connection is open, and not dialled again.
        kept = [each for each in self.destinations if each.address in found or each.connected or not complete]
        for destination in self.destinations:
            if destination not in kept:
                destination.drop()
        self.destinations = kept
        self.destinations += [Destination(address, self) for address in found if address not in known]
        for destination in self.destinations:
            destination.recall()
        self.changed()
        return max((at for at in (lost_at, self.circuit.since) if at is not None), default=None)

    def _lookup_failed(self, address: str, error: NSQError) -> None:
        logger.warning("%s", error)
        self.report(address, error)
        if self._discovery is not None and self._discovery.all_failed:
            self.surveyed = True
            self.changed()

    def look_again(self) -> None:
        """Ask the nsqlookupds now, if there are any: nsqds may be back, or at other addresses. Never switches."""
        if self._discovery is not None:
            self._discovery.hurry()

    def lost(self, destination: Destination, error: NSQError | None) -> None:
        """A connection has ended; its unanswered publishes are already settled."""
        self.hooks.call("on_disconnect", destination.name, error)
        if not self.stopped:
            if destination.address not in self._fixed and not destination.connected:
                if not destination.wanted:
                    self.destinations = [each for each in self.destinations if each is not destination]
                destination.wanted = False
                self._lost.add(destination.address)
            self.look_again()
        self.changed()

    def report(self, address: str, error: NSQError) -> None:
        """Pass an error after which the Producer continues to ``on_error``."""
        self.hooks.call("on_error", address, error)
