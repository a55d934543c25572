"""Limits the time of handler calls, and knows which ones are running."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import gevent

from gnsq_like import Batch, Reader

_Handler = Callable[[Any], object]


class Calls:
    """The running handler calls of all Readers of a process.

    :param timeout: seconds after which gevent.Timeout is raised in a handler, so that its message is requeued; 0 for
        never. Handlers in threads, and those that never switch, cannot be interrupted
    """

    def __init__(self, timeout: float = 0.0) -> None:
        self._timeout = timeout
        #: When each running call began (monotonic).
        self._began: dict[object, float] = {}

    def oldest(self) -> float:
        """The seconds that the longest running call has taken so far; 0 without one."""
        # A copy in one step: handlers in threads change it meanwhile.
        began = list(self._began.values())
        return time.monotonic() - min(began) if began else 0.0

    def watch(self, reader: Reader, wrap: Callable[[_Handler], _Handler] | None = None) -> None:
        """Limit the calls of a Reader's handler, from its next start on. Never switches.

        :param wrap: applied to the handler besides
        """
        is_interruptible = reader.options.spawn != "thread"

        def wrapped(handler: _Handler) -> _Handler:
            limited = self._limited(handler, is_interruptible)
            return limited if wrap is None else wrap(limited)

        handler = reader.handler
        if isinstance(handler, Batch):
            reader.handler = Batch(wrapped(handler.handler), size=handler.size, interval=handler.interval)
        elif handler is not None:
            reader.handler = wrapped(handler)

    def _limited(self, handler: _Handler, is_interruptible: bool) -> _Handler:
        @functools.wraps(handler)
        def limited_handler(given: Any) -> object:
            key = object()
            self._began[key] = time.monotonic()
            try:
                if not (self._timeout and is_interruptible):
                    return handler(given)
                with gevent.Timeout(self._timeout):
                    return handler(given)
            finally:
                del self._began[key]

        return limited_handler
