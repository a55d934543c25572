"""Greenlets in which nothing may wait.

Python calls a signal handler in whatever greenlet is running, also in the hub and in the greenlet that reads a
connection. A handler that waited there for an answer would keep that answer from being read.
"""

from __future__ import annotations

from gevent import Greenlet, getcurrent
from gevent.hub import Hub

from gnsq_like.errors import NotRunning


class InnerGreenlet(Greenlet):
    """A greenlet that others rely on, and that runs no code of the user but hooks that must not switch."""


def may_wait_here() -> bool:
    """Whether the current greenlet is neither a hub nor an InnerGreenlet. Never switches.

    :raises NotRunning: while the interpreter is finalized, for instance in a ``__del__``
    """
    try:
        current = getcurrent()
    except RuntimeError as exc:
        raise NotRunning("the interpreter is exiting") from exc
    return not isinstance(current, (Hub, InnerGreenlet))
