"""Calling what the user hooked in: in one greenlet, in order, away from everything that must not wait."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import gevent

logger = logging.getLogger(__name__)


class HookRunner:
    """Calls hooks one after the other in a greenlet that lives as long as there are calls to make.

    :param hooks: functions by their names, or None where the user gave none
    """

    def __init__(self, **hooks: Callable[..., object] | None) -> None:
        self._hooks = hooks
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._greenlet: Any = None

    def call(self, name: str, *arguments: object) -> None:
        """Have the hook of this name called soon, if there is one. Never switches."""
        hook = self._hooks[name]
        if hook is None:
            return
        self._calls.append((hook, arguments))
        if self._greenlet is None:
            self._greenlet = gevent.spawn(self._run)

    def inherited(self) -> None:
        """In a forked child: forget the calls that were to be made, which are the parent's. Never switches."""
        self._calls, self._greenlet = deque(), None

    def join(self, timeout: float | None = None) -> None:
        """Wait until all calls are made. May switch."""
        if self._greenlet is not None and self._greenlet is not gevent.getcurrent():
            self._greenlet.join(timeout)

    def _run(self) -> None:
        try:
            while self._calls:
                hook, arguments = self._calls.popleft()
                try:
                    hook(*arguments)
                except (Exception, gevent.Timeout):
                    logger.exception("the hook %r raised", hook)
        finally:
            # What a hook raised may have been the end of this greenlet; the calls behind it are still made.
            self._greenlet = gevent.spawn(self._run) if self._calls else None
