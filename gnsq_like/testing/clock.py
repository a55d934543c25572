"""A clock that stands still until a test moves it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gnsq_like.reader.reader import running_of

if TYPE_CHECKING:
    from gnsq_like import Reader


class Clock:
    """The time by which in-process daemons judge deadlines; :meth:`advance` moves it on.

    ::

        clock = Clock()
        with running_nsqd(clock=clock) as nsqd:
            nsqd.publish("clicks", b"later", defer=3600)
            clock.advance(3600)             # now it is delivered

    It governs an nsqd's message timeouts, deferred and requeued messages, and a nsqlookupd's inactive producers and
    tombstones. For these no time passes between two calls: a message never times out because a test is slow.
    Heartbeats, output buffers and clients follow real time, but for the backoff of Readers that ``advance`` is given.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._began_wall = time.time()
        #: Seconds added by :meth:`advance`.
        self.advanced: float = 0.0
        self._listeners: list[Callable[[], object]] = []

    def __call__(self) -> float:
        """Monotonic seconds."""
        return self._began + self.advanced

    def wall(self) -> float:
        """Unix seconds."""
        return self._began_wall + self.advanced

    def advance(self, seconds: float, *readers: Reader) -> None:
        """Move the time on, in one step. On return the daemons have acted on every deadline passed. May switch.

        Timeouts that begin because of the move, as of messages delivered again, begin at the new time.

        :param seconds: 0 or more
        :param readers: Readers whose backoff ends so much sooner, too; they act on that soon after
        :raises ValueError: for a step back
        """
        if not seconds >= 0:
            raise ValueError(f"a clock goes forward only, not by {seconds!r} s")
        self.advanced += seconds
        for listener in list(self._listeners):
            listener()
        for reader in readers:
            if (running := running_of(reader)) is not None:
                running.hub_handle.call(running.flow.hasten_backoff, seconds)

    def link(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` after each move."""
        self._listeners.append(listener)

    def unlink(self, listener: Callable[[], object]) -> None:
        """Stop calling it; fine if it was not linked."""
        if listener in self._listeners:
            self._listeners.remove(listener)
