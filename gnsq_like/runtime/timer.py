"""Calls that the hub makes later: in its next iteration (:class:`Soon`), or at a time (:class:`Timer`).

Both are gevent's own, cheaper than a greenlet that sleeps. Whether a call is due is gevent's state, too: a flag that is
set before an interruption would stay set, and the call would never be made again.

libev counts in fractions of a second. libuv counts whole milliseconds, and a timer may fire up to one early; gevent
warns of a libuv timer below a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gevent

#: Seconds; no timeout that is passed to gevent may be above 0 and below this.
LEAST_TIMEOUT = 0.001


def make_timer(loop: Any, seconds: float) -> Any:
    """A timer of this loop, not started; on libuv, of whole milliseconds, rounded up. Close it at the end."""
    if seconds > 0 and type(loop).__module__ == "gevent.libuv.loop":
        seconds = math.ceil(seconds * 1000) / 1000 + 1e-6  # so that its product with 1000 is not rounded down
    return loop.timer(max(0.0, seconds))


class Soon:
    """Call this to have ``function`` called once by the hub of ``loop``, however often it is asked for.

    The function must not switch. To be used in the loop's thread.
    """

    __slots__ = ("_callback", "_function", "_run_callback")

    def __init__(self, loop: Any, function: Callable[[], object]) -> None:
        self._run_callback: Callable[[Callable[[], object]], Any] = loop.run_callback
        self._function = function
        #: gevent's callback of the last time it was asked for.
        self._callback: Any = None

    def __call__(self) -> None:
        """Ask for the call. Never switches."""
        if self._callback is None or not self._callback.pending:
            self._callback = self._run_callback(self._function)

    def cancel(self) -> None:
        """The call is not needed any more, if it was asked for. Never switches."""
        if self._callback is not None:
            self._callback.stop()


class Timer:
    """Calls ``callback`` once at the time it is set to.

    The callback runs in the hub, so it must not switch. A timer belongs to the thread that sets it.
    """

    __slots__ = ("_callback", "_timer")

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback
        #: gevent's timer while this is set.
        self._timer: Any = None

    @property
    def is_set(self) -> bool:
        """Whether a call is due."""
        return self._timer is not None

    def set(self, delay: float) -> None:
        """Call after ``delay`` seconds; replaces an earlier setting."""
        self.cancel()
        self._timer = make_timer(gevent.get_hub().loop, delay)
        # update: the loop's cached time may be stale by the duration of the current callback.
        self._timer.start(self._fire, update=True)

    def cancel(self) -> None:
        """Cancel the call; twice is fine."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def _fire(self) -> None:
        self.cancel()
        self._callback()
