"""A Reader's flow control: from events to RDY.

``policy`` decides; this module carries it out. Every event that can change the plan asks the Reader's control loop for
one (``plan_soon``). The loop plans again when time alone changes the plan: the end of a settling time, of a turn or of
a backoff block, a handler that outlives its message's deadline, a burst that was not filled. It also moves the turns of
silent connections on.

Rules for editors: nothing here switches greenlets. Only this file and ``Subscription`` send RDY.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gnsq_like.options import ReaderOptions
from gnsq_like.policy.board import UNLIMITED
from gnsq_like.policy.rate_limit import RateLimit, within_tokens
from gnsq_like.policy.rdy import Mode, Plan, Settings, plan
from gnsq_like.policy.turns import SilentTurns
from gnsq_like.reader.message import Message, Outcome
from gnsq_like.reader.subscription import Subscription
from gnsq_like.reader.topics import OnBackoff, ReaderCounts, TopicFlows
from gnsq_like.runtime.control_loop import ControlLoop
from gnsq_like.runtime.dispatcher import HookRunner, log_soon
from gnsq_like.runtime.hub_calls import HubHandle
from gnsq_like.runtime.native import draw

logger = logging.getLogger(__name__)

#: Seconds after which a message is slow and leaves its connection's share, if there are several connections.
_SLOW = 2.0

#: Seconds by which a timer may be late before the process counts as having stood still.
_STILL = 0.005

#: A Reader is starved when a connection has this part of its share in flight, as in go-nsq.
_STARVED_SHARE = 0.85


@dataclass(slots=True)
class Steering:
    """The settings of a Reader that may be changed while it runs; next: :meth:`FlowControl.steered`."""

    max_in_flight: int
    rate_limit: float | None
    paused: bool = False


class FlowControl:
    """RDY of all subscriptions of one Reader, by one plan, and backoff of its topics.

    :param loop: the Reader's control loop
    :param hub_handle: the hub in which all of this runs
    :param hooks: of which on_timeout is called
    :param on_backoff: see ``TopicFlows``
    """

    def __init__(
        self,
        options: ReaderOptions,
        loop: ControlLoop,
        hub_handle: HubHandle,
        counts: ReaderCounts,
        steering: Steering,
        hooks: HookRunner,
        *,
        on_backoff: OnBackoff,
    ) -> None:
        self.settings = Settings(
            low_rdy_idle_timeout=options.low_rdy_idle_timeout,
            low_rdy_timeout=options.low_rdy_timeout,
            low_rdy_probe_timeout=options.low_rdy_probe_timeout,
        )
        self.loop = loop
        self.hub_handle = hub_handle
        #: Whether the plan was made to its end since it was asked for.
        self._is_planned = True
        self._overdue = Overdue(hooks, loop)
        self._steering = steering
        rate = steering.rate_limit
        #: None without a rate limit.
        self._limit = None if rate is None else RateLimit(rate, time.monotonic())
        self.topics = TopicFlows(options, counts, on_backoff)
        #: Live subscriptions, and lost ones whose handlers still run, which count against max_in_flight.
        self.subscriptions: dict[Subscription, None] = {}
        #: Called when the last message in flight was answered; set by ``stopping``.
        self.on_drained: Callable[[], object] | None = None
        self._stopped = False
        #: Subscriptions whose RDY is to be adjusted at the end of this iteration of the hub, by ``_adjust``.
        self._unsettled: dict[Subscription, None] = {}
        self._run_callback: Callable[[Callable[[], None]], Any] = hub_handle.hub.loop.run_callback
        #: Whether the last plan raises RDY as soon as what was lowered has settled.
        self._grows = False
        self._turning = Turning(self)

    # -- events -------------------------------------------------------------------------------------

    def add(self, subscription: Subscription) -> None:
        """A connection subscribed."""
        self.subscriptions[subscription] = None
        subscription.topic_flow.connections += 1
        subscription.follow_traffic(self._limit is None)
        self.plan_soon()

    def lose(self, subscription: Subscription) -> None:
        """A connection is lost. Its messages with running handlers stay charged until they are answered."""
        now = time.monotonic()
        # Where answers were interrupted, not all are counted.
        uncounted = subscription.charge.in_flight - len(subscription.in_flight)
        if uncounted > 0:
            subscription.charge.answered(uncounted, now)
            subscription.topic_flow.counts.count(Outcome.LOST, uncounted)
        subscription.charge.lost(now)
        subscription.topic_flow.backoff.lost(subscription, now)
        self._forget_if_done(subscription)
        self.plan_soon()

    def close(self, subscription: Subscription) -> None:
        """CLS is about to be sent: this connection gets no more RDY."""
        now = time.monotonic()
        subscription.charge.close(now)
        subscription.topic_flow.backoff.lost(subscription, now)
        self.plan_soon()

    def received(self, subscription: Subscription, count: int, wants_plan: bool) -> None:
        """A pass brought messages; charge and level know already."""
        subscription.topic_flow.counts.received += count
        if self._stopped:
            return
        if self._limit is not None:
            self._limit.take(count, subscription.connection.last_received_at)
            wants_plan = wants_plan or subscription.charge.in_time >= subscription.charge.rdy
        if wants_plan:
            self.plan_soon()
        self._adjust_soon(subscription)
        subscription.is_write_due = True  # by _adjust

    def answered(
        self, subscription: Subscription, messages: list[Message], stamps: list[int], outcome: Outcome
    ) -> None:
        """Messages of one connection are about to be answered so; without an answer, they are dropped.

        :param stamps: of each, for backoff
        """
        count = len(messages)
        topic, charge = subscription.topic_flow, subscription.charge
        topic.counts.count(outcome if subscription.connection.alive else Outcome.LOST, count)
        now = time.monotonic()
        is_judged = topic.backoff.mode is not Mode.FLOWING or outcome is not Outcome.HANDLED
        if is_judged and topic.judge(outcome, stamps, now):
            self.plan_now()  # before the answer that changed it
            self.topics.report_backoff(topic)
        timeouts = subscription.timeouts
        reserved, slow = timeouts.forget(messages) if charge.reserved or timeouts.touched else (0, 0)
        if self._limit is not None:
            self._spare_tokens(self._limit, subscription, count - reserved, now)
        freed = charge.answered(count, now, reserved=reserved, slow=slow)
        if slow and not self._stopped:
            # The RDY sent counts them; lowered after their answer, nsqd would have sent another message.
            self.plan_now()
            subscription.adjust(now)
        elif freed:
            self.plan_soon()
        if charge.closing:
            self._forget_if_done(subscription)
        elif subscription.connection.rdy != charge.rdy or subscription.level.counts_down:
            self._adjust_soon(subscription)  # not needed in a flood, where RDY is always the share

    def written(self) -> None:
        """Answers have been passed to the connection."""
        if self.on_drained is not None and not self.in_flight:
            self.on_drained()

    def _spare_tokens(self, limit: RateLimit, subscription: Subscription, answers: int, now: float) -> None:
        """RDY 0 before answers for which nsqd could send more messages than the rate limit allows."""
        charge = subscription.charge
        if self._stopped or not charge.rdy:
            return
        if limit.overdraws([each.charge for each in self.subscriptions], charge, answers, now):
            limit.sent(False, now)
            subscription.grant(0, now)
            self.plan_soon()

    def _forget_if_done(self, subscription: Subscription) -> None:
        if subscription.charge.in_flight:
            return
        if subscription.drained is not None:
            subscription.drained.settle()
        if not subscription.connection.alive and subscription in self.subscriptions:
            del self.subscriptions[subscription]
            subscription.topic_flow.connections -= 1
            self.topics.forget(subscription.topic_flow)

    @property
    def is_starved(self) -> bool:
        """Whether some connection has nearly its whole share in flight; more arrives only after answers.

        Not while shares are about to grow, for instance because a silent connection delivered its first message.
        """
        if self._limit is not None:  # whose tokens come with time, without answers
            return self.in_flight >= max(1, int(_STARVED_SHARE * self._steering.max_in_flight))
        return not (self.loop.is_asked_for(self._account_and_plan) or self._grows) and any(
            each.in_flight > 0 and each.in_time >= min(each.rdy, max(1, int(_STARVED_SHARE * each.rdy)))
            for each in [subscription.charge for subscription in list(self.subscriptions) if subscription.alive]
        )

    # -- reactions ----------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Unanswered messages of all connections. From any thread."""
        return sum(subscription.charge.in_flight for subscription in list(self.subscriptions))

    def plan_soon(self) -> None:
        """Plan in the hub's next iteration. Never switches."""
        self._is_planned = False
        self.loop.soon(self._account_and_plan)

    def _account_and_plan(self) -> None:
        self._account()
        self.plan_now()

    def _account(self) -> None:
        """Account and write the FINs that are noted, so that what follows counts no answered message as in flight."""
        for subscription in [each for each in self.subscriptions if each.finished]:  # a lost one leaves the table
            subscription.write_finished()

    def plan_now(self) -> None:
        """Make a plan and send its changes."""
        self._is_planned = False
        self.loop.cancel(self._account_and_plan)
        if self._stopped:
            return
        now = time.monotonic()
        result = self._plan(now)
        for subscription, rdy in result.changes:
            if self._limit is not None:
                self._limit.sent(rdy > subscription.charge.rdy, now)
            if rdy > subscription.charge.rdy and subscription in self._unsettled:
                subscription.charge.sent(rdy, now)  # its RDY follows when the handlers have started
            else:
                subscription.grant(rdy, now)
        for at in (result.next_at, self.topics.blocked_until):
            if at is not None:
                self.loop.by(at, self._tick)
        self._arm(self.subscriptions)
        self._grows = result.grows
        self._turning.carry_on(result.turns, now)
        self._is_planned = True

    def _plan(self, now: float) -> Plan[Subscription]:
        charges = [subscription.charge for subscription in self.subscriptions]
        most = 0 if self._steering.paused else self._steering.max_in_flight
        settings, limit = self.settings, self._limit
        made = plan(
            charges,
            max_in_flight=most,
            now=now,
            modes=self.topics.modes,
            settings=settings,
            draw=draw,
            tokens=UNLIMITED if limit is None else int(limit.capacity),
            is_read=lambda subscription: subscription.connection.at_rest,
        )
        return made if limit is None else within_tokens(made, charges, limit, now=now, settings=settings, draw=draw)

    def steered(self) -> None:
        """The settings have changed. Never switches."""
        rate = self._steering.rate_limit
        if rate != (None if self._limit is None else self._limit.rate):
            now = time.monotonic()
            if rate is not None and self._limit is not None:
                self._limit.change(rate, now)
            else:
                self._limit = None if rate is None else RateLimit(rate, now)
                for subscription in self.subscriptions:
                    if not subscription.level.counts_down:  # else it counts what nsqd has left
                        subscription.follow_traffic(rate is None)
                    self._adjust_soon(subscription)
        self.plan_soon()

    def stood_still(self) -> bool:
        """Whether the process was blocked when this action of the control loop was due. Never switches.

        Messages may wait in its sockets, so the time is not counted as silence, nor as part of turns, and a moment
        more is given in which the sockets are read.
        """
        late = self.loop.late
        if late < _STILL:
            return False
        now = time.monotonic()
        for subscription in self.subscriptions:
            subscription.charge.excuse(late + self.settings.settle_minimum, now)
        return True

    def stop(self) -> None:
        """Send no more RDY; twice is fine."""
        self._stopped = True
        for action in (self._tick, self._look_at_bursts):
            self.loop.cancel(action)
        self._turning.carry_on(None, time.monotonic())
        self._overdue.stop()

    def _adjust_soon(self, subscription: Subscription) -> None:
        if not self._unsettled:
            self._run_callback(self._adjust)
        self._unsettled[subscription] = None

    def _adjust(self) -> None:
        # In the hub, after the handlers of received messages have begun.
        for subscription in list(self._unsettled):
            subscription.write_finished()
        if self._stopped:
            self._unsettled.clear()
            return
        now = time.monotonic()
        for subscription in list(self._unsettled):
            subscription.adjust(now)
            if subscription.in_flight or subscription.level.due is not None:
                self._arm((subscription,))
            del self._unsettled[subscription]

    def look(self) -> None:
        """Look at everything, as the control loop does once a second. Never switches.

        Where answers were interrupted, by an exception of a signal handler, the connection ends: nsqd delivers again.
        """
        for subscription in list(self.subscriptions):
            if subscription.charge.in_flight != len(subscription.in_flight):
                subscription.connection.end("answers were interrupted")
                self.lose(subscription)
        self._account()
        self._adjust()
        if not (self._is_planned or self._stopped):
            self.plan_now()

    def _arm(self, subscriptions: Iterable[Subscription]) -> None:
        """Have the control loop act at the next deadline, and at the next ``due`` of a level, of these subscriptions.

        Too early is harmless. The other subscriptions were armed before, and all of them are checked then.
        """
        deadline: float | None = None
        slow_after = self._slow_after
        for subscription in subscriptions:
            due = subscription.level.due
            if due is not None:
                self.loop.by(due, self._look_at_bursts)
            due = subscription.timeouts.next_look(slow_after)
            if due is not None and (deadline is None or due < deadline):
                deadline = due
        if deadline is not None:
            self.loop.by(deadline, self._tick)

    def _look_at_bursts(self) -> None:
        self._account()
        now = time.monotonic()
        for subscription in self.subscriptions:
            due = subscription.level.due
            if due is not None and now >= due:
                subscription.level.quiet(now)
                subscription.adjust(now)
                due = subscription.level.due
            if due is not None:
                self.loop.by(due, self._look_at_bursts)

    def _tick(self) -> None:
        if self._stopped:
            return
        self._account()
        self.stood_still()
        now = time.monotonic()
        for subscription in self.subscriptions:
            overdue, gone = subscription.timeouts.look(now, self._slow_after)
            for message in gone:
                subscription.forget(message)
            for message in overdue:
                subscription.topic_flow.backoff.inconclusive(subscription.in_flight[message], now)
            if overdue:
                self._overdue.add(subscription, overdue)
        for topic in self.topics.values():
            if topic.backoff.time_is_up(now):
                log_soon(logger.info, "backoff of %s: testing with one message", topic.topic)
        self.plan_now()
        for subscription in self.subscriptions:
            subscription.adjust(now)  # what was reserved without a change of its share

    @property
    def _slow_after(self) -> float:
        return _SLOW if len(self.subscriptions) > 1 else math.inf


