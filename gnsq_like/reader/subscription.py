"""One connection of a Reader: its messages, their answers, and its RDY.

The connection calls :meth:`Subscription.receive` in the hub with the messages of each read; they go to
``handlers``, and their answers come back here. ``in_flight`` is the only record of unanswered messages, and
``line.in_flight`` their count: an answer counts once, when its message is removed.

Answers may come from any thread; those from other threads are passed to the Reader's hub. ``finish`` only notes the
message in ``finished``, as the Reader's workers do themselves; FINs are accounted and written together in one callback
of the hub, because the work per answer costs several times as much as noting it. The callback runs before the hub polls
its sockets again, so no FIN leaves later than if it were written alone.

``flow_control`` and ``policy`` decide RDY, and send it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from gnsq_like.connection.connection import Connection
from gnsq_like.discovery.dialler import Target
from gnsq_like.errors import ConnectionLost, NsqdError, NSQError
from gnsq_like.policy.backoff import Mode
from gnsq_like.policy.charge import RoundTrip
from gnsq_like.policy.delays import requeue_delay
from gnsq_like.policy.level import Burst, Level, Renewal
from gnsq_like.policy.line import Line
from gnsq_like.policy.places import Places
from gnsq_like.reader.handlers import Handlers
from gnsq_like.reader.message import Message, Outcome, make_messages
from gnsq_like.reader.setup import Setup
from gnsq_like.reader.timeouts import MessageTimeouts
from gnsq_like.reader.topics import TopicFlow
from gnsq_like.runtime import native
from gnsq_like.runtime.control_loop import ControlLoop
from gnsq_like.runtime.dispatcher import log_soon
from gnsq_like.runtime.hub_calls import HubHandle
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.wire.frames import RawMessage

logger = logging.getLogger(__name__)

#: nsqd's default of output-buffer-timeout in seconds, if its reply leaves it out (docs/internals 7.1).
_BUFFER_TIMEOUT = 0.25
#: Marks a message already answered.
_GONE = -1


class SubscriptionFlow(Protocol):
    """The part of the Reader's flow control that subscriptions use."""

    hub_handle: HubHandle
    loop: ControlLoop
    places: Places[Subscription]

    def plan_soon(self) -> None: ...
    def look_soon(self) -> None: ...
    def received(self, subscription: Subscription, count: int) -> None: ...
    def close(self, subscription: Subscription) -> None: ...
    def answered(
        self, subscription: Subscription, messages: list[Message], stamps: list[int], outcome: Outcome, now: float
    ) -> int | None: ...
    def rdy_to_send(self, subscription: Subscription, now: float) -> int | None: ...
    def adjust_soon(self, subscription: Subscription) -> None: ...


