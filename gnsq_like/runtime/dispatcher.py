"""Code of the application that may wait or fail, called in a greenlet of its own: hooks, and handlers of the log.

No loop of this package (a connection's reader, a control loop, the poller, callbacks of the hub) calls either. A log
handler may wait for a slow disk or server, or for ever, and a filter may raise: in a loop, this would delay heartbeats
and interrupt the loop's work. So a loop passes its log records to :func:`log_soon`. The number of waiting records is
bounded; dropped ones are counted, and the count is logged.

Code in a greenlet or thread of the application (a handler, a caller of ``publish``) logs there, in its context.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import gevent
from gevent._hub_local import get_hub_if_exists

from gnsq_like.errors import NO_DESCRIPTORS, NSQError
from gnsq_like.runtime import native, owner
from gnsq_like.runtime.user_code import FailureLog, check_callable, outcome_of, print_exception, undone

logger = logging.getLogger(__name__)

#: Log records of a hub that wait at most: enough for all connections to report that a network has failed.
_MOST_RECORDS = 5000
#: Seconds to write the last records at the program's end.
_AT_EXIT = 1.0
#: Seconds between two records that say that no file descriptor is free; and the time of the last one.
_SHORTAGE_EVERY = 1.0
_shortage_logged_at = -math.inf


class Dispatcher:
    """Makes calls one after the other, in a greenlet that ends when none are left.

    :param most: calls that wait at most; those beyond it are dropped
    """

    def __init__(self, most: float = math.inf) -> None:
        self._most = most
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...], Mapping[str, Any]]] = deque()
        #: Calls dropped since this was last logged.
        self._dropped = 0
        self._greenlet: Any = None

    def call_soon(self, function: Callable[..., object], *arguments: Any, **named: Any) -> None:
        """Schedule a call. Never switches."""
        if len(self._calls) >= self._most:
            self._dropped += 1
            return
        self._calls.append((function, arguments, named))
        if not self._greenlet:  # None, or interrupted
            self._greenlet = gevent.spawn(self._run)

    def join(self, timeout: float | None = None) -> None:
        """Wait until all calls are made. May switch."""
        if self._greenlet is not None and self._greenlet is not gevent.getcurrent():
            self._greenlet.join(timeout)

    def abandon(self, _loop_lives: bool = True) -> None:
        """In a forked child, or after the end of this thread: drop the scheduled calls. Never switches."""
        owner.keep(self._greenlet)
        self._calls, self._greenlet = deque(), None

    def _run(self) -> None:
        try:
            while self._calls or self._dropped:
                if not self._calls:
                    dropped, self._dropped = self._dropped, 0
                    self.call_soon(logger.warning, "%d log records were dropped, because the log was slow", dropped)
                function, arguments, named = self._calls.popleft()
                result, exc = outcome_of(function, *arguments, **named)
                if (fault := undone(result)) is not None:
                    exc = NSQError(f"it did nothing: {fault}")
                if exc is not None:
                    self._failed(function, exc)
        finally:
            # A call may have ended this greenlet (SystemExit); make the remaining ones in a new one.
            self._greenlet = gevent.spawn(self._run) if self._calls else None

    def _failed(self, _function: Callable[..., object], exc: BaseException) -> None:
        print_exception(exc)


class HookRunner(Dispatcher):
    """Calls hooks one after the other.

    :param counts: with how many arguments each will be called, to check that; {} to leave it unchecked
    :param hooks: functions by name; None where the user gave none
    :raises InvalidOption: for one that is asynchronous, a generator function, or takes other arguments
    """

    def __init__(self, counts: Mapping[str, int] = MappingProxyType({}), **hooks: Callable[..., object] | None) -> None:
        for name, hook in hooks.items():
            if hook is not None:
                check_callable(name, hook, counts.get(name))
        super().__init__()
        self._hooks = hooks
        #: The names of those that there are.
        self.given = frozenset(name for name, hook in hooks.items() if hook is not None)
        self._failures = FailureLog(logger)

    def call(self, name: str, *arguments: object) -> None:
        """Schedule a call of the hook of this name, if there is one. Never switches."""
        hook = self._hooks[name]
        if hook is not None:
            self.call_soon(hook, *arguments)

    def _failed(self, hook: Callable[..., object], exc: BaseException) -> None:
        log_soon(self._failures.log, f"the hook {hook!r} raised", exc)


class _Here(native.local):
    """The state of each thread."""

    #: Writes the log records of its hub.
    log: Dispatcher | None = None
    hub: Any = None


_here = _Here()


def _log_here() -> Dispatcher | None:
    """The dispatcher of this thread's hub; None if it has no hub."""
    hub = get_hub_if_exists()
    if hub is None:
        return None
    if _here.log is None or _here.hub is not hub:
        _here.log, _here.hub = Dispatcher(_MOST_RECORDS), hub
        owner.register(_here.log, Dispatcher.abandon, at_last=_end_log)
    return _here.log


def log_soon(log: Callable[..., object], text: str, *arguments: object, **fields: object) -> None:
    """Log from a loop: a greenlet of its own makes the call. Without a hub, this does. Never switches.

    A lack of file descriptors concerns all connections of the process, so it is logged once a second.

    :param log: a method of a Logger, as ``logger.warning``
    :param arguments: formatted later
    :param fields: ``exc_info=exc``, not ``True``; ``extra``
    """
    global _shortage_logged_at
    if any(isinstance(each, NSQError | str) and NO_DESCRIPTORS in str(each) for each in arguments):
        now = native.monotonic()
        if now < _shortage_logged_at + _SHORTAGE_EVERY:
            return
        _shortage_logged_at = now
    dispatcher = _log_here()
    if dispatcher is None:
        log(text, *arguments, **fields)
    else:
        dispatcher.call_soon(log, text, *arguments, **fields)


def flush_log(timeout: float) -> None:
    """Wait for ``timeout`` seconds at most until the records of this thread's loops are written. May switch."""
    dispatcher = _log_here()
    if dispatcher is not None:
        dispatcher.join(timeout)


def end_log(timeout: float) -> None:
    """As :func:`flush_log`, at the end of this thread. May switch."""
    flush_log(timeout)
    if _here.log is not None:
        _here.log.abandon()


def _end_log(dispatcher: Dispatcher, timeout: float) -> None:
    if dispatcher is _here.log:  # other threads do so as they end
        dispatcher.join(min(timeout, _AT_EXIT))
