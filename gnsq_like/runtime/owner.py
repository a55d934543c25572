"""Registry of objects to clean up after a fork and at exit.

**Fork.** A child inherits the parent's sockets, and any byte it wrote to one would land in the middle of the parent's
commands. So in the child, ``forked`` of each object is called before the application's code continues. It writes
nothing, closes descriptors without CLS or TLS close_notify, and never switches.

The child has no other thread than the one that forked. Event loops of the others must be left alone, their watchers
included: libev may have been changing such a loop at that moment, outside Python's lock, and ends a process whose
timers are in disorder.

Python runs these hooks for ``os.fork``, multiprocessing and gunicorn, and for C code that forks and calls
PyOS_AfterFork_Child, as it must.

**Exit.** Objects with ``begin_to_end`` (Readers) end first, together. Exit hooks run in the reverse order of their
registration; each :func:`register` of such an object moves this one behind those registered so far, so that objects end
before those they were made with. Objects with ``at_last`` (Producers, and then their thread) end after all exit hooks
that were registered later than this module was imported: those may publish.

The end of a thread is noticed by ``HubHandle.lives``. Objects are held weakly.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from gnsq_like.runtime import native

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

#: At exit: seconds that each object gets to end, how much longer the end of all is waited for, and for ``at_last``.
_TIMEOUT = 1.0
_GRACE = 1.0
_LAST_TIMEOUT = 1.0


class _Duties(NamedTuple):
    """The arguments of :func:`register`."""

    forked: Callable[[Any, bool], object]
    thread: int
    busy: Callable[[Any], int] | None
    begin_to_end: Callable[[Any, float], bool] | None
    wait: Callable[[Any, float], object] | None
    at_last: Callable[[Any, float], object] | None


#: Held while something starts that two threads may start at once; nothing inside may switch. Native: a patched lock
#: belongs to greenlets.
starting: Any = native.RLock()

#: Whether the interpreter is exiting: what is started now would not be ended.
is_exiting = False

_owners: weakref.WeakKeyDictionary[Any, _Duties] = weakref.WeakKeyDictionary()
#: In a child: the inherited objects; elsewhere those of threads that have ended. Their greenlets stay suspended;
#: collecting them would run their ``finally`` blocks, and stop watchers.
_kept: list[Any] = []


def register(
    owner: _T,
    forked: Callable[[_T, bool], object],
    *,
    thread: int | None = None,
    busy: Callable[[_T], int] | None = None,
    begin_to_end: Callable[[_T, float], bool] | None = None,
    wait: Callable[[_T, float], object] | None = None,
    at_last: Callable[[_T, float], object] | None = None,
) -> None:
    """Call these functions with ``owner``, as long as it lives. Never switches.

    :param forked: called with whether its event loop is that of the thread that forked, in every forked child; called
        again in a child of that. If not, no watcher of the loop may be touched or collected: see :func:`keep`
    :param thread: the thread of its event loop; None for this one
    :param busy: counts its running handlers; a fork while there are any gives a warning
    :param begin_to_end: called with a timeout as the program ends; False if there is nothing to wait for
    :param wait: called with a timeout, after all have begun to end
    :param at_last: called with a timeout, after these, the last registered first
    """
    where = native.thread_id() if thread is None else thread
    _owners.pop(owner, None)
    _owners[owner] = _Duties(forked, where, busy, begin_to_end, wait, at_last)
    if begin_to_end is not None:
        atexit.unregister(_end_all)
        atexit.register(_end_all)


def keep(thing: object) -> None:
    """Never collect this: its watchers belong to the parent's loop, or to one whose thread has ended."""
    _kept.append(thing)


def leave_threads(pool: Any) -> None:
    """In a child: a pool of gevent's starts threads anew, and the hubs of the parent's threads are left alone.

    gevent destroys them otherwise; where one has a pool itself, since a name was looked up there, that waits for its
    threads for ever.
    """
    for worker in pool._worker_greenlets:
        keep(worker._hub_of_worker)
        worker._hub_of_worker = None


def _before_fork() -> None:
    running = sum(duties.busy(owner) for owner, duties in list(_owners.items()) if duties.busy is not None)
    if running:
        warnings.warn(
            f"fork while {running} message handlers run: a child that runs gevent's hub resumes them too; "
            "fork before Reader.start()",
            ResourceWarning,
            stacklevel=2,
        )


def _in_child() -> None:
    global starting
    starting = native.RLock()  # its holder may be a thread of the parent
    owners = list(_owners.items())
    _kept.extend(owners)
    if owners and "gevent" in sys.modules:
        # Otherwise this hub would use the parent's epoll descriptor. After gevent's own fork this is the second call.
        from gevent import reinit
        from gevent._hub_local import get_hub_if_exists

        if (hub := get_hub_if_exists()) is not None and hub._threadpool is not None:
            leave_threads(hub._threadpool)
        reinit()
    for owner, duties in owners:
        try:
            duties.forked(owner, duties.thread == native.thread_id())
        except Exception:
            logger.exception("%r could not be detached from the parent process", owner)


def _end_all() -> None:
    deadline = time.monotonic() + _TIMEOUT + _GRACE
    begun = [
        (owner, duties)
        for owner, duties in list(_owners.items())
        if duties.begin_to_end is not None and duties.begin_to_end(owner, _TIMEOUT)
    ]
    for owner, duties in begun:
        if duties.wait is not None:
            duties.wait(owner, max(0.0, deadline - time.monotonic()))


@atexit.register
def _end_last() -> None:
    global is_exiting
    is_exiting = True
    deadline = time.monotonic() + _LAST_TIMEOUT
    for owner, duties in reversed(list(_owners.items())):
        if duties.at_last is not None:
            duties.at_last(owner, deadline - time.monotonic())


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