class Subscription:
    """One connection of a Reader with its messages; made before the connection. Next: :meth:`connect`.

    :param topic_flow: the backoff and the counts of its topic
    :param flow: decides RDY; every answer is reported to it
    :param handlers: gets the messages of each read
    """

    def __init__(
        self,
        target: Target,
        topic_flow: TopicFlow,
        setup: Setup,
        flow: SubscriptionFlow,
        handlers: Handlers,
    ) -> None:
        self.target = target
        self.address = str(target.address)
        self.topic_flow = topic_flow
        self.channel = setup.channel
        self.msg_timeout = 0.0
        self.max_msg_timeout: float | None = None
        self.decode = handlers.decode
        self.give_up = handlers.give_up
        #: Unanswered messages, the oldest first, with their stamps for backoff.
        self.in_flight: dict[Message, int] = {}
        #: The following three are set by _begin().
        self.connection: Connection
        self.line: Line[Subscription]
        self.timeouts: MessageTimeouts
        #: Settled when the last message in flight was answered; only of one that is to end.
        self.drained: PendingReply | None = None
        #: Whether discovery says that its topic is no longer there: it is not dialled again.
        self.is_gone = False
        self._options = setup.options
        self._flow = flow
        self._hooks = setup.hooks
        self._handlers = handlers
        self._thread = flow.hub_handle.thread
        #: Messages whose FIN is noted; in flight until it is accounted.
        self.finished: list[Message] = []
        #: Whether :meth:`write` is scheduled.
        self.is_write_due = False

    def __repr__(self) -> str:
        return f"<Subscription {self.topic}/{self.channel} at {self.address}>"

    @property
    def topic(self) -> str:
        """Its topic."""
        return self.target.topic

    @property
    def alive(self) -> bool:
        """Whether answers still reach nsqd."""
        return self.connection.alive

    def connect(
        self,
        on_error: Callable[[Subscription, NsqdError], object],
        on_close: Callable[[Subscription, NSQError | None], object],
        may_subscribe: Callable[[], bool],
    ) -> None:
        """Connect and subscribe once. May switch.

        :param on_error: called with (self, error) when nsqd refused an answer
        :param on_close: called with (self, error) when the connection has ended, also if it never subscribed
        :param may_subscribe: asked just before SUB; if not, the connection is closed, which is no error. May switch
        :raises NSQError: if it fails
        """
        connection = Connection(
            self.target.address,
            self._options,
            on_messages=self.receive,
            on_error=lambda connection, error: on_error(self, error),
            on_close=lambda connection, error: on_close(self, error),
        )
        with ExitStack() as unused:
            unused.callback(connection.close)
            connection.connect()
            if connection.authorized is not None:
                self._hooks.call("on_auth", self.address, connection.authorized)
            self._begin(connection)
            if not may_subscribe():
                return
            connection.subscribe(self.topic, self.channel)
            # SUB's, if it was shorter than that of IDENTIFY. nsqd replies to nothing that is sent from now on until CLS
            # (RDY, FIN, REQ, TOUCH, NOP), except with errors, which it logs: so this is the last measurement.
            self.line.round_trip = RoundTrip(connection.round_trip)
            unused.pop_all()
        if not connection.alive:
            # nsqd's OK to SUB and the end of the connection came in one read.
            raise connection.error or ConnectionLost(connection.address, "nsqd closed it after SUB")

    def _begin(self, connection: Connection) -> None:
        """Use this connection, which is connected and not subscribed yet. Never switches."""
        self.connection = connection
        negotiated = connection.negotiated
        self.msg_timeout = negotiated.msg_timeout
        # max_msg_timeout limits only TOUCH (docs/internals 1.7): a lower value than msg_timeout has no effect.
        longest = negotiated.max_msg_timeout
        self.max_msg_timeout = None if longest is None else max(longest, self.msg_timeout)
        ticker, level = negotiated.output_buffer_timeout, Level()
        if negotiated.counts_rdy_down:
            level = Renewal()
        elif self._options.adaptive_rdy:
            level = Burst(_BUFFER_TIMEOUT if ticker is None else ticker)
        self.line = Line(
            self,
            level,
            time.monotonic(),
            topic=self.topic,
            max_rdy=negotiated.max_rdy_count,
            round_trip=connection.round_trip,
        )
        self.timeouts = MessageTimeouts(self.in_flight, self.line, self.msg_timeout, self.touch, self._flow.loop)

    def begin_to_end(self) -> PendingReply:
        """RDY 0, because this is to end; returns ``drained``. Never switches."""
        self.drained = self.drained or PendingReply()
        self._flow.close(self)
        self.connection.set_rdy(0)
        return self.drained

    def receive(self, connection: Connection, raw_messages: list[RawMessage]) -> None:
        """The connection's ``on_messages``: the messages of one read. Never switches."""
        now = connection.last_received_at
        count = len(raw_messages)
        messages = make_messages(raw_messages, self, now)
        backoff = self.topic_flow.backoff
        try:
            if backoff.mode is Mode.FLOWING:
                self.in_flight.update(dict.fromkeys(messages, backoff.epoch))
            else:
                granted = self.line.share > 0
                self.in_flight.update((message, backoff.stamp(self, granted)) for message in messages)
            # Handlers that do not block answer before flow control adjusts RDY, which needs no command then.
            self._handlers.put(messages, now)
            self._flow.received(self, count)
        except BaseException:  # this was interrupted, and the connection ends: nsqd delivers them again
            self._handlers.take_from(messages)
            for message in messages:
                self.in_flight.pop(message, _GONE)
            raise

    def stats(self) -> dict[str, int]:
        """For ``Reader.stats``."""
        return {"rdy": self.connection.rdy, "share": self.line.share, "in_flight": self.line.in_flight}

    # -- answers, from any thread -------------------------------------------------------------------

    def finish(self, message: Message, outcome: Outcome = Outcome.HANDLED) -> None:
        """FIN, in one write with all others of this iteration of the hub. Never switches.

        :param outcome: only HANDLED is a success for backoff
        """
        message.answer = "FIN"
        if native.thread_id() != self._thread:
            self._flow.hub_handle.call(self.finish, message, outcome)
        elif outcome is not Outcome.HANDLED:
            self._finish([message], outcome, time.monotonic())
        else:
            self.finished.append(message)
            if not self.is_write_due:
                self.write_soon()

    def write_soon(self) -> None:
        """Write the FINs of ``finished``, and RDY, in the hub's next iteration. Never switches."""
        self.is_write_due = True
        self._flow.adjust_soon(self)

    def write(self, now: float) -> None:
        """In the hub: account the answers of ``finished``, and write them with the RDY that fits. Never switches."""
        self.is_write_due = False
        self._finish(self.finished, Outcome.HANDLED, now)
        self.finished = []  # at last: what was interrupted is done again, and those that have left are skipped

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        """REQ. Never switches."""
        if native.thread_id() != self._thread:
            self._flow.hub_handle.call(self.requeue, message, delay, backoff)
            return
        stamp = self.in_flight.pop(message, _GONE)
        if stamp == _GONE:
            return
        if delay is None:
            options = self._options
            delay = requeue_delay(message.attempts, options.default_requeue_delay, options.max_requeue_delay)
        # RDY first: nsqd must not send another message in its place.
        self._leave(message, stamp, Outcome.FAILED if backoff else Outcome.REQUEUED)
        if self.connection.requeue(message._id, delay):
            self._hooks.call("on_requeue", message, delay)
        else:
            self._late([message])

    def failed(self, message: Message, exc: BaseException) -> None:
        """Its handler raised ``exc``; only for the hook. Never switches."""
        if native.thread_id() != self._thread:
            self._flow.hub_handle.call(self.failed, message, exc)
        else:
            self._hooks.call("on_failure", message, exc)

    def touch(self, message: Message) -> None:
        """TOUCH. Never switches."""
        if native.thread_id() != self._thread:
            self._flow.hub_handle.call(self.touch, message)
            return
        now = time.monotonic()
        if message not in self.in_flight or now >= message.timeout_at:
            log_soon(logger.debug, "touch of message %s is too late; nsqd delivers it again", message.id)
        elif self.connection.touch(message._id):
            message.touched_at = now
            if message.is_overdue:
                message.is_overdue = False
                self._flow.places.take_out(self.line, 0, -1, now)
                self._flow.plan_soon()

    def touch_until_answered(self, message: Message) -> None:
        """TOUCH in time, as long as it is in flight. Never switches."""
        if native.thread_id() != self._thread:
            self._flow.hub_handle.call(self.touch_until_answered, message)
        elif message in self.in_flight:
            self.timeouts.touch_until_answered(message)

    def drop(self, message: Message) -> None:
        """Drop a message without an answer; nsqd delivers it again, because its connection or its time is over.

        One that is overdue keeps its place until nsqd has certainly taken it back.
        """
        if native.thread_id() != self._thread:
            self._flow.hub_handle.call(self.drop, message)
            return
        message.answer = "LOST"
        if self.alive and message.is_overdue and not self.line.closing:
            self._flow.look_soon()  # at when its place is free
        else:
            self.forget(message)

    def forget(self, message: Message) -> None:
        """A dropped message leaves its place. Never switches."""
        stamp = self.in_flight.pop(message, _GONE)
        if stamp != _GONE:
            self._leave(message, stamp, Outcome.LOST)

    def _leave(self, message: Message, stamp: int, outcome: Outcome) -> None:
        """Account one message that is not finished. RDY is lowered now, and raised in the hub's next iteration."""
        rdy = self._flow.answered(self, [message], [stamp], outcome, time.monotonic())
        if rdy is not None:
            self.connection.set_rdy(rdy)
        self._flow.adjust_soon(self)

    def drop_left(self) -> None:
        """After the loss of the connection: drop the messages that no handler has. Never switches."""
        self.forget_dropped()
        for message in list(self.in_flight):
            if message._is_left and message.answer is None:
                self.drop(message)

    def forget_dropped(self) -> None:
        """The messages that were dropped need no place: there is no RDY any more. Never switches."""
        for message in [each for each in self.in_flight if each.answer == "LOST"]:
            self.forget(message)

    def answer_rest(self) -> int:
        """At the end of a stop: write the answers that were given, and requeue all other messages. Never switches.

        Given answers may be on their way from another thread, or wait for the hub; a closed connection drops them.

        :returns: the number of messages that had no answer
        """
        unanswered = 0
        for message in list(self.in_flight):
            if message.answer == "FIN":
                self._finish([message], Outcome.HANDLED, time.monotonic())
                continue
            unanswered += message.answer is None
            message.answer = "REQ"
            self.requeue(message, 0, False)
        return unanswered

    def _finish(self, messages: list[Message], outcome: Outcome, now: float) -> None:
        """FIN, with a lower RDY before and a higher one after; without messages, RDY alone."""
        take = self.in_flight.pop
        stamps = [take(message, _GONE) for message in messages]
        if _GONE in stamps:  # two threads have answered the same message; the first one counts
            messages = [message for message, stamp in zip(messages, stamps, strict=True) if stamp != _GONE]
            stamps = [stamp for stamp in stamps if stamp != _GONE]
        before = self._flow.answered(self, messages, stamps, outcome, now) if messages else None
        after = self._flow.rdy_to_send(self, now)
        if not messages:
            if after is not None:
                self.connection.set_rdy(after)
            return
        ids = [message._id for message in messages]
        if not self.connection.finish_many(ids, rdy_before=before, rdy_after=after):
            self._late(messages)
        elif "on_finish" in self._hooks.given:
            for message in messages:
                self._hooks.call("on_finish", message)

    def _late(self, messages: list[Message]) -> None:
        for message in messages:
            log_soon(
                logger.info,
                "%s of message %s came after the connection to %s was lost; nsqd delivers it again",
                message.answer,
                message.id,
                self.address,
            )
