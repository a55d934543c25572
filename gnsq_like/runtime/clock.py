"""The clock, for parameters that default to it.

The clock of this package is the module ``time``: every module calls ``time.monotonic()`` and ``time.time()`` by these
names, so that a simulation, or a test of an application, that replaces them in ``time`` replaces them everywhere. A
default argument would keep the function that it was given at import, so it is one of these.
"""

from __future__ import annotations

import time


def monotonic() -> float:
    """Monotonic seconds."""
    return time.monotonic()


def wall_clock() -> float:
    """Seconds since the epoch."""
    return time.time()


def wall_clock_ns() -> int:
    """Nanoseconds since the epoch, as messages' timestamps are."""
    return time.time_ns()
