"""Calls the user's hooks in one greenlet, in order, so that a slow hook delays nothing else."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import gevent

from gnsq_like.errors import InvalidOption
from gnsq_like.runtime.ends import ENDS

logger = logging.getLogger(__name__)


def check_callables(**functions: object) -> None:
    """Raise InvalidOption for one that is neither None nor callable."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise InvalidOption(name, function, "it must be callable")


class HookRunner:
    """Calls hooks one after the other, in a greenlet that ends when no calls are left.

    :param hooks: functions by name; None where the user gave none
    :raises InvalidOption: if one is not callable
    """

    def __init__(self, **hooks: Callable[..., object] | None) -> None:
        check_callables(**hooks)
        self._hooks = hooks
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._greenlet: Any = None

    def call(self, name: str, *arguments: object) -> None:
        """Schedule a call of the hook of this name, if there is one. Never switches."""
        hook = self._hooks[name]
        if hook is None:
            return
        self._calls.append((hook, arguments))
        if self._greenlet is None:
            self._greenlet = gevent.spawn(self._run)

    def forked_child(self) -> None:
        """In a forked child: drop the scheduled calls, which are the parent's. Never switches."""
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
                except ENDS:
                    raise
                except BaseException:
                    logger.exception("the hook %r raised", hook)
        finally:
            # A hook may have ended this greenlet (SystemExit); make the remaining calls in a new one.
            self._greenlet = gevent.spawn(self._run) if self._calls else None
