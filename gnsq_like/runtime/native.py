"""Threads, locks, time and random numbers of the operating system, even if gevent has patched Python.

The patched threads and locks belong to greenlets. A simulation replaces these functions, so call ``start_new_thread``
and ``sleep`` as attributes of this module.

The clock of this package is the module ``time``: every module calls ``time.monotonic()`` and ``time.time()`` by these
names, so that a simulation, or a test of an application, that replaces them in ``time`` replaces them everywhere. A
default argument would keep the function that it was given at import, so for those there are functions here.

Random draws, for delays and for the order of turns, are not those of the ``random`` module: an application that seeds
it in each of its processes would make them all redial at the same moments, and its own sequence would not be
reproducible with greenlets of ours drawing from it. Nor are they its SystemRandom's, whose import takes a millisecond
or two of each first publish.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from gevent import monkey

#: ``start_new_thread(function, arguments)``; RuntimeError if there are no threads left.
start_new_thread: Callable[..., int] = monkey.get_original("_thread", "start_new_thread")
#: Blocks the thread for so many seconds.
sleep: Callable[[float], object] = monkey.get_original("time", "sleep")
#: The id of the OS thread; the patched ``threading.get_ident`` identifies greenlets.
thread_id: Callable[[], int] = monkey.get_original("_thread", "get_ident")
allocate_lock: Any = monkey.get_original("_thread", "allocate_lock")
#: The classes ``RLock`` and ``local``.
RLock: Any = monkey.get_original("_thread", "RLock")
local: Any = monkey.get_original("_thread", "_local")


def start_thread(function: Callable[[Any], object], argument: object, name: str) -> None:
    """Start a thread of the operating system. May block briefly. RuntimeError if there are no threads left."""
    if monkey.is_module_patched("threading"):
        start_new_thread(function, (argument,))
    else:
        # By threading, which otherwise registers a dummy thread object once the thread logs, and never removes it.
        threading.Thread(target=function, args=(argument,), name=name, daemon=True).start()


def monotonic() -> float:
    """Monotonic seconds."""
    return time.monotonic()


def wall_clock() -> float:
    """Seconds since the epoch."""
    return time.time()


def wall_clock_ns() -> int:
    """Nanoseconds since the epoch, as messages' timestamps are."""
    return time.time_ns()


def draw() -> float:
    """A number from 0 to 1, 1 excluded. From any thread; a forked child draws others than its parent."""
    return int.from_bytes(os.urandom(4), "big") / 2**32
