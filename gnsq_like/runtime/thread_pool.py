"""Calls in native threads, for handlers with ``spawn="thread"`` and for whatever else blocks.

A greenlet hands its call to a thread and waits, so how a handler ends (finish, requeue, backoff) is decided in
the Reader's hub, as for handlers in greenlets. The threads belong to a Reader, or to HTTP requests: the hub's own
pool has ten, which DNS needs.

A thread cannot be killed. When the waiting greenlet is killed, the thread goes on; its result is dropped, and its
place is free again when it ends.
"""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import gevent
from gevent import monkey, threadpool
from gevent._hub_local import get_hub_if_exists

logger = logging.getLogger(__name__)

_A = TypeVar("_A")
_R = TypeVar("_R")


#: No bound that matters, but one that gevent's pool can hold.
_MOST_THREADS = 2**20
#: Threads of one hub for calls that block on sockets.
BLOCKING_THREADS = 32
#: Seconds after which an idle one of them ends: soon, because its hub may have ended; and no round number, so that
#: calls at regular intervals do not meet threads that are just ending.
_BLOCKING_IDLE = 1.7

#: Each OS thread's pool for them, with the hub and the process that it belongs to. Native even where threading is
#: patched.
_blocking: Any = monkey.get_original("_thread", "_local")()


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

    :param idle_timeout: seconds after which an idle thread ends; None for never
    """

    def __init__(self, width: int, *, idle_timeout: float | None = None) -> None:
        idle = -1 if idle_timeout is None else idle_timeout
        self._pool = threadpool.ThreadPool(min(width, _MOST_THREADS), idle_task_timeout=idle)

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


def call_blocking(job: Callable[[], _R], timeout: float) -> _R:
    """``job()``, which blocks on sockets: its value, or what it raised. Freezes no hub. May switch.

    Patched sockets switch by themselves, so the job runs here; it does so too where this OS thread has no hub (and
    gets none), since no greenlet waits then. Otherwise it runs in a native thread.

    :param job: ends by itself soon after ``timeout``
    :param timeout: seconds
    :raises TimeoutError: the time is up; only where there is a hub
    """
    work = job
    if not monkey.is_module_patched("socket"):
        if get_hub_if_exists() is None:
            return job()
        work = partial(_blocking_pool().call, operator.call, job)
    timer = gevent.Timeout.start_new(timeout)
    try:
        return work()
    except gevent.Timeout as exc:
        if exc is not timer:
            raise
        raise TimeoutError(f"not done within {timeout:g} s") from None
    finally:
        timer.close()


def _blocking_pool() -> ThreadPool:
    owner = (gevent.get_hub(), os.getpid())  # a forked child has none of its parent's threads
    if getattr(_blocking, "owner", None) != owner:
        _blocking.pool = ThreadPool(BLOCKING_THREADS, idle_timeout=_BLOCKING_IDLE)
        _blocking.owner = owner
    return _blocking.pool
