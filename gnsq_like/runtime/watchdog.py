"""Says who blocks the hub.

Heartbeats, answers and every other greenlet wait while one of them keeps the CPU or waits without
gevent's knowing. A timer in the hub notes the time, four times in ``LIMIT`` seconds; a native daemon
thread looks as often whether that note is fresh, and if not, logs what the hub's thread is doing: once
for each time that the hub stands still, and at once, for it may stand still for ever.

That the stack belongs to the hub itself means that nothing blocks it: the whole process was stopped, or
the machine is too busy to run it.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from typing import Any

from gevent import get_hub, monkey
from gevent.hub import Hub

from gnsq_like.runtime.hub_calls import thread_id

logger = logging.getLogger(__name__)

#: Seconds by which a hub must be late; a heartbeat may come each second at the soonest (docs/internals 1.3).
LIMIT = 1.0
#: Looks in that time.
_LOOKS = 4

# Patched threads would be greenlets of the hub that is blocked.
_start_new_thread = monkey.get_original("_thread", "start_new_thread")
_allocate_lock = monkey.get_original("_thread", "allocate_lock")


class Watchdog:
    """Watches the hub of the thread that starts it.

    :param name: whose watchdog it is, for the log
    :param limit: seconds by which the hub must be late to be reported
    """

    def __init__(self, name: str, limit: float = LIMIT) -> None:
        self._name = name
        self._limit = limit
        self._interval = limit / _LOOKS
        #: The hub's thread.
        self._thread = 0
        #: Monotonic time at which the hub was last known to run; written by the hub only.
        self._seen_at = 0.0
        self._timer: Any = None
        #: Held while the thread is to go on; a native lock, for it is waited for in a native thread.
        self._ended: Any = None

    def start(self) -> None:
        """Begin to watch. Never switches. Next: :meth:`stop`."""
        self._thread = thread_id()
        self._seen()
        self._timer = get_hub().loop.timer(self._interval, self._interval, ref=False)
        self._timer.start(self._seen)
        self._ended = _allocate_lock()
        self._ended.acquire()
        try:
            _start_new_thread(self._watch, (self._ended,))
        except RuntimeError as exc:  # no more threads: no reason not to consume
            logger.warning("%s: nobody watches whether the hub is blocked: %s", self._name, exc)

    def stop(self) -> None:
        """Watch no more; twice is fine. Never switches."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None
            self._ended.release()

    def _seen(self) -> None:
        self._seen_at = time.monotonic()

    def _watch(self, ended: Any) -> None:
        """The thread."""
        reported = 0.0
        while not ended.acquire(True, self._interval):
            seen_at = self._seen_at
            late = time.monotonic() - seen_at - self._interval
            if late > self._limit and seen_at != reported and self._report(late):
                reported = seen_at

    def _report(self, late: float) -> bool:
        frame = sys._current_frames().get(self._thread)
        if frame is None or frame.f_code is Hub.run.__code__:
            return False
        logger.warning(
            "%s: the hub has been blocked for %.1f s, and with it heartbeats and all other greenlets, by %s:\n%s",
            self._name,
            late,
            frame.f_code.co_qualname,
            "".join(traceback.format_stack(frame)).rstrip(),
        )
        return True
