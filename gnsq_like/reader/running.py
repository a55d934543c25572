"""A started Reader: ``Subscriptions``, its connections, and ``Running``, its life from the start to the end.

``LookupdPoller`` finds nsqds, ``Redialer`` decides when each is dialled, each connection is a ``Subscription`` with its
messages: one for each topic of each nsqd. ``Handlers`` calls the handler and answers, ``FlowControl`` alone decides
RDY. Messages do not pass through here.

A Running is running until a stop begins, and stopping until ``stopped`` is settled. The order of a stop:

1. RDY 0 and CLS on all connections, so that no new messages arrive.
2. After nsqd's CLOSE_WAIT, messages whose handler has not started are requeued without delay and backoff. Before it,
   nsqd might deliver them to this Reader again.
3. Running handlers may answer until the deadline.
4. The remaining messages are requeued, and their handlers are killed. A message that its handler has finished is never
   requeued, and its FIN is written before its connection is closed.

Rules for editors: everything runs in the hub of the thread that started it, except ``stop_soon``, ``wait``, ``state``
and the statistics.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import gevent

from gnsq_like.discovery.dialler import Redialer, Round, Target
from gnsq_like.discovery.outages import Outages
from gnsq_like.errors import NotRunning, NsqdError, NSQError
from gnsq_like.reader.flow_control import FlowControl
from gnsq_like.reader.handlers import Handlers
from gnsq_like.reader.message import Message
from gnsq_like.reader.setup import Setup
from gnsq_like.reader.subscription import Subscription
from gnsq_like.reader.topics import MissingTopics, ReaderCounts
from gnsq_like.runtime import native, owner
from gnsq_like.runtime.control_loop import ControlLoop
from gnsq_like.runtime.dispatcher import flush_log, log_soon
from gnsq_like.runtime.hub_calls import handle_here
from gnsq_like.runtime.pending_reply import PendingReply

if TYPE_CHECKING:
    from gnsq_like.discovery.lookupd_poller import LookupdPoller

logger = logging.getLogger(__name__)

#: Seconds allowed for CLS and its reply in any case. Messages that arrive meanwhile are requeued; on a connection
#: closed without CLS they would be delivered again only after their timeout.
_MIN_CLS_TIMEOUT = 0.5
#: Seconds at the end of a stop for hooks and log records that are due.
_LAST_CALLS = 1.0
#: Seconds that its thread gets to end after it, when the program ends.
_THREAD_ENDS = 0.5

#: The end of nsqd's text where it does not know a message as in flight, while another reason is another consumer.
_UNKNOWN = "ID not in flight"


class Subscriptions:
    """The connections of a started Reader: made, renewed and ended. Next: :meth:`start`.

    :param give_up: called with the error when every known nsqd refuses in a way that a retry cannot cure
    :raises NSQError, OSError: if no file descriptors are free to load the HTTP client
    """

    def __init__(
        self,
        setup: Setup,
        counts: ReaderCounts,
        flow: FlowControl,
        handlers: Handlers,
        give_up: Callable[[NSQError], object],
    ) -> None:
        self._setup = setup
        self._counts = counts
        self._flow = flow
        self._handlers = handlers
        self._give_up = give_up
        #: Open connections; and targets that were connected at least once.
        self.table: dict[Target, Subscription] = {}
        self._were_connected: set[Target] = set()
        #: Whether the Reader stops, which alone ends connections then; none is made any more.
        self.is_stopping = False
        self._poller: LookupdPoller | None = None
        #: Only without fixed nsqds, where SUB creates the topics.
        self._missing: MissingTopics | None = None
        if setup.lookupds:
            self._make_poller()
        self._redialer: Redialer[Target] = Redialer(
            [Target(address, topic) for address in setup.nsqds for topic in setup.topics.names],
            connect=self._connect,
            is_connected=self.table.__contains__,
            ask=self._ask,
            on_failure=self._report,
            on_hopeless=self._all_refused,
            max_redial_delay=setup.options.max_redial_delay,
            surveyed=self._poller is None,
        )
        self._outages = Outages(setup.name, lambda: self._redialer.diallers)
        self._outages.poller = self._poller

    def _make_poller(self) -> None:
        # Imported at first use: an application may have to patch before the HTTP client is loaded.
        from gnsq_like.discovery.lookupd_poller import LookupdPoller, TopicSearch, make_clients

        topics, options = self._setup.topics, self._setup.options
        clients = make_clients(self._setup.lookupds, options)
        if not self._setup.nsqds:
            self._missing = MissingTopics(self._setup, clients)
        search = TopicSearch(
            topics.pattern or topics.names,
            options,
            self._found,
            on_gone=self._gone,
            connected=lambda: list(self.table),
            is_doubtful=lambda target: self._redialer.is_doubtful(target),
        )
        self._poller = LookupdPoller(clients, options, search, self._report)

    def start(self) -> None:
        """Start looking for nsqds, and dialling. Never switches. Next: :meth:`stop`."""
        self._redialer.start()
        if self._poller is not None:
            self._poller.start()

    def look(self) -> None:
        """Check all connections, and all addresses to be connected. Never switches."""
        for subscription in list(self.table.values()):
            if subscription.line not in self._flow.places.lines:
                subscription.connection.end("its beginning was interrupted")
        self._redialer.look()
        self._look_for_outages()
        if self._missing is not None and not self.is_stopping:
            self._missing.look()

    def _look_for_outages(self) -> None:
        self._outages.look(map(str, self._redialer.known))

    def stop(self) -> None:
        """Make no further connections. May switch."""
        self._look_for_outages()
        if self._poller is not None:
            self._poller.stop()
        self._redialer.stop()

    def forked_child(self) -> None:
        """As :meth:`stop`, in a forked child. Never switches."""
        if self._poller is not None:
            self._poller.forked_child()
        self._redialer.forked_child()

    # -- which there are ----------------------------------------------------------------------------

    def _found(self, targets: list[Target], of: Round) -> float | None:
        if self.is_stopping:
            return None
        if self._missing is not None:
            self._missing.found((target.topic for target in targets), of.is_complete)
        if self._setup.topics.pattern is not None:
            self._follow(targets, of.is_complete)
        return self._redialer.found(targets, of)

    def _ask(self) -> None:
        """Begin a round of discovery, if there is any. Never switches."""
        if self._poller is not None:
            self._poller.hurry()

    def _follow(self, targets: Iterable[Target], complete: bool) -> None:
        """Take targets that were found for a pattern of topics; if ``complete``, there are no others. Never
        switches."""
        listed = {target.topic for target in targets}
        for topic in listed:
            self._flow.topics.follow(topic)
        if not complete:
            return
        in_use = listed.union(subscription.topic for subscription in self._flow.subscriptions)
        for topic in [topic for topic in self._flow.topics if topic not in in_use]:
            self._flow.topics.release(topic)
            self._were_connected -= {target for target in self._were_connected if target.topic == topic}

    def _gone(self, targets: list[Target]) -> None:
        """End the connections to targets that are gone, with CLS. Never switches."""
        if self.is_stopping:
            return
        self._redialer.forget(targets)
        for target in targets:
            subscription = self.table.get(target)
            if subscription is None:
                continue
            subscription.is_gone = True
            if subscription.drained is None:
                log_soon(logger.info, "%r is gone, and its connection is closed", subscription)
                gevent.spawn(self._release, subscription, subscription.begin_to_end())

    def _all_refused(self, error: NSQError) -> bool:
        """Every known nsqd refuses in a way that a retry cannot cure. Returns whether this gives up."""
        if self.table:
            return False
        self._give_up(error)
        return True

    # -- each of them -------------------------------------------------------------------------------

    def _connect(self, target: Target) -> None:
        """Connect and subscribe once; raises NSQError if that fails. May switch."""
        setup, flow = self._setup, self._flow
        topic_flow = flow.topics.get(target.topic)
        if topic_flow is None:
            return  # the topic is gone
        subscription = Subscription(target, topic_flow, setup, flow, self._handlers)
        subscription.connect(
            on_error=self._refused,
            on_close=self._ended,
            may_subscribe=lambda: self._redialer.is_still_listed(target),
        )
        if not subscription.alive or self.is_stopping or flow.topics.get(target.topic) is not topic_flow:
            subscription.connection.close()  # the Reader stops, or the topic has gone meanwhile
            return
        self.table[target] = subscription
        self._counts.reconnects += target in self._were_connected
        self._were_connected.add(target)
        self._outages.answered(str(target))
        flow.add(subscription)
        setup.hooks.call("on_connect", subscription.address)
        log_soon(logger.info, "subscribed to %s/%s at %s", target.topic, setup.channel, target.address)

    def _ended(self, subscription: Subscription, error: NSQError | None) -> None:
        # At the connection's end, in its reader; once more if that was interrupted.
        target = subscription.target
        if self.table.get(target) is subscription:
            del self.table[target]
        elif subscription not in self._flow.subscriptions:
            return  # it had not subscribed
        try:
            subscription.timeouts.stop_touching()
            for message in self._handlers.take_from(subscription.in_flight):
                subscription.drop(message)
            subscription.drop_left()
            self._flow.lose(subscription)
            self._setup.hooks.call("on_disconnect", subscription.address, error)
            if error is not None:
                self._outages.failed(str(target), error)
        finally:
            if subscription.is_gone:
                self._redialer.forget([target])
            elif target not in self.table and not self.is_stopping:
                self._redialer.lost(target)

    def _refused(self, subscription: Subscription, error: NsqdError) -> None:
        """Renew a connection on which nsqd refused a FIN or REQ as unknown. Never switches.

        After a kill -9, an nsqd with disk queues may deliver a message twice at once. It counts two in flight and takes
        one answer: the other place is lost until the connection ends, and with RDY 1 nothing is delivered any more.
        An answer that came too late is refused with the same words, and costs no place.
        """
        log_soon(logger.warning, "%s: %s", self._setup.name, error)
        self._setup.hooks.call("on_error", subscription.address, error)
        unknown = error.code in ("E_FIN_FAILED", "E_REQ_FAILED") and error.detail.endswith(_UNKNOWN)
        unknown = unknown and not subscription.timeouts.was_overdue(error)
        if unknown and not self.is_stopping and subscription.drained is None:
            text = "%r is renewed, because nsqd may count a message in flight that is answered"
            log_soon(logger.info, text, subscription)
            # Now: several answers may be refused in one read.
            gevent.spawn(self._release, subscription, subscription.begin_to_end(), handle_first=True)

    def _release(self, subscription: Subscription, drained: PendingReply, handle_first: bool = False) -> None:
        if handle_first and subscription.in_flight:
            drained.wait(subscription.msg_timeout)
        self.unsubscribe(subscription)
        if subscription.in_flight:
            drained.wait(subscription.msg_timeout)  # then nsqd gives them to others
        subscription.connection.close()

    def unsubscribe(
        self, subscription: Subscription, waiting: Iterable[Message] = (), timeout: float | None = None
    ) -> None:
        """CLS; after its reply, requeue the messages whose handler has not started. May switch.

        :param waiting: messages that were already taken from the handlers, of any connection
        :param timeout: seconds to wait for the reply; None for ``connect_timeout``
        """
        try:
            subscription.connection.close_subscription(timeout)
        except NSQError as exc:
            # Otherwise it was sent before, or the connection has ended, which is logged.
            if subscription.alive and not isinstance(exc, NotRunning):
                log_soon(logger.info, "%s", exc)
        for message in [*waiting, *self._handlers.take_from(subscription.in_flight)]:
            if message in subscription.in_flight:
                message.requeue(0, backoff=False)

    def _report(self, address: str, error: NSQError) -> None:
        self._outages.failed(address, error)
        self._setup.hooks.call("on_error", address, error)

    def stats(self) -> dict[str, Any]:
        """Their part of ``Reader.stats``. From any thread."""
        with_topic = self._setup.topics.are_several
        return {
            "known": sorted({str(target) for target in self._redialer.known}),
            "surveyed": self._redialer.surveyed,
            "missing": [] if self._missing is None else self._missing.names,
            "connections": {
                f"{target.address}/{target.topic}" if with_topic else str(target.address): each.stats()
                for target, each in list(self.table.items())
            },
        }


class Running:
    """One start of a Reader, until its end; kept after that for its statistics. Next: :meth:`start`.

    :param counts: of the Reader's messages, over all its starts
    :raises NSQError, OSError: if no file descriptors are free
    """

    def __init__(self, setup: Setup, counts: ReaderCounts) -> None:
        self._setup = setup
        self._counts = counts
        self.hub_handle = handle_here()
        self._loop = ControlLoop(setup.name, self._look)
        self.flow = FlowControl(setup, counts, self._loop, self.hub_handle)
        self.handlers = Handlers(setup, lambda: self.flow.is_starved, self._loop)
        self._subscriptions = Subscriptions(setup, counts, self.flow, self.handlers, self._give_up)
        #: Its connections.
        self.table = self._subscriptions.table
        #: Settled when it has stopped.
        self.stopped = PendingReply()
        #: Monotonic time until which handlers may answer; None until a stop begins.
        self._deadline: float | None = None
        #: The messages unanswered at the end of the stop.
        self.left = 0
        #: Why it stopped by itself.
        self.error: NSQError | None = None
        #: A native lock: threads that find this one ended may come together.
        self._abandoning: Any = native.allocate_lock()

    # -- life ---------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """ "running", "stopping" or "stopped". From any thread."""
        return "stopped" if self.stopped.done else "running" if self._deadline is None else "stopping"

    def start(self) -> None:
        """Start connecting. Never switches. Next: :meth:`stop_soon`."""
        owner.register(
            self,
            Running.forked,
            busy=lambda running: running.handlers.busy,
            begin_to_end=Running.stop_at_exit,
            wait=Running.wait_at_exit,
        )
        self._loop.start()
        self._subscriptions.start()

    def _look(self) -> None:
        """Once a second, in the control loop: look at everything. Never switches."""
        self.hub_handle.make_calls()
        self.handlers.begin_waiting()
        self._subscriptions.look()
        self.flow.look()

    def steer(self) -> None:
        """Apply the settings that were changed. From any thread; never switches."""
        if self.state != "running":
            return  # also in a forked child: the next start applies them
        if not self.hub_handle.here:
            self.hub_handle.call(self.steer)
        else:
            self.flow.steered()
            self.handlers.set_concurrency(self._setup.concurrency)

    def stop_soon(self, timeout: float) -> None:
        """Begin to stop. From any thread; never switches.

        :param timeout: seconds for running handlers; a further call can only shorten them
        """
        if not self.hub_handle.lives:
            self._abandon()
        elif not self.hub_handle.here:
            self.hub_handle.call(self.stop_soon, timeout)
        elif self._deadline is not None:
            self._deadline = min(self._deadline, time.monotonic() + timeout)
            if self.flow.on_drained is not None:
                self.flow.on_drained()  # wakes _end_handlers(), which checks the deadline
        else:
            self._deadline = time.monotonic() + timeout
            self._subscriptions.is_stopping = True
            self.flow.stop()
            subscriptions = list(self.table.values())
            for subscription in subscriptions:
                subscription.begin_to_end()
                subscription.forget_dropped()
            # In a greenlet of its own, so that a killed caller of stop() does not interrupt it.
            gevent.spawn(self._end, subscriptions, self.handlers.close())

    def stop_at_exit(self, timeout: float) -> bool:
        """For ``owner``: begin to stop; False if there is nothing to wait for. Never switches."""
        if self.stopped.done or not self.hub_handle.lives:
            return False
        self.stop_soon(timeout)
        return True

    def wait_at_exit(self, timeout: float) -> None:
        """For ``owner``: wait until it has stopped, and its thread has ended. May block."""
        if self.wait(timeout):
            self.hub_handle.join_thread(min(timeout, _THREAD_ENDS))

    def wait(self, timeout: float | None) -> bool:
        """Wait until it has stopped; False after ``timeout`` seconds. From any thread; may switch, or block."""
        if not self.hub_handle.wait(self.stopped, timeout) and not self.hub_handle.lives:
            self._abandon()
        return self.stopped.done

    def _end(self, subscriptions: list[Subscription], waiting: list[Message]) -> None:
        try:
            gevent.joinall([gevent.spawn(self._unsubscribe, each, waiting) for each in subscriptions])
            self._subscriptions.stop()
            self._end_handlers()
            for subscription in list(self.table.values()):
                subscription.connection.close()
            until = time.monotonic() + _LAST_CALLS
            self._setup.hooks.join(_LAST_CALLS)
            flush_log(max(0.0, until - time.monotonic()))
        finally:
            self._loop.stop()
            self.table.clear()
            self.stopped.settle()

    def _seconds_left(self) -> float:
        return 0.0 if self._deadline is None else self._deadline - time.monotonic()

    def _unsubscribe(self, subscription: Subscription, waiting: list[Message]) -> None:
        """The rest of step 1, and step 2. May switch."""
        patience = max(_MIN_CLS_TIMEOUT, self._seconds_left())
        patience = min(patience, subscription.connection.options.connect_timeout)
        self._subscriptions.unsubscribe(subscription, waiting, patience)

    def _end_handlers(self) -> None:
        """Steps 3 and 4. May switch."""
        flow = self.flow
        while flow.in_flight and (seconds := self._seconds_left()) > 0:
            woken = PendingReply()
            flow.on_drained = woken.settle
            woken.wait(seconds)
        flow.on_drained = None
        # Handled messages are not requeued, even if the hub has not seen their answers yet.
        self.hub_handle.catch_up()
        self.left = sum(subscription.answer_rest() for subscription in flow.subscriptions)
        if self.left:
            log_soon(logger.warning, "stopping %s with %d messages unanswered", self._setup.name, self.left)
        self.handlers.kill()

    def _abandon(self) -> None:
        """Stop without the thread that started this, which has ended; twice is fine. Never switches."""
        with self._abandoning:
            if self.stopped.done:
                return
            self._keep()
            for subscription in list(self.table.values()):
                subscription.connection.let_go(False)
            self.table.clear()
            self.stopped.settle()
        log_soon(
            logger.warning,
            "the thread that started the Reader of %s has ended; nsqd delivers its messages again",
            self._setup.name,
        )

    def forked(self, loop_lives: bool) -> None:
        """For ``owner``: in the child, this has stopped. Never switches."""
        if self.stopped.done:
            return
        self._counts.clear()
        self._keep()
        if loop_lives:
            self.flow.stop()
            self._subscriptions.forked_child()
            self.handlers.forked_child()
            self._loop.abandon()
        self.flow.places.lines.clear()
        self.table.clear()
        self.stopped.forget()  # who waits for it does so in the parent

    def _give_up(self, error: NSQError) -> None:
        self.error = error
        self.stop_soon(0.0)

    def _keep(self) -> None:
        owner.keep((self, list(self.table.values()), self.flow.subscriptions))
        self._setup.hooks.abandon()

    # -- messages for loops and threads -------------------------------------------------------------

    def get(self, timeout: float | None) -> Message | None:
        """The next message, or None after ``timeout`` seconds or at the stop. From any thread. May switch, or block.

        If the caller is interrupted, no message is taken.
        """
        if self.hub_handle.here:
            return self.handlers.get(timeout)
        taking: list[gevent.Greenlet] = []
        taken: list[Message | None] = []
        interrupted = False

        def take() -> None:
            if not interrupted:
                taking.append(gevent.getcurrent())
                taken.append(self.handlers.get(timeout))
                if interrupted:
                    give_back()

        def give_back() -> None:
            nonlocal interrupted
            interrupted = True
            gevent.killall(taking, block=False)
            for message in taken:
                if message is not None:
                    message.requeue(0, backoff=False)
            taken.clear()

        with ExitStack() as waiting:
            waiting.callback(self.hub_handle.call, give_back)
            self.hub_handle.run(take)
            waiting.pop_all()
        return taken[0]

    # -- statistics -----------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Its part of ``Reader.stats``. From any thread."""
        return {
            "in_flight": self.flow.in_flight,
            "waiting": self.handlers.waiting,
            "busy": self.handlers.busy,
            "backoff_level": self.flow.topics.backoff_level,
            **self._subscriptions.stats(),
        }

    def count_topics(self, by_topic: dict[str, dict[str, Any]]) -> None:
        """Add its part to the statistics of each topic. From any thread."""
        for topic, flow in list(self.flow.topics.items()):
            if topic in by_topic:
                by_topic[topic]["backoff_level"] = flow.backoff.level
        for subscription in list(self.table.values()):
            if (found := by_topic.get(subscription.topic)) is not None:
                found["in_flight"] += subscription.line.in_flight
                found["connections"] += 1


#: The statistics of a Reader that was never started.
NOT_STARTED: dict[str, Any] = {
    "in_flight": 0,
    "waiting": 0,
    "busy": 0,
    "backoff_level": 0,
    "known": [],
    "surveyed": False,
    "missing": [],
    "connections": {},
}
