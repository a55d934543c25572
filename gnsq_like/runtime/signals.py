"""Signals of the process, borrowed while something runs until one of them comes.

gevent's own handlers are used, which run in a greenlet: one of Python's would run wherever the program is just then.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import gevent

from gnsq_like.errors import check_seconds
from gnsq_like.runtime.hub_calls import is_main_thread

__all__ = ["on_signals", "run_until_signal"]

logger = logging.getLogger(__name__)


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


class Runnable(Protocol):
    """A Reader, or several as one."""

    @property
    def error(self) -> Exception | None: ...

    def start(self) -> None: ...
    def wait(self) -> bool: ...
    def stop(self, timeout: float) -> int: ...


def run_until_signal(runnable: Runnable, stop_timeout: float) -> None:
    """Start, and wait until it has stopped: by a signal, by ``stop``, or by itself. May switch.

    Signals are handled only in the main thread, and outside its main greenlet only where the program has no handlers of
    its own. A second SIGINT (a second Ctrl-C) ends the wait for running handlers.

    :param stop_timeout: seconds for running handlers after a signal
    :raises InvalidOption: before it starts, if stop_timeout is no number
    :raises Exception: its ``error``, if it has one
    """
    check_seconds("stop_timeout", stop_timeout)
    runnable.start()
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        runnable.stop(0.0 if len(received) > 1 and number == signal.SIGINT else stop_timeout)

    try:
        with on_signals(_signals_to_take(), stop):
            runnable.wait()
    finally:
        runnable.stop(stop_timeout)
    if runnable.error is not None:
        raise runnable.error


def _signals_to_take() -> list[int]:
    """Those of SIGTERM and SIGINT that a run may handle: a server, in whose greenlets or threads it runs, has its own.

    In the main greenlet, which this run occupies, nothing else would shut the program down cleanly.
    """
    found: list[int] = []
    if is_main_thread():
        is_main = gevent.getcurrent().parent is None
        found = [number for number in (signal.SIGTERM, signal.SIGINT) if is_main or _is_pythons(number)]
    if len(found) < 2:
        text = "run() leaves SIGTERM and SIGINT to the program that called it: call stop() at its end"
        logger.info(text)
    return found


def _is_pythons(number: int) -> bool:
    return signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
