"""Calls in native threads, for handlers with ``spawn="thread"`` and for other blocking code.

A greenlet hands its call to a thread and waits. The threads belong to a Reader, or to a hub (:func:`hub_threads`):
gevent's own pool of a hub has ten, which serve everything else.

A thread cannot be killed. When the waiting greenlet is killed, the thread continues; its result is dropped, and its
place is free again when it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from contextvars import copy_context
from typing import Any, TypeVar
from weakref import WeakSet

import gevent
from gevent import monkey, threadpool
from gevent._hub_local import get_hub_if_exists

from gnsq_like.runtime import native, owner
from gnsq_like.runtime.hub_calls import handle_here, life_here

_A = TypeVar("_A")
_R = TypeVar("_R")


#: In effect no limit, but one that gevent's pool can represent.
_MOST_THREADS = 2**20
#: Threads of a hub for calls that block: HTTP requests where sockets are not patched, and lookups of names.
BLOCKING_THREADS = 64
#: Seconds after which one of them ends when idle: short, because its hub may have ended, and not a round number, so
#: that calls at regular intervals do not meet threads that are just ending.
_BLOCKING_IDLE = 1.7


#: What a function returns, and what it raises instead; gevent would print an exception that its thread does not catch.
_Outcome = tuple[Any, BaseException | None]


def _attempt(function: Callable[..., object], *arguments: Any) -> _Outcome:
    try:
        return function(*arguments), None
    except BaseException as exc:
        return None, exc


def _result(value: Any, exc: BaseException | None) -> Any:
    if exc is None:
        return value
    try:
        raise exc
    finally:
        del exc  # breaks the reference cycle of traceback and frame


def result_of(running: Any) -> Any:
    """What the function returns that ``ThreadPool.begin`` began; raises what it raises. May switch."""
    return _result(*running.get())


class ThreadPool:
    """Calls functions in threads, at most ``width`` at once. Belongs to the hub in which it is made.

    Threads are started on demand, and kept until :meth:`close`.

    :param idle_timeout: seconds after which an idle thread ends; None for never
    """

    def __init__(self, width: int, *, idle_timeout: float | None = None) -> None:
        idle = -1 if idle_timeout is None else idle_timeout
        self._owner = native.thread_id()
        self._pool = threadpool.ThreadPool(min(width, _MOST_THREADS), idle_task_timeout=idle)
        #: Of calls that several greenlets wait for: what :meth:`begin` returned, by a key of theirs.
        self.shared: dict[object, Any] = {}
        #: Of the threads that have called something.
        self._lives: WeakSet[Any] = WeakSet()
        owner.register(self, lambda self, _: owner.leave_threads(self._pool))

    def set_width(self, width: int) -> None:
        """Change the maximum number of threads, at any time. A lower one takes effect as calls end."""
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
        result: _R = result_of(self.begin(copy_context().run, function, argument))
        return result

    def begin(self, function: Callable[..., object], *arguments: object) -> Any:
        """Begin ``function(*arguments)`` in a thread; an AsyncResult, for :func:`result_of`. Never switches."""
        return self._pool.spawn(self._run, function, *arguments)

    def _run(self, function: Callable[..., object], *arguments: Any) -> _Outcome:
        if native.thread_id() != self._owner:
            self._lives.add(life_here())
        return _attempt(function, *arguments)

    def close(self, timeout: float = 1.0) -> int:
        """End idle threads now, the others when their calls end. May switch.

        gevent forgets a thread before it has taken down the thread's own hub, and the interpreter must not end while
        that goes on: it would crash.

        :param timeout: seconds to wait for them
        :returns: the number of threads still running then
        """
        end = gevent.spawn(self._end)
        end.join(timeout)
        return 0 if end.dead else len(self._lives)

    def _end(self) -> None:
        self._pool.kill()
        while len(self._lives):
            gevent.sleep(0.001)


def call_in_thread(function: Callable[[_A], _R], argument: _A) -> _R:
    """Call ``function(argument)``, which may block, in a thread of this hub; here if there is no hub. May switch."""
    return function(argument) if get_hub_if_exists() is None else hub_threads().call(function, argument)


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
    has_hub = monkey.is_module_patched("socket") or get_hub_if_exists() is not None
    outcome = (_beside_the_caller if has_hub else _in_native_thread)(job, timeout, ended)
    if isinstance(outcome[1], gevent.Timeout):
        raise _late(timeout)  # the job's own: the caller's is raised in the caller
    try:
        result: _R = _result(*outcome)
        return result
    finally:
        del outcome  # as there


def _late(timeout: float) -> TimeoutError:
    return TimeoutError(f"not done within {timeout:g} s")


def _beside_the_caller(job: Callable[[], object], timeout: float, ended: Callable[[], object]) -> _Outcome:
    def bounded() -> _Outcome:
        with gevent.Timeout(timeout):
            return _attempt(job)

    with ExitStack() as not_begun:
        not_begun.callback(ended)
        running = gevent.spawn(bounded) if monkey.is_module_patched("socket") else hub_threads().begin(job)
        not_begun.pop_all()
    running.rawlink(lambda _: ended())
    if not gevent.wait([running], timeout):
        raise _late(timeout)
    outcome: _Outcome = running.get()
    return outcome


def _in_native_thread(job: Callable[[], object], timeout: float, ended: Callable[[], object]) -> _Outcome:
    outcome: list[_Outcome] = []
    running = native.allocate_lock()
    running.acquire()

    def run(_: object) -> None:
        outcome.append(_attempt(job))
        ended()
        running.release()

    with ExitStack() as not_begun:
        not_begun.callback(ended)
        native.start_thread(run, None, "gnsq_like-http")
        not_begun.pop_all()
    if not running.acquire(timeout=max(0.0, timeout)):
        raise _late(timeout)
    return outcome[0]


def hub_threads() -> ThreadPool:
    """The threads of this thread's hub; they end with it."""
    handle = handle_here()  # another one in a forked child, which has none of its parent's threads
    if handle.threads is None:
        handle.threads = ThreadPool(BLOCKING_THREADS, idle_timeout=_BLOCKING_IDLE)
    threads: ThreadPool = handle.threads
    return threads
