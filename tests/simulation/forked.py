"""Runs a function in a forked child, and reports how it ended.

A simulation takes over its interpreter, so each has one of its own. A fork takes some milliseconds, and the child has
all that was imported and defined before, so a test can be a function in the middle of a test file.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

# What patching imports, and what the package loads at first use: loaded once, before the forks.
from gevent import monkey

import gnsq_like
import gnsq_like.http.exchange
import gnsq_like.server

for _name in gnsq_like.__all__:
    getattr(gnsq_like, _name)

_fork: Callable[[], int] = monkey.get_original("os", "fork")
_waitpid = monkey.get_original("os", "waitpid")
_read = monkey.get_original("os", "read")
_poll = monkey.get_original("select", "poll")
_monotonic = time.monotonic


class Outcome(NamedTuple):
    """How a call in a child has ended."""

    #: What it returned, if that can be pickled; the exception's text otherwise.
    value: Any
    #: The exception's class name, or empty.
    error: str
    #: With its traceback.
    text: str


class _Child:
    """A forked child that calls a function."""

    def __init__(self, function: Callable[[], Any], timeout: float) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # a fork while threads run; the child uses none of theirs
            self._pid = _fork()
        if not self._pid:
            os.close(self.reader)
            _run(function, writer, timeout)
        os.close(writer)
        #: Real time after which it is killed: it waits for something, which no simulation does.
        self.deadline = _monotonic() + 20 * timeout
        self._data = b""

    def read(self) -> bool:
        """Read what it has sent; whether that was all."""
        piece = _read(self.reader, 1 << 16)
        self._data += piece
        return not piece

    def end(self, *, kill: bool = False) -> Outcome:
        """Wait for its end."""
        if kill:
            os.kill(self._pid, signal.SIGKILL)
        os.close(self.reader)
        _, status = _waitpid(self._pid, 0)
        if kill or not self._data:
            return Outcome(None, "Died", f"the simulation's process ended with status {status}")
        return Outcome(*pickle.loads(self._data))


def run_forked(function: Callable[[], Any], timeout: float) -> Outcome:
    """Call ``function`` in a forked child.

    :param timeout: seconds of the processor; the child ends then, and its traceback is in stderr
    """
    _, outcome = next(run_many([function], timeout, 1))
    return outcome


def run_many(functions: Iterable[Callable[[], Any]], timeout: float, processes: int) -> Iterator[tuple[int, Outcome]]:
    """The same for many, so many at once; the outcomes come as the children end, with the numbers of the functions.

    The children are forked by this thread, because their main thread must be the interpreter's.
    """
    left = enumerate(functions)
    children: dict[int, tuple[int, _Child]] = {}
    poll = _poll()
    while True:
        while len(children) < processes and (numbered := next(left, None)) is not None:
            number, function = numbered
            child = _Child(function, timeout)
            children[child.reader] = number, child
            poll.register(child.reader, select.POLLIN)
        if not children:
            return
        poll.poll(1000)
        for reader, (number, child) in list(children.items()):
            is_late = _monotonic() > child.deadline
            if is_late or (_is_readable(reader) and child.read()):
                poll.unregister(reader)
                del children[reader]
                yield number, child.end(kill=is_late)


def _is_readable(descriptor: int) -> bool:
    poll = _poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _run(function: Callable[[], Any], writer: int, timeout: float) -> None:
    # The garbage collector never looks at what was there before: of a whole run of pytest, that is most of what a
    # simulated test would cost.
    gc.freeze()
    # Seconds of the processor, because a run must not fail for want of one. The traceback is written, then it dies.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    faulthandler.register(signal.SIGPROF, file=2, chain=True)
    signal.setitimer(signal.ITIMER_PROF, timeout)
    try:
        try:
            outcome = (function(), "", "")
        except BaseException as exc:
            outcome = (str(exc), type(exc).__name__, "".join(traceback.format_exception(exc)))
        try:
            data = pickle.dumps(outcome)
        except Exception:
            data = pickle.dumps((repr(outcome[0]), *outcome[1:]))
        sys.stdout.flush()
        sys.stderr.flush()
        while data:
            data = data[os.write(writer, data) :]
    finally:
        os._exit(0)
