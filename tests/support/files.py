"""Files that other processes, or another user, change meanwhile; a full disk; files in memory."""

from __future__ import annotations

import math
import os
import pwd
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.daemons import wait_for

# -- a file that another process appends to: its last line may be there in part, whatever writes it


def whole_lines(path: Path) -> list[str]:
    """The lines that have ended so far, without their ends."""
    complete, _, _ = path.read_text().rpartition("\n")
    return complete.splitlines()


# -- the files below a directory, in which others may be made and removed while one looks ----------


def files_below(directory: Path, end: str) -> list[Path]:
    """Those whose names end so; directories that go meanwhile are left out, which ``Path.rglob`` fails for."""
    return [Path(place, name) for place, _, names in os.walk(directory) for name in names if name.endswith(end)]


# -- how far another process is, by the files that it makes: a moment to kill it that does not depend on the machine


def wait_for_changes(directory: Path, count: int, ended: Callable[[], bool]) -> None:
    """Wait until so many names have appeared or vanished below a directory, or the process has ended.

    :param ended: whether the process has ended
    """
    names: set[str] = _names(directory)
    seen = 0

    def changed() -> bool:
        nonlocal names, seen
        now = _names(directory)
        seen += len(now ^ names)
        names = now
        return seen >= count or ended()

    wait_for(changed, f"{count} changes below {directory}", math.inf)


def _names(directory: Path) -> set[str]:
    return {os.path.join(root, name) for root, _, files in os.walk(directory) for name in files}


# -- a full disk: /dev/full, or a limit on the size of this process's files ------------------------

#: For tests that put a symbolic link to /dev/full in the place of a file.
full_disk = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Writes beyond ``size`` bytes of a file fail, pytest's own too, so it goes only around the call."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# -- files in memory, for properties that write hundreds of times what the disk would have to sync each time

_MEMORY = Path("/dev/shm")


def memory_directory() -> tempfile.TemporaryDirectory[str]:
    """A temporary directory, in memory where the system has a file system for that."""
    return tempfile.TemporaryDirectory(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)


# -- another user of this machine, and a directory that both may write into, as /tmp ----------------

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user as well")


@contextmanager
def shared_directory() -> Iterator[Path]:
    """A directory with the mode of /tmp, in one that others may enter; pytest's own are root's alone."""
    parent = Path(tempfile.mkdtemp(prefix="gnsq-like-test-"))
    try:
        parent.chmod(0o755)
        shared = parent / "shared"
        shared.mkdir()
        shared.chmod(0o1777)
        yield shared
    finally:
        shutil.rmtree(parent)


def as_nobody(*command: object) -> None:
    """Run a command in a process that is nobody's; raises if it fails."""
    user = pwd.getpwnam("nobody")
    arguments = [str(part) for part in command]
    subprocess.run(arguments, check=True, user=user.pw_uid, group=user.pw_gid, extra_groups=[], cwd="/")
