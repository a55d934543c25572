"""The publishes that wait for an nsqd or for their answer, and their retries.

A publish is sent at once by its caller if a connection has room. Otherwise it is queued, and the hub sends it when
something changes: a new connection, room on one, the time for another try to connect. The caller is woken only once,
with the outcome. While the circuit is open (``nsqds``) nothing is queued: every publish fails.

A publish that nsqd does not have (NotSent) is queued again until its deadline. A refusal is passed to the
caller, and so is an unknown outcome, unless ``retry_unknown`` accepts the risk of a duplicate.

Rules for editors: a Pool belongs to one hub's thread. Only ``close`` may switch. A publish in the queue has ``sent_to``
None.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from gnsq_like.addresses import Address
from gnsq_like.errors import NotRunning, NotSent, NSQError, OutcomeUnknown
from gnsq_like.options import ProducerOptions
from gnsq_like.producer.batching import Batching, Submit
from gnsq_like.producer.deadlines import Deadlines
from gnsq_like.producer.destination import Destination
from gnsq_like.producer.encoder import Encoder
from gnsq_like.producer.nsqds import Nsqds
from gnsq_like.producer.publish import Publish, PublishCounts, resume
from gnsq_like.producer.replicas import Replicas
from gnsq_like.runtime.dispatcher import HookRunner
from gnsq_like.runtime.hub_calls import HubHandle
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.runtime.timer import Gathering, Soon

_CLOSED = "the Producer was closed before this was sent"


class Pool:
    """The pending publishes of a Producer.

    :param addresses: the fixed nsqds
    :param lookupds: nsqlookupds to poll for further nsqds
    :param hub_handle: the hub in which all of this runs; a Pool may be made in another thread
    :param counts: of the Producer's messages
    :param encoder: makes the commands of batches
    """

    def __init__(
        self,
        addresses: Iterable[Address],
        lookupds: list[str],
        options: ProducerOptions,
        hooks: HookRunner,
        hub_handle: HubHandle,
        counts: PublishCounts,
        encoder: Encoder,
    ) -> None:
        self.options = options
        self.hub = hub_handle.hub
        self.hooks = hooks
        self.nsqds = Nsqds(addresses, lookupds, self)
        #: Publishes that wait for a connection or for room, oldest first.
        self._queue: deque[Publish] = deque()
        self._pump_soon = Soon(self.hub.loop, self._pump)
        self.deadlines = Deadlines(self._look)
        self.counts = counts
        #: The publishes of this hub's greenlets that are done.
        self.awake: Gathering[Publish] = Gathering(self.hub.loop, resume)
        #: Replies, and the conditions under which they are settled; looked at after each answer.
        self.awaited: list[tuple[PendingReply, Callable[[], bool]]] = []
        #: Sends publishes or batches: ``submit``, or copies of it by that.
        self.send: Submit = self.submit
        if options.replicas > 1:
            self.send = Replicas(self, options.replicas, options.quorum).submit
        self.batching = Batching(self, options, encoder, self.send) if options.batching else None
        self.stopped = False

    # -- sending ------------------------------------------------------------------------------------

    def submit(self, publish: Publish, now: float) -> None:
        """Send a publish, or queue it. Never switches."""
        nsqds = self.nsqds
        may_send = nsqds.circuit.reason is None and (not self._queue or publish.is_copy)
        if not (may_send and nsqds.send(publish, now)):
            self._enqueue(publish)
            self.changed()

    def _enqueue(self, publish: Publish) -> None:
        refusal = _CLOSED if self.stopped else self.nsqds.circuit.reason
        if refusal is not None:
            publish.settle(publish.doubt or NotSent(refusal))
            return
        publish.sent_to = None
        self._queue.append(publish)
        self.nsqds.discover()

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
        publish.settle(publish.doubt or error)

    def changed(self) -> None:
        """Something happened that may let queued publishes be sent. Never switches."""
        self._pump_soon()

    def _look(self) -> None:
        """Once a second: do what an exception of a signal handler has kept from being done. Never switches."""
        self.awake.look()
        if self.batching is not None:
            self.batching.look()
        self.changed()

    def _pump(self) -> None:
        if self.stopped:
            return
        circuit = self.nsqds.circuit
        if circuit.check():
            if self.batching is not None:
                self.batching.flush()
            self._fail_queued(circuit.reason)
        queue = self._queue
        now = time.monotonic()
        stuck: list[Publish] = []
        try:
            while queue:
                publish = queue[0]
                del queue[0]  # no popleft(): a signal handler may raise as it returns, and the publish would be lost
                stuck.append(publish)
                if publish.done or self.nsqds.send(publish, now):
                    del stuck[-1]
                elif not publish.is_copy:  # a copy is passed over: others may use nsqds that it must avoid
                    break
        except BaseException:
            stuck = [publish for publish in stuck if publish.sent_to is None]
            raise
        finally:
            queue.extendleft(stuck[::-1])
        if queue:
            self.nsqds.retry_after(now)
        self._check_awaited()

    def _fail_queued(self, reason: str | None) -> None:
        while self._queue:
            publish = self._queue.popleft()
            publish.settle(publish.doubt or NotSent(reason))

    def abandoned(self) -> None:
        """The caller of a publish is gone: remove it if it is at the front of the queue. Never switches."""
        queue = self._queue
        while queue and queue[0].done:
            queue.popleft()

    # -- room, and the end --------------------------------------------------------------------------

    def when(self, condition: Callable[[], bool], reply: PendingReply | None = None) -> PendingReply:
        """Settle ``reply``, or a new one, as soon as the condition holds; returns it. Never switches."""
        reply = reply or PendingReply()
        self.awaited.append((reply, condition))
        self.changed()
        return reply

    def _check_awaited(self) -> None:
        if self.awaited:
            awaited, self.awaited = self.awaited, []
            for reply, condition in awaited:
                if condition():
                    reply.settle()
                else:
                    self.awaited.append((reply, condition))

    def has_room(self) -> bool:
        """Whether a publish that finds no connection may be queued."""
        return len(self._queue) < self.options.max_pending_count

    def is_drained(self) -> bool:
        """Whether nothing is pending."""
        return not self.pending_count

    @property
    def waiting_count(self) -> int:
        """The number of publishes that wait for a connection or for room."""
        return len(self._queue)

    @property
    def pending_count(self) -> int:
        """The number of publishes queued, in open batches, or unanswered; abandoned ones count until answered."""
        held = 0 if self.batching is None else self.batching.held
        return len(self._queue) + held + self.nsqds.unanswered_count

    def close(self) -> None:
        """Close everything now; pending publishes get their error. May switch."""
        self.stopped = True
        self.nsqds.stop()
        self._fail_queued(_CLOSED)
        for reply, _ in self.awaited:
            reply.settle(NotRunning("the Producer is closed"))
        self.awaited.clear()
        self.nsqds.close()
        self.deadlines.close()
        self.hooks.join(1.0)

    def let_go(self, loop_lives: bool) -> None:
        """Drop everything in a forked child, or after the end of this thread. From any thread; never switches.

        :param loop_lives: see ``owner``; if not, nothing of it runs any more
        """
        self.stopped = True
        if loop_lives:
            self.deadlines.close()
            self._queue.clear()
            if self.batching is not None:
                self.batching.let_go()
        self.nsqds.let_go(loop_lives)

    # -- what destinations report -------------------------------------------------------------------

    def lost(self, destination: Destination, error: NSQError | None) -> None:
        """A connection has ended; its unanswered publishes are already settled."""
        self.hooks.call("on_disconnect", destination.name, error)
        if not self.stopped:
            self.nsqds.lost(destination)
        self.changed()
