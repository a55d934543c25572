"""Waiting for a condition, from any thread, patched or not."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, TypeVar

import gevent
from gevent import monkey
from gevent._hub_local import get_hub_if_exists

T = TypeVar("T")

#: Seconds for which what must come is waited for, unless told otherwise.
TIMEOUT = 5.0
#: Seconds between two looks.
INTERVAL = 0.01

# The operating system's, patched or not: only for threads without a hub.
_block: Callable[[float], Any] = monkey.get_original("time", "sleep")


def sleep(seconds: float) -> None:
    """Wait in the way that is right for this thread: with its greenlets running, or blocking. May switch."""
    if get_hub_if_exists() is not None or monkey.is_module_patched("time"):
        gevent.sleep(seconds)
    else:
        _block(seconds)


def wait_until(condition: Callable[[], T], timeout: float = TIMEOUT, what: object = "") -> T:
    """Wait until ``condition()`` is true, and give what it gave. May switch.

    :param timeout: seconds
    :param what: what is waited for, for the error; an object is asked for its text only then
    :raises AssertionError: when it is not true by then
    """
    deadline = monotonic() + timeout
    while not (value := condition()):
        if monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {what or condition}")
        sleep(INTERVAL)
    return value
