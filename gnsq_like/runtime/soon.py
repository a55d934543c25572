"""A call in the hub's next iteration, made once however often it is asked for.

Whether it is due is gevent's own state. A flag would stay set, and the call would never be made again, if a signal
handler raised between setting it and scheduling the call, or before the call resets it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Soon:
    """Call this to have ``function`` called by the hub of ``loop``; it must not switch. In the loop's thread."""

    __slots__ = ("_callback", "_function", "_run_callback")

    def __init__(self, loop: Any, function: Callable[[], object]) -> None:
        self._run_callback: Callable[[Callable[[], object]], Any] = loop.run_callback
        self._function = function
        #: gevent's callback of the last time it was asked for.
        self._callback: Any = None

    @property
    def due(self) -> bool:
        """Whether the call was asked for, and has not begun."""
        return self._callback is not None and bool(self._callback.pending)

    def __call__(self) -> None:
        """Ask for the call. Never switches."""
        if self._callback is None or not self._callback.pending:
            self._callback = self._run_callback(self._function)
