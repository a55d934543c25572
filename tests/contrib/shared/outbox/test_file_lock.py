"""One relay at a time for a database that is a file."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gnsq_like.contrib.shared.outbox.file_lock import FileLock
from tests.support.daemons import wait_for
from tests.support.web import ROOT


def test_without_a_path_everybody_has_it() -> None:
    one, two = FileLock(""), FileLock("")
    assert one.acquire()
    assert two.acquire()
    one.release()


def test_a_killed_process_has_it_no_longer(tmp_path: Path) -> None:
    code = f"""
from gnsq_like.contrib.shared.outbox.file_lock import FileLock
lock = FileLock({str(tmp_path / "lock")!r})
print(lock.acquire(), flush=True)
input()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        mine = FileLock(str(tmp_path / "lock"))
        assert not mine.acquire()
        other.send_signal(signal.SIGKILL)
    wait_for(mine.acquire, "the lock")
    mine.release()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="lock"):
        FileLock(str(tmp_path / "lock")).acquire()
    assert not (tmp_path / "elsewhere").exists()
