"""Ends objects that still run when the program ends, together and within seconds.

They are held weakly. Exit hooks run in the reverse order of their registration; each :func:`register` moves this one
behind those registered so far, so that objects end before those they were made with.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")

#: Seconds that an object gets to end, and how much longer its end is waited for.
_TIMEOUT = 1.0
_GRACE = 1.0

#: For each object the functions given to :func:`register`.
_registered: weakref.WeakKeyDictionary[Any, tuple[Callable[[Any, float], bool], Callable[[Any, float], object]]]
_registered = weakref.WeakKeyDictionary()


def register(thing: _T, begin: Callable[[_T, float], bool], wait: Callable[[_T, float], object]) -> None:
    """End ``thing`` when the program ends.

    :param begin: called with it and a timeout, begins its end; False if there is nothing to wait for
    :param wait: called with it and a timeout, after all have begun
    """
    _registered[thing] = (begin, wait)
    atexit.unregister(_end_all)
    atexit.register(_end_all)


def _end_all() -> None:
    deadline = time.monotonic() + _TIMEOUT + _GRACE
    begun = [(thing, wait) for thing, (begin, wait) in list(_registered.items()) if begin(thing, _TIMEOUT)]
    for thing, wait in begun:
        wait(thing, max(0.0, deadline - time.monotonic()))
