"""Another user of this machine, and a directory that both may write into, as /tmp."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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
