"""Reports the code that blocks the hub.

Heartbeats, answers and all other greenlets wait while one greenlet keeps the CPU or blocks outside gevent. A native
daemon thread looks at the hub's thread, a few times per ``LIMIT`` seconds. While that waits for events it is left
alone, so an idle hub is not woken. Otherwise the hub is asked for a call. If that is not made in time, the stack of the
hub's thread is logged: once per block, and while it lasts, because it may never end.

If the stack is that of the hub itself, nothing blocks it: the whole process was stopped, or the machine is too busy.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from types import FrameType
from typing import Any

from gevent.hub import Hub

from gnsq_like.runtime import native
from gnsq_like.runtime.hub_calls import HubHandle

logger = logging.getLogger(__name__)

#: Seconds by which a hub must be late; the shortest heartbeat interval is one second (docs/internals 1.3).
LIMIT = 1.0
#: Looks in that time.
_LOOKS = 4


class Watchdog:
    """Watches a hub.

    :param name: the owner's name, for the log
    :param limit: seconds by which the hub must be late to be reported
    """

    def __init__(self, name: str, hub_handle: HubHandle, limit: float = LIMIT) -> None:
        self._name = name
        self._hub_handle = hub_handle
        self._limit = limit
        #: Whether the hub was asked for a call, and has not made it.
        self._owes = False
        #: A native lock while it watches; its release ends the thread.
        self._ended: Any = None

    def start(self) -> None:
        """Start watching. Never switches. Next: :meth:`stop`."""
        self._ended = native.allocate_lock()
        self._ended.acquire()
        try:
            native.start_thread(self._watch, self._ended, f"{self._name}: watchdog")
        except RuntimeError as exc:  # out of threads, which is no reason not to consume
            logger.warning("%s: a blocked hub will not be reported: %s", self._name, exc)

    def stop(self) -> None:
        """Stop watching; twice is fine. From any thread. Never switches."""
        ended, self._ended = self._ended, None
        if ended is not None:
            ended.release()

    def _answer(self) -> None:
        """In the hub."""
        self._owes = False

    def _watch(self, ended: Any) -> None:
        """The thread."""
        since, reported = time.monotonic(), False
        while not ended.acquire(True, self._limit / _LOOKS):
            frame = sys._current_frames().get(self._hub_handle.thread)
            if frame is None or frame.f_code is Hub.run.__code__:
                continue
            if not self._owes:
                self._owes, since, reported = True, time.monotonic(), False
                self._hub_handle.call(self._answer)
            elif not reported and time.monotonic() - since > self._limit:
                reported = True
                self._report(time.monotonic() - since, frame)

    def _report(self, late: float, frame: FrameType) -> None:
        logger.warning(
            "%s: the hub has been blocked for %.1f s, and with it heartbeats and all other greenlets, by %s:\n%s",
            self._name,
            late,
            frame.f_code.co_qualname,
            "".join(traceback.format_stack(frame)).rstrip(),
        )
