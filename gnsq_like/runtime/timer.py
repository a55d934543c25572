"""A call at a later time, from gevent's event loop: cheaper than a greenlet that sleeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent


class Timer:
    """Calls ``callback`` once after it was set.

    The callback runs in the hub, so it must not switch. An alarm belongs to the thread that sets it.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        #: gevent's timer, while one runs.
        self._timer: Any = None

    @property
    def is_set(self) -> bool:
        """Whether a call is to come."""
        return self._timer is not None

    def set(self, delay: float) -> None:
        """Call after ``delay`` seconds, and not when it was set to before."""
        self.cancel()
        self._timer = gevent.get_hub().loop.timer(max(0.0, delay))
        # update: the loop's idea of the time may be as old as the work that has been done since.
        self._timer.start(self._ring, update=True)

    def cancel(self) -> None:
        """Do not call."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def _ring(self) -> None:
        self.cancel()
        self._callback()
