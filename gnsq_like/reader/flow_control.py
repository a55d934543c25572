"""A Reader's flow control: from events to RDY.

``policy`` decides; this module carries it out. ``Places`` gets each message, each answer and each connection, in the
order in which nsqd sees them. The RDY commands that it returns are sent at once. In each turn of the hub in which
messages came, ``_adjust`` writes the answers of their handlers with the RDY that fits, without a plan. The Reader's
control loop alone plans: when an event asked for it (``plan_soon``), and when time alone makes it due: the end of a
settling time, of a turn or of a backoff block, a handler that outlives its message's deadline. It also cuts bursts that
have not come.

Rules for editors: nothing here switches greenlets. Only this file and ``Subscription`` send RDY.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from gnsq_like.policy.backoff import Mode
from gnsq_like.policy.charge import FOREVER
from gnsq_like.policy.places import Places, Settings
from gnsq_like.policy.rate_limit import RateLimit
from gnsq_like.reader.message import Message, Outcome
from gnsq_like.reader.setup import Setup
from gnsq_like.reader.subscription import Subscription
from gnsq_like.reader.topics import ReaderCounts, TopicFlows
from gnsq_like.runtime.control_loop import ControlLoop
from gnsq_like.runtime.dispatcher import log_soon
from gnsq_like.runtime.hub_calls import HubHandle
from gnsq_like.runtime.native import draw

logger = logging.getLogger(__name__)

#: Seconds after which a message is slow and leaves its connection's share, if there are several connections.
_SLOW = 2.0

#: Seconds between two turns of the hub from which it has waited for its sockets: in a busy process, they are closer.
_WAITED = 0.001

#: A Reader is starved when a connection has this part of its share in flight, as in go-nsq.
_STARVED_SHARE = 0.85


class FlowControl:
    """RDY of all subscriptions of one Reader, by one plan, and backoff of its topics.

    :param loop: the Reader's control loop
    :param hub_handle: the hub in which all of this runs
    """

    def __init__(self, setup: Setup, counts: ReaderCounts, loop: ControlLoop, hub_handle: HubHandle) -> None:
        self._setup = setup
        self.loop = loop
        self.hub_handle = hub_handle
        options = setup.options
        #: The RDY plan; its keys are the subscriptions.
        self.places: Places[Subscription] = Places(
            Settings(options.low_rdy_timeout, options.low_rdy_idle_timeout, options.low_rdy_probe_timeout),
            is_written=lambda subscription: subscription.connection.is_written,
            is_read=lambda subscription: subscription.connection.at_rest,
            phase=1000 * draw(),
        )
        if setup.rate_limit is not None:
            self.places.limit = RateLimit(setup.rate_limit, time.monotonic())
        #: Whether the plan was made to its end since it was asked for.
        self._is_planned = True
        self.topics = TopicFlows(setup, counts)
        #: Called when the last message in flight was answered; set by ``Running``.
        self.on_drained: Callable[[], object] | None = None
        self._stopped = False
        #: Subscriptions whose RDY is to be adjusted at the end of this iteration of the hub, by ``_adjust``.
        self._unsettled: dict[Subscription, None] = {}
        self._run_callback: Callable[[Callable[[], None]], Any] = hub_handle.hub.loop.run_callback
        #: When to look at the messages' deadlines.
        self._deadline = FOREVER
        #: Overdue messages whose time at nsqd is not over yet, for ``on_timeout``.
        self._timing_out: list[Message] = []
        self._clock = TurnClock()
        #: Whether it was logged that there are fewer places than connections.
        self._said_few = False

    @property
    def subscriptions(self) -> list[Subscription]:
        """Live ones, and lost ones whose handlers still run: they count against max_in_flight. From any thread."""
        return [line.key for line in list(self.places.lines)]

    # -- events -------------------------------------------------------------------------------------

    def add(self, subscription: Subscription) -> None:
        """A connection subscribed. It shares the round trip of those to the same nsqd."""
        for other in self.subscriptions:
            if other.address == subscription.address and other.alive:
                other.line.round_trip.measured(subscription.line.round_trip.seconds)
                subscription.line.round_trip = other.line.round_trip
                break
        self.places.opened(subscription.line)
        self.plan_soon()

    def lose(self, subscription: Subscription) -> None:
        """A connection is lost. Its messages with running handlers stay charged until they are answered."""
        now = time.monotonic()
        # Where answers were interrupted, not all are counted.
        uncounted = subscription.line.in_flight - len(subscription.in_flight)
        if uncounted > 0:
            self.places.answered(subscription.line, uncounted, now)
            subscription.topic_flow.counts.count(Outcome.LOST, uncounted)
        subscription.line.lost()
        subscription.topic_flow.backoff.lost(subscription, now)
        self._forget_if_done(subscription)
        self.plan_soon()

    def close(self, subscription: Subscription) -> None:
        """CLS is about to be sent: this connection gets no more RDY."""
        now = time.monotonic()
        self.places.closing(subscription.line, now)
        subscription.topic_flow.backoff.lost(subscription, now)
        self.plan_soon()

    def received(self, subscription: Subscription, count: int) -> None:
        """Account for the messages of a read."""
        subscription.topic_flow.counts.received += count
        now = subscription.connection.last_received_at
        self.places.received(subscription.line, count, now, self._clock.late(now))
        if not self._stopped:
            subscription.write_soon()

    def answered(
        self, subscription: Subscription, messages: list[Message], stamps: list[int], outcome: Outcome, now: float
    ) -> int | None:
        """Account for answers to messages of one connection, before they are written; without an answer, messages are
        dropped.

        Next: ``rdy_to_send``, now or soon (``adjust_soon``).

        :param stamps: of each, for backoff
        :returns: the RDY to send before, or None
        """
        count = len(messages)
        topic, line = subscription.topic_flow, subscription.line
        topic.counts.count(outcome if subscription.connection.alive else Outcome.LOST, count)
        is_judged = topic.backoff.mode is not Mode.FLOWING or outcome is not Outcome.HANDLED
        if is_judged and topic.judge(outcome, stamps, now):
            self.plan_now()  # before the answer that changed it
            self.topics.report_backoff(topic)
        timeouts = subscription.timeouts
        slow, overdue = timeouts.forget(messages) if line.slow or line.overdue or timeouts.touched else (0, 0)
        rdy = self.places.answered(line, count, now, slow, overdue)
        if self.places.plan_at <= now:
            self.plan_soon()
        if line.closing:
            self._forget_if_done(subscription)
        return None if self._stopped else rdy

    def _forget_if_done(self, subscription: Subscription) -> None:
        if subscription.line.in_flight:
            return
        if subscription.drained is not None:
            subscription.drained.settle()
        if not subscription.connection.alive:
            self.places.forget(subscription.line)
        if self.on_drained is not None and not self.in_flight:
            self.on_drained()

    @property
    def is_starved(self) -> bool:
        """Whether some connection has nearly its whole share in flight; more arrives only after answers.

        Not while shares are about to grow, for instance because a silent connection delivered its first message.
        """
        if self.places.limit is not None:  # whose tokens come with time, without answers
            return self.in_flight >= max(1, int(_STARVED_SHARE * self._setup.max_in_flight))
        return not (self.loop.is_asked_for(self._account_and_plan) or self.places.grows) and any(
            each.in_flight > 0 and each.in_time >= min(each.share, max(1, int(_STARVED_SHARE * each.share)))
            for each in [subscription.line for subscription in self.subscriptions if subscription.alive]
        )

    # -- reactions ----------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Unanswered messages of all connections. From any thread."""
        return sum(line.in_flight for line in list(self.places.lines))

    def plan_soon(self) -> None:
        """Plan in the hub's next iteration. Never switches."""
        self._is_planned = False
        self.loop.soon(self._account_and_plan)

    def _account_and_plan(self) -> None:
        self._account()
        self.plan_now()

    def _account(self) -> None:
        """Account and write the noted FINs, so that no answered message counts as in flight afterwards."""
        now = time.monotonic()
        for subscription in [each for each in self.subscriptions if each.finished]:  # a lost one leaves the table
            subscription.write(now)

    def plan_now(self) -> None:
        """Make a plan and send its changes."""
        self._is_planned = False
        self.loop.cancel(self._account_and_plan)
        if self._stopped:
            return
        self.places.most = most = 0 if self._setup.paused else self._setup.max_in_flight
        if 0 < most < len(self.places.lines) and not self._said_few:
            self._said_few = True
            text = "max_in_flight=%d is less than the number of connections: they take turns, so messages may wait"
            log_soon(logger.warning, text, most)
        self._send(self.places.plan(time.monotonic(), self.topics.modes))
        self.places.plan_at = min(self.places.plan_at, self.topics.blocked_until)
        self._set_timer()
        self._is_planned = True

    def _send(self, commands: Iterable[tuple[Subscription, int]]) -> None:
        for subscription, rdy in commands:
            subscription.connection.set_rdy(rdy)

    def steered(self) -> None:
        """The settings have changed. Never switches."""
        rate, now, limit = self._setup.rate_limit, time.monotonic(), self.places.limit
        if rate is not None and limit is not None:
            limit.change(rate, now)
        elif rate is not None or limit is not None:
            self.places.set_limit(None if rate is None else RateLimit(rate, now))
            for subscription in self.subscriptions:
                self.adjust_soon(subscription)
        self.plan_soon()

    def stop(self) -> None:
        """Send no more RDY; twice is fine."""
        self._stopped = True
        self.loop.cancel(self._tick)

    def adjust_soon(self, subscription: Subscription) -> None:
        """Write its answers and its RDY in the hub's next iteration. Never switches."""
        is_first = not self._unsettled
        self._unsettled[subscription] = None  # first: a signal handler may let the hub run
        if is_first:
            self._run_callback(self._adjust)

    def _adjust(self) -> None:
        # In the hub, after the handlers of received messages have begun.
        now = time.monotonic()
        for subscription in list(self._unsettled):
            subscription.write(now)
            self._unsettled.pop(subscription, None)
        self._clock.end(now)
        if self._stopped:
            return
        if self.places.plan_at <= now:
            self.plan_soon()
        else:
            self._set_timer()

    def rdy_to_send(self, subscription: Subscription, now: float) -> int | None:
        """The RDY to send after the answers that were written, or None."""
        if self._stopped:
            return None
        if subscription.in_flight:
            self._deadline = min(self._deadline, subscription.timeouts.next_look(self._slow_after))
        return self.places.flush(subscription.line, now)

    def look(self) -> None:
        """Look at everything, as the control loop does once a second. Never switches.

        Where answers were interrupted, by an exception of a signal handler, the connection ends: nsqd delivers again.
        """
        for subscription in self.subscriptions:
            line, connection = subscription.line, subscription.connection
            if line.in_flight != len(subscription.in_flight):
                connection.end("answers were interrupted")
                self.lose(subscription)
            elif connection.rdy != line.rdy and not (self._stopped or line.level.counts_down):
                connection.set_rdy(line.rdy)  # a plan was interrupted
        self._account()
        if not (self._is_planned or self._stopped):
            self.plan_now()
            self._unsettled.update(dict.fromkeys(self.subscriptions))  # it may have granted shares without RDY
        self._adjust()

    def look_soon(self) -> None:
        """Look at the deadlines of all messages: one of them has changed. Never switches."""
        self._deadline = time.monotonic()
        self._set_timer()

    def _set_timer(self) -> None:
        """Too early is harmless."""
        at = min(self.places.plan_at, self.places.cut_at, self._deadline)
        if at < FOREVER:
            self.loop.by(at, self._tick)

    def _tick(self) -> None:
        if self._stopped:
            return
        self._account()
        now = time.monotonic()
        if now >= self._deadline:
            self._look_at_deadlines(now)
        for topic in self.topics.values():
            if topic.backoff.time_is_up(now):
                log_soon(logger.info, "backoff of %s: testing with one message", topic.topic)
        if now >= self.places.cut_at:
            self._send(self.places.cut(now))
        if now >= self.places.plan_at:
            self.plan_now()
        else:
            self._set_timer()

    def hasten_backoff(self, seconds: float) -> None:
        """For the test kit: backoff ends so much sooner. Never switches."""
        for topic in self.topics.values():
            topic.backoff.hasten(seconds)
        self._tick()
        self.plan_soon()

    def _look_at_deadlines(self, now: float) -> None:
        slow_after = self._slow_after
        for subscription in self.subscriptions:
            slow, overdue, gone = subscription.timeouts.look(now, slow_after)
            if overdue or slow:
                self.places.take_out(subscription.line, slow, len(overdue), now)
            for message in gone:
                subscription.forget(message)
            for message in overdue:
                subscription.topic_flow.backoff.inconclusive(subscription.in_flight[message], now)
            if overdue:
                self._report_overdue(subscription, overdue)
        # One that was touched is no longer overdue, and comes again when it is.
        left = [each for each in self._timing_out if each.answer is None and each.is_overdue]
        self._timing_out = [message for message in left if message.timeout_at > now]
        for message in left:
            if message.timeout_at <= now:
                self._setup.hooks.call("on_timeout", message)
        looks = [each.timeouts.next_look(slow_after) for each in self.subscriptions]
        self._deadline = min([FOREVER, *looks, *(message.timeout_at for message in self._timing_out)])

    def _report_overdue(self, subscription: Subscription, messages: list[Message]) -> None:
        """Report them to the log, and to ``on_timeout`` when their time at nsqd is over: they may still be answered."""
        log_soon(
            logger.warning,
            "%d messages of %s/%s from %s were not answered within msg_timeout=%g s, the first of them %s; "
            "nsqd delivers them again",
            len(messages),
            subscription.topic,
            subscription.channel,
            subscription.address,
            subscription.msg_timeout,
            messages[0].id,
            extra=messages[0].log_fields,
        )
        if "on_timeout" in self._setup.hooks.given:
            self._timing_out += messages

    @property
    def _slow_after(self) -> float:
        return _SLOW if len(self.places.lines) > 1 else FOREVER


class TurnClock:
    """How long ago a message that is read now may have come: as long as this process did not poll its sockets.

    When the hub polls cannot be seen. But each turn of the hub in which messages came or were answered ends with
    ``FlowControl._adjust``; where the next one begins hardly later, the hub has not waited, and what it finds may have
    come since the turn before began.
    """

    def __init__(self) -> None:
        #: When this turn, or the last one, began and ended; since when what it reads may have come.
        self._began = self._ended = self._since = 0.0
        self._is_over = True

    def late(self, now: float) -> float:
        """Seconds for which a message that is read now may have waited."""
        if self._is_over:
            self._is_over = False
            self._since = now if now - self._ended > _WAITED else self._began
            self._began = now
        return now - self._since

    def end(self, now: float) -> None:
        """Note that the hub is about to poll, after a turn that began now if it read nothing."""
        if self._is_over:
            self._began = now
        self._is_over, self._ended = True, now
