"""Reports the code that blocks the hub.

Heartbeats, answers and all other greenlets wait while one greenlet keeps the CPU or blocks outside gevent. A timer in
the hub notes the time, four times per ``LIMIT`` seconds; a native daemon thread checks as often that the note is
fresh, and if not, logs the stack of the hub's thread: once per block, and while it lasts, because it may never end.

If the stack is that of the hub itself, nothing blocks it: the whole process was stopped, or the machine is too busy.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from typing import Any

from gevent import get_hub
from gevent.hub import Hub

from gnsq_like.runtime import native

logger = logging.getLogger(__name__)

#: Seconds by which a hub must be late; the shortest heartbeat interval is one second (docs/internals 1.3).
LIMIT = 1.0
#: Checks in that time.
_CHECKS = 4


class Watchdog:
    """Watches the hub of the thread that starts it.

    :param name: the owner's name, for the log
    :param limit: seconds by which the hub must be late to be reported
    """

    def __init__(self, name: str, limit: float = LIMIT) -> None:
        self._name = name
        self._limit = limit
        self._interval = limit / _CHECKS
        #: The hub's thread.
        self._thread = 0
        #: Monotonic time at which the hub was last known to run; written by the hub only.
        self._seen_at = 0.0
        self._timer: Any = None
        #: A native lock; its release ends the thread.
        self._ended: Any = None

    def start(self) -> None:
        """Start watching. Never switches. Next: :meth:`stop`."""
        self._thread = native.thread_id()
        self._seen()
        self._timer = get_hub().loop.timer(self._interval, self._interval, ref=False)
        self._timer.start(self._seen)
        self._ended = native.allocate_lock()
        self._ended.acquire()
        try:
            native.start_new_thread(self._watch, (self._ended,))
        except RuntimeError as exc:  # out of threads, which is no reason not to consume
            logger.warning("%s: a blocked hub will not be reported: %s", self._name, exc)

    def stop(self) -> None:
        """Stop watching; twice is fine. Never switches."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None
            self._ended.release()

    def abandon(self) -> None:
        """Stop watching, after the end of the hub's thread. From any thread. Never switches."""
        if self._timer is not None:
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
