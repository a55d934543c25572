"""What must happen in a forked child: nothing of the parent's may go on there.

A child inherits the parent's sockets, and every byte that it wrote into one would land in the middle of
the parent's commands. What owns sockets registers here; in the child, ``forked_child()`` of each is
called, before the application's code goes on. It writes nothing, closes descriptors without a farewell,
and never switches.

Objects are held weakly. Python calls these hooks for ``os.fork``, multiprocessing and gunicorn, and
for what forks in C and says so (PyOS_AfterFork_Child).
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Protocol

logger = logging.getLogger(__name__)


class Inherits(Protocol):
    """What has something that a child must leave alone."""

    def forked_child(self) -> None: ...


_registered: weakref.WeakSet[Any] = weakref.WeakSet()
#: For each object: how many handlers run in it, asked before a fork.
_busy: weakref.WeakKeyDictionary[Any, Callable[[Any], int]] = weakref.WeakKeyDictionary()
#: In a child: what was inherited. Its greenlets are suspended for ever; collecting them would run their
#: ``finally`` blocks.
_inherited: list[Any] = []


def register(thing: Inherits) -> None:
    """Have ``thing.forked_child()`` called in every forked child, for as long as it lives."""
    _registered.add(thing)


def register_busy(thing: Any, count: Callable[[Any], int]) -> None:
    """Warn when a fork happens while ``count(thing)`` handlers run: a child that runs a hub resumes them."""
    _busy[thing] = count


def _before() -> None:
    running = sum(count(thing) for thing, count in list(_busy.items()))
    if running:
        warnings.warn(
            f"fork while {running} message handlers run: a child that runs gevent's hub goes on with them too; "
            "fork before Reader.start()",
            ResourceWarning,
            stacklevel=2,
        )


def _in_child() -> None:
    things = list(_registered)
    _registered.clear()
    _inherited.extend(things)
    if things and "gevent" in sys.modules:
        # Otherwise this hub would go on with the parent's epoll descriptor. A fork that gevent made does it again.
        from gevent import reinit

        reinit()
    for thing in things:
        try:
            thing.forked_child()
        except Exception:
            logger.exception("%r did not let go of what it inherited", thing)


os.register_at_fork(before=_before, after_in_child=_in_child)
