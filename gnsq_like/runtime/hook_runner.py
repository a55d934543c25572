"""Calls the user's hooks in one greenlet, in order, so that a slow hook delays nothing else."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import gevent

from gnsq_like.runtime import owner
from gnsq_like.runtime.callables import check_callable, undone
from gnsq_like.runtime.ends import ENDS
from gnsq_like.runtime.raised import FailureLog

logger = logging.getLogger(__name__)


class HookRunner:
    """Calls hooks one after the other, in a greenlet that ends when no calls are left.

    :param counts: with how many arguments each will be called, to check that; {} to leave it unchecked
    :param hooks: functions by name; None where the user gave none
    :raises InvalidOption: for one that is asynchronous, a generator function, or takes other arguments
    """

    def __init__(self, counts: Mapping[str, int] = MappingProxyType({}), **hooks: Callable[..., object] | None) -> None:
        for name, hook in hooks.items():
            if hook is not None:
                check_callable(name, hook, counts.get(name))
        self._hooks = hooks
        self._failures = FailureLog(logger)
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

    def wants(self, name: str) -> bool:
        """Whether there is a hook of this name: for many calls, one look at this costs less."""
        return self._hooks[name] is not None

    def abandon(self) -> None:
        """In a forked child, or after the end of this thread: drop the scheduled calls. Never switches."""
        owner.keep(self._greenlet)
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
                    if (fault := undone(hook(*arguments))) is not None:
                        logger.error("the hook %r did nothing: %s", hook, fault)
                except ENDS:
                    raise
                except BaseException as exc:
                    self._failures.log(f"the hook {hook!r} raised", exc)
        finally:
            # A hook may have ended this greenlet (SystemExit); make the remaining calls in a new one.
            self._greenlet = gevent.spawn(self._run) if self._calls else None
