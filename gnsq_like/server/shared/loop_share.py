"""Each client's share of the event loop: a few milliseconds, then the others have their turn.

One read can cause much work: an MPUB may have a million messages, and some KiB of a deflate stream as many commands.
Code that works for a client calls :meth:`Turn.share` now and then; a call costs 0.1 µs unless the turn is over.
"""

from __future__ import annotations

import time

import gevent

#: Seconds of one turn. Giving way takes some 20 µs.
TURN_TIME = 0.004


def give_way() -> None:
    """Let the hub poll all sockets and timers once, and serve those that are ready. Switches.

    After ``gevent.sleep(0)`` only runnable greenlets run; the hub may serve dozens of such calls before it polls a
    socket.
    """
    hub = gevent.get_hub()
    with hub.loop.timer(0.0) as timer:
        hub.wait(timer)


class Turn:
    """The time since a client's greenlet last gave way."""

    def __init__(self) -> None:
        #: Seconds, monotonic.
        self._ends = 0.0
        self.begin()

    def begin(self) -> None:
        """Begin a new turn: the greenlet has just waited."""
        self._ends = time.monotonic() + TURN_TIME

    @property
    def is_over(self) -> bool:
        """Whether others should have their turn."""
        return time.monotonic() >= self._ends

    def share(self) -> None:
        """Let others have their turn if this one is over. May switch."""
        if self.is_over:
            give_way()
            self.begin()
