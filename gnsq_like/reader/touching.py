"""``Message.touch_until_answered``: which messages of a connection are touched, and when.

A message is touched when half of its time is over. That ends with its answer, with its connection, and when TOUCH no
longer moves its deadline because nsqd's max-msg-timeout is near.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from gnsq_like.reader.message import Message
from gnsq_like.runtime.timer import Timer

#: The part of its time after which a message is touched.
_SHARE = 0.5


class Touching:
    """Touches messages of one connection. All is in the hub, and never switches.

    :param in_flight: its unanswered messages, kept up to date by the owner
    :param touch: sends TOUCH for one of them
    """

    def __init__(self, in_flight: Collection[Message], touch: Callable[[Message], None]) -> None:
        self._in_flight = in_flight
        self._touch = touch
        self._timer = Timer(self._touch_due)

    def add(self, message: Message) -> None:
        """Touch this message, which is in flight, from now on."""
        message._is_touched = True
        self._timer.set_by(_due(message))

    def stop(self) -> None:
        """Touch no more."""
        self._timer.cancel()

    def _touch_due(self) -> None:
        now = time.monotonic()
        for message in [each for each in self._in_flight if each._is_touched and each.answer is None]:
            if _due(message) <= now:
                deadline = message.timeout_at
                self._touch(message)
                if message.timeout_at <= deadline:
                    message._is_touched = False
                    continue
            self._timer.set_by(_due(message))


def _due(message: Message) -> float:
    """Monotonic time of the next TOUCH."""
    return message._touched_at + (message.timeout_at - message._touched_at) * _SHARE
