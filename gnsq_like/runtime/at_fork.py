"""Detaches a forked child from its parent's connections.

A child inherits the parent's sockets, and any byte it wrote to one would land in the middle of the parent's commands.
Objects that own sockets register here; in the child, a function of each is called before the application's code
continues. It writes nothing, closes descriptors without CLS or TLS close_notify, and never switches.

The child has no other thread than the one that forked. Event loops of the others must be left alone, their watchers
included: libev may have been changing such a loop at that moment, outside Python's lock, and ends a process whose
timers are in disorder.

Objects are held weakly. Python runs these hooks for ``os.fork``, multiprocessing and gunicorn, and for C code that
forks and calls PyOS_AfterFork_Child.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from gnsq_like.runtime import native

logger = logging.getLogger(__name__)


_T = TypeVar("_T")

#: For each object, the function that detaches it in a child, and the thread of its event loop.
_registered: weakref.WeakKeyDictionary[Any, tuple[Callable[[Any, bool], object], int]] = weakref.WeakKeyDictionary()
#: For each object, a function that counts its running handlers; called before a fork.
_busy: weakref.WeakKeyDictionary[Any, Callable[[Any], int]] = weakref.WeakKeyDictionary()
#: In a child: the inherited objects; elsewhere those of threads that have ended. Their greenlets stay suspended;
#: collecting them would run their ``finally`` blocks, and stop watchers.
_inherited: list[Any] = []


def register(thing: _T, detach: Callable[[_T, bool], object], thread: int | None = None) -> None:
    """Call ``detach(thing, loop_lives)`` in every forked child, as long as the object lives.

    ``loop_lives`` is whether its event loop is that of the thread that forked. If not, no watcher of it may be touched
    or collected: see :func:`keep`.

    :param thread: the thread of its event loop; None for this one
    """
    _registered[thing] = detach, native.thread_id() if thread is None else thread


def keep(thing: object) -> None:
    """Never collect this: its watchers belong to the parent's loop, or to one whose thread has ended."""
    _inherited.append(thing)


def register_busy(thing: Any, count: Callable[[Any], int]) -> None:
    """Warn at a fork while ``count(thing)`` is above 0: handlers run, and a child that runs a hub resumes them."""
    _busy[thing] = count


def _before() -> None:
    running = sum(count(thing) for thing, count in list(_busy.items()))
    if running:
        warnings.warn(
            f"fork while {running} message handlers run: a child that runs gevent's hub resumes them too; "
            "fork before Reader.start()",
            ResourceWarning,
            stacklevel=2,
        )


def _in_child() -> None:
    things = list(_registered.items())
    _registered.clear()
    _inherited.extend(things)
    if things and "gevent" in sys.modules:
        # Otherwise this hub would use the parent's epoll descriptor. After gevent's own fork this is the second call.
        from gevent import reinit

        reinit()
    for thing, (detach, thread) in things:
        try:
            detach(thing, thread == native.thread_id())
        except Exception:
            logger.exception("%r could not be detached from the parent process", thing)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_before, after_in_child=_in_child)
