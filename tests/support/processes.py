"""What can be done to another process: it is stopped, or may use less."""

from __future__ import annotations

import itertools
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that stands still within the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def limited(pid: int, what: int, soft: int) -> Iterator[None]:
    """A process with a lower limit within the block."""
    before, hard = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (soft, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, what, (before, hard))


def no_descriptors(pid: int) -> AbstractContextManager[None]:
    """A process that can open nothing more within the block."""
    if pid == os.getpid():
        lowest = os.dup(0)
        os.close(lowest)
    else:
        used = set(map(int, os.listdir(f"/proc/{pid}/fd")))
        lowest = next(number for number in itertools.count() if number not in used)
    return limited(pid, resource.RLIMIT_NOFILE, lowest)
