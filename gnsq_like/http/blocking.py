"""Running what blocks on sockets, without freezing a gevent hub.

Three cases, told apart at each call:

- sockets are monkey-patched: the job switches by itself, it runs here;
- they are not, and this OS thread has no hub: nobody else waits for this thread, it runs here;
- they are not, and this thread has a hub: blocking would freeze every greenlet, so it runs in a thread of a
  pool. The pool belongs to the hub and to HTTP alone: the hub's own has ten threads and serves DNS too.

Importing this module or asking it which case holds makes no hub: only ``get_hub()`` would.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import gevent
from gevent import monkey
from gevent._hub_local import get_hub_if_exists
from gevent.threadpool import ThreadPool

#: Threads of a pool: requests of one hub that run at the same moment, in the case that needs threads.
POOL_THREADS = 8
#: Seconds after which an idle thread of a pool ends.
POOL_IDLE = 30.0

_T = TypeVar("_T")

#: Each OS thread's pool and the process that made it. Native storage even where threading is patched.
_of_this_thread: Any = monkey.get_original("_thread", "_local")()


def current_hub() -> object | None:
    """The hub whose loop sockets made now belong to; None for sockets of no hub."""
    return gevent.get_hub() if monkey.is_module_patched("socket") else None


def run(job: Callable[[], _T], timeout: float) -> _T:
    """The result of ``job()``; what it raises is raised here. May switch.

    :param job: something that blocks on sockets, and ends by itself soon after ``timeout``
    :param timeout: seconds
    :raises TimeoutError: the time is up; only where there is a hub, else the job's own end is waited for
    """
    if monkey.is_module_patched("socket"):
        return _within(timeout, job)
    hub = get_hub_if_exists()
    if hub is None:
        return job()
    task = _Task(job)
    try:
        _within(timeout, lambda: _pool(hub).spawn(task).get())
    finally:
        task.wanted = False
    return task.outcome()


def _within(timeout: float, job: Callable[[], _T]) -> _T:
    timer = gevent.Timeout.start_new(timeout)
    try:
        return job()
    except gevent.Timeout as exc:
        if exc is not timer:
            raise
        raise TimeoutError(f"not done within {timeout:g} s") from None
    finally:
        timer.close()


def _pool(hub: Any) -> ThreadPool:
    kept, pid = getattr(_of_this_thread, "pool", (None, 0))
    # In a forked child the threads of the parent's pool do not exist.
    if kept is None or kept.hub is not hub or pid != os.getpid():
        kept = ThreadPool(POOL_THREADS, hub, idle_task_timeout=POOL_IDLE)
        _of_this_thread.pool = (kept, os.getpid())
    return kept


class _Task(Generic[_T]):
    """A job for a thread. It keeps what was raised, because a ThreadPool would print that."""

    def __init__(self, job: Callable[[], _T]) -> None:
        self._job = job
        #: Whether somebody waits for it; written by the waiting greenlet.
        self.wanted = True
        self._result: _T | None = None
        self._error: BaseException | None = None

    def __call__(self) -> None:
        if not self.wanted:
            return
        try:
            self._result = self._job()
        except BaseException as exc:
            self._error = exc

    def outcome(self) -> _T:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._result  # type: ignore[return-value]
