"""Limits the time of handler calls, and knows which ones are running."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import gevent

from gnsq_like import Batch, Reader
from gnsq_like.runtime.timer import Timer

_Handler = Callable[[Any], object]


class Calls:
    """The running handler calls of all Readers of a process, if their time is limited. Belongs to the Readers' hub.

    One timer watches the oldest call, instead of one for each: a call costs two entries in a table.

    :param timeout: seconds after which gevent.Timeout is raised in a handler, so that its message is requeued; 0 for
        never. Handlers in threads, and those that never switch, cannot be interrupted
    """

    def __init__(self, timeout: float = 0.0) -> None:
        self._timeout = timeout
        #: When each running call began (monotonic), by its greenlet, the oldest first: those that can be interrupted,
        #: those that have been, and those in threads.
        self._running: dict[Any, float] = {}
        self._interrupted: dict[Any, float] = {}
        self._in_threads: dict[Any, float] = {}
        self._timer = Timer(self._interrupt)

    def oldest(self) -> float:
        """The seconds that the longest running call has taken so far; 0 without one, and without a limit."""
        # Copies in one step: handlers in threads change theirs meanwhile.
        began = [*self._running.values(), *self._interrupted.values(), *list(self._in_threads.values())]
        return time.monotonic() - min(began) if began else 0.0

    def watch(self, reader: Reader) -> None:
        """Limit the calls of a Reader's handler, from its next start on. Never switches."""
        handler = reader.handler
        if not self._timeout or handler is None:
            return
        limited = self._limited_in_threads if reader.options.spawn == "thread" else self._limited
        if isinstance(handler, Batch):
            reader.handler = Batch(limited(handler.handler), size=handler.size, interval=handler.interval)
        else:
            reader.handler = limited(handler)

    def _limited(self, handler: _Handler) -> _Handler:
        running, interrupted, timer = self._running, self._interrupted, self._timer
        getcurrent = gevent.getcurrent

        @functools.wraps(handler)
        def limited_handler(given: Any) -> object:
            greenlet = getcurrent()
            running[greenlet] = time.monotonic()
            if timer.due is None:
                timer.set(self._timeout)
            try:
                return handler(given)
            finally:
                if running.pop(greenlet, None) is None:
                    del interrupted[greenlet]

        return limited_handler

    def _limited_in_threads(self, handler: _Handler) -> _Handler:
        @functools.wraps(handler)
        def watched_handler(given: Any) -> object:
            greenlet = gevent.getcurrent()
            self._in_threads[greenlet] = time.monotonic()
            try:
                return handler(given)
            finally:
                del self._in_threads[greenlet]

        return watched_handler

    def _interrupt(self) -> None:
        """The timer has fired. In the hub."""
        now = time.monotonic()
        for greenlet, began in list(self._running.items()):
            if began + self._timeout > now:
                break
            # It may have ended meanwhile, by what another one did when it was interrupted.
            if self._running.get(greenlet) == began:
                self._interrupted[greenlet] = self._running.pop(greenlet)
                greenlet.throw(gevent.Timeout(self._timeout))
        oldest = next(iter(self._running.values()), None)
        if oldest is not None:
            self._timer.set_at(oldest + self._timeout)
