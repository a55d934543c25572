"""Slow, overdue and touched messages of one connection.

- After some seconds a message is *slow*: it leaves its connection's share, see ``policy.charge``.
- Shortly before its deadline it is *overdue*: nsqd is about to deliver it again, and its handler keeps its place.
- One that was dropped because its time was over keeps its place until nsqd has certainly taken it back.
- One for which ``touch_until_answered`` was called is touched when half of its time is over. That ends with its answer,
  with its connection, and when TOUCH no longer moves its deadline because nsqd's max-msg-timeout is near.

Messages reach these times in the order of their arrival, except touched ones, so a look ends at the first message whose
time has not come.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from gnsq_like.errors import NsqdError
from gnsq_like.policy.charge import FOREVER
from gnsq_like.policy.line import Line
from gnsq_like.reader.message import Message
from gnsq_like.runtime.control_loop import ControlLoop

#: Seconds before its deadline at which a message is overdue: nsqd checks every 0.1 s (docs/internals 2.5).
_MARGIN = 0.25
#: At most this part of msg_timeout, which may be very short.
_MARGIN_SHARE = 0.1
#: The round trip before it, but no more than this part of msg_timeout.
_ROUND_TRIP_SHARE = 0.5
#: Seconds within which nsqd finds that a message was not answered in time (docs/internals 2.5).
_QUEUE_SCAN = 0.1
#: As many as nsqd has in flight for a connection at most.
_MOST_OVERDUE_IDS = 2500
#: The part of its time after which a message is touched.
_TOUCHED_AFTER = 0.5


class MessageTimeouts:
    """The times of one connection's messages. All is in the hub, and never switches.

    :param in_flight: the unanswered messages, the oldest first; kept up to date by the owner
    :param msg_timeout: seconds within which nsqd expects an answer
    :param touch: sends TOUCH for a message
    :param loop: the Reader's control loop
    """

    def __init__(
        self,
        in_flight: Collection[Message],
        line: Line[Any],
        msg_timeout: float,
        touch: Callable[[Message], None],
        loop: ControlLoop,
    ) -> None:
        self._in_flight = in_flight
        self._line = line
        self._msg_timeout = msg_timeout
        self._touch = touch
        #: Those that are slow, and not overdue.
        self._slow: set[Message] = set()
        #: The ids of the last messages that were overdue before they were answered.
        self._overdue_ids: deque[str] = deque(maxlen=_MOST_OVERDUE_IDS)
        #: Those that are touched.
        self.touched: dict[Message, None] = {}
        self._loop = loop

    @property
    def _margin(self) -> float:
        """Seconds before its deadline, as the Reader knows it, at which a message is overdue.

        nsqd sent it half a round trip before it arrived, and the RDY that is sent then takes another half.
        """
        round_trip = min(self._line.round_trip.seconds, _ROUND_TRIP_SHARE * self._msg_timeout)
        return min(_MARGIN, _MARGIN_SHARE * self._msg_timeout) + round_trip

    def look(self, now: float, slow_after: float) -> tuple[int, list[Message], list[Message]]:
        """Find the messages whose handlers take long. Next: ``Places.take_out``.

        :param slow_after: seconds after which a message is slow
        :returns: how many more are slow, the messages that have become overdue, and dropped ones that nsqd has taken
            back
        """
        overdue: list[Message] = []
        slow: list[Message] = []
        gone: list[Message] = []
        margin = self._margin
        for message in self._in_flight:
            if message.received_at + min(slow_after, self._msg_timeout - margin) > now:
                break
            if message.is_overdue:
                if message.answer == "LOST" and _free_at(message) <= now:
                    gone.append(message)
            elif message.timeout_at - margin <= now:
                message.is_overdue = True
                overdue.append(message)
                self._overdue_ids.append(message.id)
            elif message.received_at + slow_after <= now and message not in self._slow:
                slow.append(message)
        before = len(self._slow)
        self._slow.difference_update(overdue)
        self._slow.update(slow)
        return len(self._slow) - before, overdue, gone

    def next_look(self, slow_after: float) -> float:
        """When :meth:`look` may find the next message; FOREVER if it cannot."""
        due = FOREVER
        margin = self._margin
        for message in self._in_flight:
            if message.is_overdue:
                if message.answer == "LOST":
                    due = min(due, _free_at(message))
                continue
            at = message.timeout_at - margin
            if message not in self._slow:
                at = min(at, message.received_at + slow_after)
            due = min(due, at)
            if message.touched_at == message.received_at and message not in self._slow:
                break
        return due

    def forget(self, messages: list[Message]) -> tuple[int, int]:
        """Forget messages that are about to leave ``in_flight``; returns how many were slow, and how many overdue.

        Needs no call if none is, and none ``touched``.
        """
        for message in messages:
            self.touched.pop(message, None)
        slow = self._slow.intersection(messages)
        self._slow -= slow
        return len(slow), sum(message.is_overdue for message in messages)

    def was_overdue(self, error: NsqdError) -> bool:
        """Whether nsqd refused an answer because the message's time was over: ``FIN 0123456789abcdef failed …``."""
        return bool(set(error.detail.split()).intersection(self._overdue_ids))

    # -- touching -----------------------------------------------------------------------------------

    def touch_until_answered(self, message: Message) -> None:
        """Touch this message, which is in flight, from now on."""
        self.touched[message] = None
        self._loop.by(_touch_at(message), self._touch_due)

    def stop_touching(self) -> None:
        """End the touching of a message."""
        self._loop.cancel(self._touch_due)

    def _touch_due(self) -> None:
        now = time.monotonic()
        for message in [each for each in self.touched if each.answer is None]:
            if _touch_at(message) <= now:
                deadline = message.timeout_at
                self._touch(message)
                if message.timeout_at <= deadline:
                    del self.touched[message]
                    continue
            self._loop.by(_touch_at(message), self._touch_due)


def _touch_at(message: Message) -> float:
    """Monotonic time of the next TOUCH."""
    return message.touched_at + (message.timeout_at - message.touched_at) * _TOUCHED_AFTER


def _free_at(message: Message) -> float:
    """Time at which nsqd has certainly taken back a dropped message, which then leaves its place."""
    return message.timeout_at + _QUEUE_SCAN
