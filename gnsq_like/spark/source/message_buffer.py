"""Collects the messages of one connection until there are enough, or waiting for more is pointless."""

from __future__ import annotations

import time

from gevent.event import Event

from gnsq_like import Connection
from gnsq_like.errors import NSQError
from gnsq_like.spark.options import SourceOptions
from gnsq_like.spark.staging.segments import RawMessage


class MessageBuffer:
    """Messages that a connection has received and that were not taken out yet.

    ``take`` and ``note_end`` are callbacks for the connection; they never switch.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        #: The connection's greenlet writes this and the next four.
        self._messages: list[RawMessage] = []
        self._bytes = 0
        #: Monotonic time when the last messages arrived; 0 before the first.
        self._arrived = 0.0
        self._ended = False
        #: Set when ``wait`` should check again.
        self._changed = Event()
        #: The number of messages that ``wait`` waits for.
        self._wanted = 0

    def take(self, connection: Connection, messages: list[RawMessage]) -> None:
        """For ``on_messages``."""
        first = not self._arrived
        self._messages += messages
        self._bytes += sum([len(message[3]) for message in messages])
        self._arrived = time.monotonic()
        if first or self._enough():
            self._changed.set()

    def note_end(self, connection: Connection, error: NSQError | None) -> None:
        """For ``on_close``."""
        self._ended = True
        self._changed.set()

    def _enough(self) -> bool:
        return len(self._messages) >= self._wanted or self._bytes >= self._options.segment_bytes

    def wait(self, wanted: int, *, expected: bool) -> str:
        """Wait for so many messages, or the bytes of a segment. May switch.

        :param expected: whether nsqd certainly has some: then silence before the first one means nothing
        :returns: "", or why no more messages are to be expected: "lost", "idle" or "slow"
        """
        self._wanted = wanted
        began = time.monotonic()
        while not self._enough():
            if self._ended:
                return "lost"
            self._changed.clear()
            until = began + self._options.fetch_max_wait
            reason = "slow"
            if self._arrived or not expected:
                quiet = max(began, self._arrived) + self._options.fetch_idle
                if quiet < until:
                    until, reason = quiet, "idle"
            left = until - time.monotonic()
            if left <= 0:
                return reason
            self._changed.wait(left)
        return ""

    def pop(self) -> list[RawMessage]:
        """Take all messages out. Never switches."""
        messages, self._messages, self._bytes = self._messages, [], 0
        return messages
