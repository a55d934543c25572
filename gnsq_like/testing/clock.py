"""A clock that stands still until a test moves it."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, time


class Clock:
    """The time by which in-process daemons judge deadlines: :meth:`advance` makes them come.

    ::

        clock = Clock()
        with running_nsqd(clock=clock) as nsqd:
            nsqd.publish("clicks", b"later", defer=3600)
            clock.advance(3600)             # it is delivered now

    For an nsqd that is message timeouts, deferred and requeued messages; for a nsqlookupd inactive producers and
    tombstones. Between two calls no time passes for them: a message never times out because a test is slow.
    Heartbeats, output buffers and all that clients do keep to real time.
    """

    def __init__(self) -> None:
        self._began = monotonic()
        self._began_wall = time()
        #: Seconds that were added by :meth:`advance`.
        self.advanced = 0.0
        self._listeners: list[Callable[[], object]] = []

    def __call__(self) -> float:
        """Monotonic seconds."""
        return self._began + self.advanced

    def wall(self) -> float:
        """Unix seconds."""
        return self._began_wall + self.advanced

    def advance(self, seconds: float) -> None:
        """Move the time on, in one step. Afterwards every deadline that it passed has been seen to. May switch.

        What begins with that (a message delivered again has its timeout anew) begins at the new time.

        :raises ValueError: for a step back
        """
        if not seconds >= 0:
            raise ValueError(f"a clock goes forward only, not by {seconds!r} s")
        self.advanced += seconds
        for listener in list(self._listeners):
            listener()

    def link(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` whenever the time was moved."""
        self._listeners.append(listener)

    def unlink(self, listener: Callable[[], object]) -> None:
        """Do not call it any more; fine if it was not linked."""
        if listener in self._listeners:
            self._listeners.remove(listener)
