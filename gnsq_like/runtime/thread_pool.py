"""Calls in native threads, for handlers with ``spawn="thread"`` and for other blocking code.

A greenlet hands its call to a thread and waits, so the outcome of a handler (finish, requeue, backoff) is decided in
the Reader's hub, as for handlers in greenlets. The threads belong to a Reader, or to HTTP requests: the hub's own pool
has ten, which DNS needs.

A thread cannot be killed. When the waiting greenlet is killed, the thread continues; its result is dropped, and its
place is free again when it ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

import gevent
from gevent import monkey, threadpool
from gevent._hub_local import get_hub_if_exists

from gnsq_like.runtime import native
from gnsq_like.runtime.hub_calls import handle_here

logger = logging.getLogger(__name__)

_A = TypeVar("_A")
_R = TypeVar("_R")


#: In effect no limit, but one that gevent's pool can represent.
_MOST_THREADS = 2**20
#: Threads per hub for calls that block on sockets.
BLOCKING_THREADS = 32
#: Seconds after which one of them ends when idle: short, because its hub may have ended, and not a round number, so
#: that calls at regular intervals do not meet threads that are just ending.
_BLOCKING_IDLE = 1.7

#: Seconds between two looks at threads that are to end, or at calls that have returned.
_LOOK = 0.01

#: Each OS thread's pool for these calls, with the HubHandle it belongs to. Native even if threading is patched.
_blocking: Any = native.local()


class _Raised:
    """An exception raised in a thread; gevent would print one that is not caught there."""

    __slots__ = ("exception",)

    def __init__(self, exception: BaseException) -> None:
        self.exception = exception


class _Call:
    """A call that a greenlet waits for."""

    __slots__ = ("returned",)

    def __init__(self) -> None:
        #: Whether its function has returned or raised; set by its thread.
        self.returned = False


#: The call that this code runs in.
_this_call: ContextVar[_Call | None] = ContextVar("gnsq_like.call", default=None)


class ThreadPool:
    """Calls functions in threads, at most ``width`` at once. Belongs to the hub in which it is made.

    Threads are started on demand, and kept until :meth:`close`.

    :param idle_timeout: seconds after which an idle thread ends; None for never
    """

    def __init__(self, width: int, *, idle_timeout: float | None = None) -> None:
        idle = -1 if idle_timeout is None else idle_timeout
        self._owner = native.thread_id()
        self._pool = threadpool.ThreadPool(min(width, _MOST_THREADS), idle_task_timeout=idle)
        #: Running calls; each is added and removed in its thread.
        self._running: set[_Call | None] = set()
        #: Calls that greenlets wait for.
        self._awaited: set[_Call] = set()

    @property
    def width(self) -> int:
        """The maximum number of threads; may be changed at any time. A lower one takes effect as calls end."""
        return int(self._pool.maxsize)

    @width.setter
    def width(self, width: int) -> None:
        width = min(width, _MOST_THREADS)
        if width != self._pool.maxsize:
            self._pool.maxsize = width

    def call(self, function: Callable[[_A], _R], argument: _A) -> _R:
        """Call ``function(argument)`` in a thread, in a copy of this context. May switch.

        Returns or raises what the function does. If the caller is not in the pool's hub, the function is called in the
        caller's thread.
        """
        if native.thread_id() != self._owner:
            return function(argument)
        call = _Call()
        self._awaited.add(call)
        try:
            outcome = self._pool.spawn(copy_context().run, self._call, call, function, argument).get()
        finally:
            self._awaited.discard(call)
        if not isinstance(outcome, _Raised):
            return outcome
        try:
            raise outcome.exception
        finally:
            del outcome  # breaks the reference cycle of traceback and frame

    def begin(self, function: Callable[[], object]) -> Any:
        """Begin ``function()`` in a thread; an AsyncResult. The function must not raise."""
        return self._pool.spawn(function)

    def _call(self, call: _Call, function: Callable[[_A], _R], argument: _A) -> _R | _Raised:
        # In a thread.
        _this_call.set(call)
        self._running.add(call)
        try:
            return function(argument)
        except BaseException as exc:
            return _Raised(exc)
        finally:
            call.returned = True
            self._running.discard(call)

    def about_to_return(self) -> None:
        """The call in this thread is done but for a word in the log: :meth:`close` waits for it. Never switches."""
        self._running.discard(_this_call.get())

    def catch_up(self) -> None:
        """Wait until the greenlets of all calls that have returned have gone on. May switch.

        The hub may not have looked at its threads for long, if a handler blocked it or the process was stopped.
        """
        while any(call.returned for call in self._awaited):
            gevent.sleep(_LOOK)

    def close(self, timeout: float = 1.0, *, calls: bool = True) -> int:
        """End idle threads now, the others when their calls end. May switch.

        :param timeout: seconds to wait for them
        :param calls: whether to wait for running calls, too, and not for idle threads only
        :returns: the number of threads still running then
        """
        end = gevent.spawn(self._pool.kill)
        deadline = time.monotonic() + timeout
        while not end.dead and (left := deadline - time.monotonic()) > 0:
            if not calls and self._pool.size <= len(self._running):
                break
            end.join(min(left, _LOOK))
        return 0 if end.dead else int(self._pool.size)


class NoThreads:
    """As a ThreadPool, for functions that are called where they are."""

    width = 0

    def call(self, function: Callable[[_A], _R], argument: _A) -> _R:
        """Call it."""
        return function(argument)

    def about_to_return(self) -> None:
        """Nothing."""

    def catch_up(self) -> None:
        """Nothing."""

    def close(self, timeout: float = 1.0, *, calls: bool = True) -> int:
        """Nothing."""
        return 0


def call_in_thread(function: Callable[[_A], _R], argument: _A) -> _R:
    """Call ``function(argument)`` in a new thread, for rare calls that may block for long. May switch."""
    calls = ThreadPool(1)
    try:
        return calls.call(function, argument)
    finally:
        calls.close(0)


def call_blocking(job: Callable[[], _R], timeout: float, ended: Callable[[], object] = bool) -> _R:
    """Call ``job()``, which blocks on sockets, and wait for it at most ``timeout`` seconds. May switch.

    The job runs in a greenlet where sockets are patched, and otherwise in a native thread. It goes on there when its
    caller no longer waits: when the time is up, or the caller is killed or interrupted.

    :param job: where sockets are not patched, it must end by itself some time
    :param timeout: seconds; in a greenlet, the job ends with a gevent.Timeout then
    :param ended: called once when the job has ended, in the caller's hub; in the job's thread if there is no hub
    :returns: what the job returns; raises what it raises
    :raises TimeoutError: it took longer
    :raises RuntimeError: no thread can be started
    """

    def attempt() -> _R | _Raised:
        try:
            return job()
        except BaseException as exc:
            return _Raised(exc)

    if not monkey.is_module_patched("socket") and get_hub_if_exists() is None:
        outcome = _in_native_thread(attempt, timeout, ended)
    else:
        outcome = _beside_the_caller(attempt, timeout, ended)
    if not isinstance(outcome, _Raised):
        return outcome
    try:
        if isinstance(outcome.exception, gevent.Timeout):  # the job's own: the caller's is raised in the caller
            raise _late(timeout)
        raise outcome.exception
    finally:
        del outcome  # breaks the reference cycle of traceback and frame


def _late(timeout: float) -> TimeoutError:
    return TimeoutError(f"not done within {timeout:g} s")


def _beside_the_caller(attempt: Callable[[], _R], timeout: float, ended: Callable[[], object]) -> _R:
    def bounded() -> _R:
        with gevent.Timeout(timeout):
            return attempt()

    try:
        running = gevent.spawn(bounded) if monkey.is_module_patched("socket") else _blocking_pool().begin(attempt)
    except BaseException:
        ended()
        raise
    running.rawlink(lambda _: ended())
    if not gevent.wait([running], timeout):
        raise _late(timeout)
    outcome: _R = running.get()
    return outcome


def _in_native_thread(attempt: Callable[[], _R], timeout: float, ended: Callable[[], object]) -> _R:
    outcome: list[_R] = []
    running = native.allocate_lock()
    running.acquire()

    def run(_: object) -> None:
        outcome.append(attempt())
        ended()
        running.release()

    try:
        native.start_thread(run, None, "gnsq_like-http")
    except BaseException:
        ended()
        raise
    if not running.acquire(timeout=timeout):
        raise _late(timeout)
    return outcome[0]


def _blocking_pool() -> ThreadPool:
    handle = handle_here()  # another one in a forked child, which has none of its parent's threads
    if getattr(_blocking, "handle", None) is not handle:
        _blocking.handle, _blocking.pool = handle, ThreadPool(BLOCKING_THREADS, idle_timeout=_BLOCKING_IDLE)
        handle.before_end.append(_blocking.pool.close)
    pool: ThreadPool = _blocking.pool
    return pool
