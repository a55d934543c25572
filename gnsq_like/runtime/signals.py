"""Signals of the process, borrowed while something runs until one of them comes.

gevent's own handlers are used, which run in a greenlet: one of Python's would run wherever the program is just then.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import gevent

__all__ = ["on_signals"]


@contextmanager
def on_signals(numbers: Iterable[int], function: Callable[[int], object]) -> Iterator[None]:
    """Within this, call ``function(number)`` for each of these signals, and then leave them as they were.

    In the main thread only. The function is called in a greenlet of its own. The hub waits for signals even if there is
    nothing else to wait for.
    """
    taken = list(numbers)
    watchers = [gevent.signal_handler(number, function, number) for number in taken]
    for watcher in watchers:
        watcher.ref = True
    try:
        yield
    finally:
        for watcher in watchers:
            watcher.cancel()
        for number in taken:
            _give_back(number)


def _give_back(number: int) -> None:
    """After gevent's cancel(), which leaves the system's default action: it ends the process, whatever Python has."""
    handler = signal.getsignal(number)
    if handler is not None and not _is_caught(number):
        signal.signal(number, handler)


def _is_caught(number: int) -> bool:
    """Whether this signal has a handler in C, for instance another one of gevent's; False where that is not known."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
