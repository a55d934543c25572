"""Waiting for a condition, from any thread, patched or not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from gnsq_like.runtime.hub_calls import sleep

T = TypeVar("T")

#: Default timeout in seconds. It only limits how long a failing test hangs, so it leaves time for busy machines.
TIMEOUT = 30.0
#: Seconds between two checks.
INTERVAL = 0.01


def wait_until(condition: Callable[[], T], timeout: float = TIMEOUT, what: str | Callable[[], str] = "") -> T:
    """Wait until ``condition()`` is true, and return its value. May switch, or block.

    :param timeout: seconds
    :param what: the awaited condition, for the error; or a function that returns it
    :raises AssertionError: when it is not true in time
    """
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {(what() if callable(what) else what) or condition}")
        sleep(INTERVAL)
    return value
