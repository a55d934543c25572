"""What can be done to another process: it is stopped, or may use less; and the processes of a pipeline's run."""

from __future__ import annotations

import itertools
import os
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path


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


def java_of(pid: int) -> int:
    """The Java that this process started; 0 if there is none yet."""
    return next((each for each in children_of(pid) if b"java" in _read(each, "comm")), 0)


def workers_of(java: int) -> list[int]:
    """Spark's Pythons that run tasks.

    Without the daemons that start them: a worker whose daemon is dead, too, stays a zombie until process 1 reaps it,
    and Spark gives each attempt of a task such a zombie, which it takes for a live worker.
    """
    daemons = [each for each in children_of(java) if b"pyspark.daemon" in _read(each, "cmdline")]
    return [pid for daemon in daemons for pid in children_of(daemon)]


def paths_of_pythons(java: int) -> set[str]:
    """What PYTHONPATH names, of all Pythons that this Java started and that run."""
    found = [re.search(rb"\0PYTHONPATH=([^\0]*)", b"\0" + _read(each, "environ")) for each in children_of(java)]
    return {path for each in found if each is not None for path in os.fsdecode(each[1]).split(os.pathsep)}


def threads_of(pid: int) -> int:
    """How many threads a process has; 0 if there is no such process."""
    return len(_threads(pid)) if pid else 0


def children_of(pid: int) -> list[int]:
    """The processes that a process started; none if it ended meanwhile."""
    return [int(each) for task in _threads(pid) for each in _read(pid, f"task/{task}/children").split()] if pid else []


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return []  # it ended meanwhile


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""  # it, or its thread, ended meanwhile
