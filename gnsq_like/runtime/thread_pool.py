"""Handlers in native threads, for ``spawn="thread"``.

A worker greenlet hands its call to a thread and waits, so all that is decided by how the handler ends
(finish, requeue, backoff) is decided in the Reader's hub, as for handlers in greenlets. The threads are
the Reader's own: the hub's pool has ten, and serves DNS.

A thread cannot be killed. When the waiting greenlet is, the thread goes on; its answers come too late
and do nothing, and its place is free again when it ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import gevent
from gevent import threadpool

logger = logging.getLogger(__name__)

_A = TypeVar("_A")
_R = TypeVar("_R")


#: No bound that matters, but one that gevent's pool can hold.
_MOST_THREADS = 2**20


class _Raised:
    """What a call in a thread raised. gevent would print it if it left the thread by itself."""

    __slots__ = ("exception",)

    def __init__(self, exception: BaseException) -> None:
        self.exception = exception


def _met(function: Callable[[_A], _R], argument: _A) -> _R | _Raised:
    try:
        return function(argument)
    except BaseException as exc:
        return _Raised(exc)


class ThreadPool:
    """Calls functions in threads, at most ``width`` at once. Belongs to the hub in which it is made.

    Threads are started as they are needed, and kept until :meth:`close`.
    """

    def __init__(self, width: int) -> None:
        self._pool = threadpool.ThreadPool(min(width, _MOST_THREADS))

    @property
    def width(self) -> int:
        """How many threads there may be; may be changed at any time, less takes effect as calls end."""
        return int(self._pool.maxsize)

    @width.setter
    def width(self, width: int) -> None:
        width = min(width, _MOST_THREADS)
        if width != self._pool.maxsize:
            self._pool.maxsize = width

    def call(self, function: Callable[[_A], _R], argument: _A) -> _R:
        """``function(argument)`` in a thread: its value, or what it raised, of whatever kind. May switch."""
        outcome = self._pool.spawn(_met, function, argument).get()
        if not isinstance(outcome, _Raised):
            return outcome
        try:
            raise outcome.exception
        finally:
            del outcome  # or the traceback and this frame keep each other

    def close(self, timeout: float = 1.0) -> int:
        """End the threads that are idle, and the others when their calls end. May switch.

        :param timeout: seconds to wait for them
        :returns: how many still run then
        """
        end = gevent.spawn(self._pool.kill)
        end.join(timeout)
        return 0 if end.dead else int(self._pool.size)


def call_in_thread(function: Callable[[_A], _R], argument: _A) -> _R:
    """``function(argument)`` in a thread made for it; for what is rare and may block for long. May switch."""
    calls = ThreadPool(1)
    try:
        return calls.call(function, argument)
    finally:
        calls.close(0)
