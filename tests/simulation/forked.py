"""Runs a function in a forked child, and reports how it ended.

A simulation takes over its interpreter, so each has one of its own. A fork takes some milliseconds, and the child has
all that was imported and defined before, so a test can be a function in the middle of a test file.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
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


def run_forked(function: Callable[[], Any], timeout: float) -> Outcome:
    """Call ``function`` in a forked child.

    :param timeout: real seconds; the child is killed then, and its traceback is in stderr
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork while threads run; the child uses none of theirs
        child = _fork()
    if not child:
        os.close(reader)
        _run(function, writer, timeout)
    os.close(writer)
    try:
        data = _receive(reader, timeout + 5)
    finally:
        os.close(reader)
        if data_is_late := "data" not in locals():
            os.kill(child, signal.SIGKILL)
        _, status = _waitpid(child, 0)
    if data_is_late or not data:
        return Outcome(None, "Died", f"the simulation's process ended with status {status}")
    return Outcome(*pickle.loads(data))


def _run(function: Callable[[], Any], writer: int, timeout: float) -> None:
    faulthandler.dump_traceback_later(timeout, exit=True, file=2)
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


def _receive(reader: int, timeout: float) -> bytes:
    deadline = _monotonic() + timeout
    poll = _poll()
    poll.register(reader, select.POLLIN)
    data = b""
    while (left := deadline - _monotonic()) > 0 and poll.poll(left * 1000):
        piece = _read(reader, 65536)
        if not piece:
            return data
        data += piece
    return data
