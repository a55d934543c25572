"""Detaches a forked child from its parent's connections.

A child inherits the parent's sockets, and any byte it wrote to one would land in the middle of the parent's commands.
Objects that own sockets register here; in the child, a function of each is called before the application's code
continues. It writes nothing, closes descriptors without CLS or TLS close_notify, and never switches.

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

logger = logging.getLogger(__name__)


_T = TypeVar("_T")

#: For each object, the function that detaches it in a child.
_registered: weakref.WeakKeyDictionary[Any, Callable[[Any], object]] = weakref.WeakKeyDictionary()
#: For each object, a function that counts its running handlers; called before a fork.
_busy: weakref.WeakKeyDictionary[Any, Callable[[Any], int]] = weakref.WeakKeyDictionary()
#: In a child: the inherited objects. Their greenlets stay suspended; collecting them would run their ``finally``
#: blocks.
_inherited: list[Any] = []


def register(thing: _T, detach: Callable[[_T], object]) -> None:
    """Call ``detach(thing)`` in every forked child, as long as the object lives."""
    _registered[thing] = detach


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
    for thing, detach in things:
        try:
            detach(thing)
        except Exception:
            logger.exception("%r could not be detached from the parent process", thing)


os.register_at_fork(before=_before, after_in_child=_in_child)
