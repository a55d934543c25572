"""One connection of a Reader: the messages it holds, their answers, and its RDY.

``in_flight`` is the truth about which messages are unanswered: an answer counts once, when its message
is taken out. Answers may come from any thread; what they change, and the wire, belongs to the Reader's
hub, so an answer from elsewhere is handed over to it.

What RDY should be is decided by ``flow`` and ``policy``; here it is only sent and noted.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from gnsq_like.connection.connection import Connection
from gnsq_like.policy.adaptive_rdy import AdaptiveRdy
from gnsq_like.policy.rdy import Charge, Settings
from gnsq_like.policy.renewal import Renewal
from gnsq_like.reader.message import Message
from gnsq_like.runtime.hub_calls import thread_id
from gnsq_like.wire.frames import RawMessage

if TYPE_CHECKING:
    from gnsq_like.reader.flow_control import FlowControl

logger = logging.getLogger(__name__)

#: nsqd's default of output-buffer-timeout in seconds, for one that does not say (docs/internals 7.1).
_BUFFER_TIMEOUT = 0.25


class Subscription:
    """A connection that is subscribed.

    :param connection: connected and subscribed
    :param flow: decides RDY, and is told of every answer
    :param adaptive: whether RDY follows the traffic below its share
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        channel: str,
        flow: FlowControl,
        settings: Settings,
        *,
        adaptive: bool,
    ) -> None:
        self.connection = connection
        self.topic = topic
        self.channel = channel
        self.address = connection.address
        negotiated = connection.negotiated
        self.msg_timeout = negotiated.msg_timeout
        # nsqd caps only what TOUCH gives (docs/internals 1.7), so a cap below msg_timeout means nothing before.
        longest = negotiated.max_msg_timeout
        self.max_msg_timeout = None if longest is None else max(longest, self.msg_timeout)
        self.charge = Charge(
            self,
            time.monotonic(),
            settings,
            max_rdy=negotiated.max_rdy_count,
            round_trip=connection.round_trip,
        )
        buffer_timeout = negotiated.output_buffer_timeout
        #: None where RDY is simply the share.
        self.level = (
            AdaptiveRdy(connection.round_trip, _BUFFER_TIMEOUT if buffer_timeout is None else buffer_timeout)
            if adaptive
            else None
        )
        #: For an nsqd that counts RDY down; then there is no level.
        self.renewal: Renewal | None = None
        if negotiated.counts_rdy_down:
            self.renewal, self.level = Renewal(), None
        #: Unanswered messages, the oldest first (a dict as an ordered set).
        self.in_flight: dict[Message, None] = {}
        self._flow = flow
        self._thread = thread_id()

    def __repr__(self) -> str:
        return f"<Subscription {self.topic}/{self.channel} on {self.connection!r}>"

    def receive(self, raw_messages: list[RawMessage]) -> list[Message]:
        """Take in one pass over what came. Never switches."""
        now = self.connection.last_received_at
        count = len(raw_messages)
        stamps = self._flow.stamps(self, count)
        messages = [Message(raw, self, now, stamp) for raw, stamp in zip(raw_messages, stamps, strict=False)]
        self.in_flight.update(dict.fromkeys(messages))
        wants_plan = self.charge.received(count, now)
        if self.level is not None:
            self.level.received(count, self.charge.in_flight, now)
        elif self.renewal is not None:
            self.renewal.received(count)
        self._flow.received(self, count, wants_plan)
        return messages

    # -- RDY ----------------------------------------------------------------------------------------

    def grant(self, rdy: int, now: float) -> None:
        """The plan's word: this is the share from now on. Never switches."""
        self.charge.sent(rdy, now)
        self.adjust(now)

    def adjust(self, now: float) -> None:
        """Send the RDY that is right for what is in flight, if it is another than the last. Never switches."""
        share = self.charge.rdy
        if self.level is not None:
            # Overdue ones too: nsqd may count them yet. An RDY that is too high costs its buffer's time at most.
            rdy = self.level.target(self.charge.in_flight, share, now)
            if rdy != self.level.rdy and self.connection.set_rdy(rdy):
                self.level.sent(rdy, now)
        elif self.renewal is None:
            if share != self.connection.rdy:
                self.connection.set_rdy(share)
        else:
            self._renew(self.renewal, share)

    def _renew(self, renewal: Renewal, share: int) -> None:
        in_time = self.charge.in_time
        wanted = renewal.wanted(share, in_time)
        if renewal.left and renewal.left + in_time > share:
            wanted = max(0, share - in_time)
        if wanted is not None and self.connection.set_rdy(wanted):
            renewal.sent(wanted)

    # -- deadlines ----------------------------------------------------------------------------------

    def reserve_overdue(self, now: float, margin: float) -> list[Message]:
        """Note the messages that nsqd is about to take back; their handlers keep their places.

        :param margin: seconds before the deadline at which a message counts as overdue
        :returns: those that are newly noted
        """
        overdue: list[Message] = []
        for message in self.in_flight:
            if message.received_at + self.msg_timeout - margin > now:
                break  # those behind it came later, and a TOUCH only adds time
            if not message.is_overdue and message.timeout_at - margin <= now:
                message.is_overdue = True
                overdue.append(message)
        if overdue:
            self.charge.reserve(len(overdue))
        return overdue

    def next_deadline(self) -> float | None:
        """When the first message that is not overdue yet becomes so; None if there is none."""
        due: float | None = None
        for message in self.in_flight:
            if not message.is_overdue:
                due = message.timeout_at if due is None else min(due, message.timeout_at)
                if not message.was_touched:
                    break  # those behind it came later
        return due

    # -- answers, from any thread -------------------------------------------------------------------

    def finish(self, message: Message, handled: bool = True) -> None:
        """Send FIN. Never switches.

        :param handled: False for a message that is given up, which says nothing about the handler
        """
        if thread_id() == self._thread:
            self._finish(message, handled)
        else:
            self._flow.hub_handle.call(self._finish, message, handled)

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        """Send REQ. Never switches."""
        if thread_id() == self._thread:
            self._requeue(message, delay, backoff)
        else:
            self._flow.hub_handle.call(self._requeue, message, delay, backoff)

    def touch(self, message: Message) -> None:
        """Send TOUCH. Never switches."""
        if thread_id() == self._thread:
            self._touch(message)
        else:
            self._flow.hub_handle.call(self._touch, message)

    def _finish(self, message: Message, handled: bool) -> None:
        if not self._take(message):
            return
        # RDY first: when this answer changes the flow, nsqd must not send another message for it.
        self._flow.finished(self, message, handled)
        if not self.connection.finish(message.raw_id):
            self._late(message)

    def _requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        if not self._take(message):
            return
        self._flow.requeued(self, message, backoff)
        if delay is None:
            delay = self._flow.requeue_delay(message.attempts)
        if not self.connection.requeue(message.raw_id, delay):
            self._late(message)

    def _touch(self, message: Message) -> None:
        now = time.monotonic()
        if message not in self.in_flight or now >= message.timeout_at:
            logger.debug("touch of message %s: too late, nsqd delivers it again", message.id)
        elif self.connection.touch(message.raw_id):
            message.touched(now)
            if message.is_overdue:
                message.is_overdue = False
                self.charge.reserve(-1)
                self._flow.plan_soon()

    def _take(self, message: Message) -> bool:
        if message not in self.in_flight:
            return False
        del self.in_flight[message]
        return True

    def drop(self, message: Message) -> None:
        """Forget a message without an answer: its connection is gone, and nsqd delivers it again."""
        message.answer = "LOST"
        if self._take(message):
            self._flow.dropped(self, message)

    def _late(self, message: Message) -> None:
        logger.info(
            "%s of message %s came after the connection to %s was lost: nsqd delivers it again",
            message.answer,
            message.id,
            self.address,
        )
