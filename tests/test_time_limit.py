"""A test that hangs is named, and does not hang the run: see tests/support/time_limit.py."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.commands

ROOT = Path(__file__).resolve().parent.parent

HANGING = """
import gevent
import pytest

def test_that_waits():
    gevent.sleep(3600)

def test_that_computes():
    while True: pass

def test_that_is_fine():
    pass
"""


def run(directory: Path, module: str) -> str:
    """The output of pytest in two processes, with our settings and a limit of two seconds."""
    (directory / "conftest.py").write_text("from tests.conftest import *\n")
    (directory / "test_0.py").write_text(module)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "setup.cfg"), f"--rootdir={directory}", str(directory)]
    # Without a bound of its own: were the run to hang, the limit of the test that calls this would name it.
    done = subprocess.run(
        [*command, "-o", "timeout=2", "-n", "2", "--dist", "loadgroup"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=directory,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    return done.stdout


def test_a_test_that_hangs_fails_and_the_others_run(tmp_path: Path) -> None:
    output = run(tmp_path, HANGING)
    assert "FAILED test_0.py::test_that_waits" in output, output
    assert "FAILED test_0.py::test_that_computes" in output, output
    assert "2 failed, 1 passed" in output, output
    for place in (">       gevent.sleep(3600)", ">       while True: pass"):
        assert place in output, f"nothing says where they hung:\n{output}"