class Turning:
    """Carries on with the turns of silent connections from one plan to the next."""

    def __init__(self, flow: FlowControl) -> None:
        self._flow = flow
        #: Those of the last plan.
        self._turns: SilentTurns[Subscription] | None = None
        #: Whether a late tick waits until the sockets are read.
        self._reads_first = False

    def carry_on(self, turns: SilentTurns[Subscription] | None, now: float) -> bool:
        """With these turns from now on, or with none; returns whether one is due."""
        self._turns = turns
        self._reads_first = False
        self._flow.loop.cancel(self._tick)
        next_at = None if turns is None else turns.next_at(now)
        if next_at is None:
            return False
        self._flow.loop.by(next_at, self._tick)
        return True

    def _tick(self) -> None:
        flow, turns = self._flow, self._turns
        if turns is None:
            return
        if flow.stood_still() and not self._reads_first:
            # No plan: on a busy machine, many ticks are late. Only once, so that turns go on if all are.
            self._reads_first = True
            flow.loop.by(time.monotonic() + flow.settings.settle_minimum, self._tick)
            return
        now = time.monotonic()
        for charge, rdy in turns.tick(now):
            charge.key.grant(rdy, now)
        if not self.carry_on(turns, now):
            flow.plan_now()


class Overdue:
    """Reports overdue messages: to the log, and to ``on_timeout`` when their time at nsqd is really over.

    A message counts as overdue shortly before that, and may still be answered or touched.
    """

    def __init__(self, hooks: HookRunner, loop: ControlLoop) -> None:
        self._hooks = hooks
        self._loop = loop
        self._messages: list[Message] = []

    def add(self, subscription: Subscription, messages: list[Message]) -> None:
        """Report these messages of one connection. Never switches."""
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
        if self._hooks.wants("on_timeout"):
            self._messages += messages
            self._watch()

    def _watch(self) -> None:
        if self._messages:
            self._loop.by(min(message.timeout_at for message in self._messages), self._check)

    def stop(self) -> None:
        """Report no more; twice is fine."""
        self._messages.clear()
        self._loop.cancel(self._check)

    def _check(self) -> None:
        # One that was touched is no longer overdue, and is added again when it is.
        left = [each for each in self._messages if each.answer is None and each.is_overdue]
        now = time.monotonic()
        self._messages = [message for message in left if message.timeout_at > now]
        for message in left:
            if message.timeout_at <= now:
                self._hooks.call("on_timeout", message)
        self._watch()
