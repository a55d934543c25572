"""A call at a later time, from gevent's event loop: cheaper than a greenlet that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent


class Timer:
    """Calls ``callback`` once after it was set.

    The callback runs in the hub, so it must not switch. A timer belongs to the thread that sets it.
    """

    __slots__ = ("_callback", "_timer", "due")

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback
        #: gevent's timer, while one runs.
        self._timer: Any = None
        #: Monotonic time of the call to come; None while none is.
        self.due: float | None = None

    @property
    def is_set(self) -> bool:
        """Whether a call is to come."""
        return self.due is not None

    def set(self, delay: float) -> None:
        """Call after ``delay`` seconds, and not when it was set to before."""
        self.set_at(time.monotonic() + delay)

    def set_at(self, due: float) -> None:
        """Call at ``due`` (monotonic), and not when it was set to before."""
        self.cancel()
        self.due = due
        self._timer = gevent.get_hub().loop.timer(max(0.0, due - time.monotonic()))
        # update: the loop's idea of the time may be as old as the work that has been done since.
        self._timer.start(self._ring, update=True)

    def set_by(self, due: float) -> None:
        """Call at ``due`` (monotonic), or sooner if it is set so already."""
        if self.due is None or due < self.due:
            self.set_at(due)

    def cancel(self) -> None:
        """Do not call; twice is fine."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None
            self.due = None

    def _ring(self) -> None:
        self.cancel()
        self._callback()
