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

CATCHING = """
import gevent

def test_that_catches_all():
    while True:
        try:
            gevent.sleep(3600)
        except BaseException:
            pass
"""

HANGING_LATER = """
import gevent
import pytest

@pytest.fixture
def hangs_as_it_cleans_up():
    yield
    gevent.sleep(3600)

def test_that_fails(hangs_as_it_cleans_up):
    raise AssertionError
"""

FAILING_AT_LENGTH = """
import time

def test_that_fails():
    __tracebackhide__ = lambda excinfo: time.sleep(3)  # asked when the failure is reported
    raise AssertionError("at length")
"""


def run(directory: Path, *modules: str) -> str:
    """The output of pytest in two processes, with our settings and a limit of two seconds."""
    (directory / "conftest.py").write_text("from tests.conftest import *\n")
    for number, module in enumerate(modules):
        (directory / f"test_{number}.py").write_text(module)
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


def test_a_failure_that_takes_long_to_put_into_words_does_not_end_the_run(tmp_path: Path) -> None:
    output = run(tmp_path, FAILING_AT_LENGTH)
    assert "AssertionError: at length" in output, output
    assert "1 failed" in output, output


def test_what_hangs_in_spite_of_its_failure_is_named_and_the_run_ends(tmp_path: Path) -> None:
    output = run(tmp_path, CATCHING, HANGING_LATER)
    assert "test_0.py::test_that_catches_all is still running" in output, output
    assert "test_1.py::test_that_fails is still running" in output, output
    assert output.count("crashed while running") >= 2, output
    for place in ("in test_that_catches_all", "in hangs_as_it_cleans_up"):
        assert place in output, f"the stacks do not say where they hung:\n{output}"
