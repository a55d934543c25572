"""The programs of the tutorial, the guides and the first page run as they stand, but for the daemons' addresses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gnsq_like.deadletter import open_envelope
from gnsq_like.testing import RunningNsqd, running_nsqd, running_nsqlookupd
from tests.support.pages import blocks, page, replaced, section
from tests.support.scripts import ROOT, run_beside

pytestmark = pytest.mark.commands

#: Seconds; for a process to start on a busy machine and do what it is to do.
PATIENCE = 100

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass
class Steps:
    """The tutorial's files in a directory, for daemons of this test."""

    directory: Path
    nsqd: RunningNsqd

    def run(self, *command: str) -> str:
        done = run_beside([sys.executable, *command], cwd=self.directory, env=ENVIRONMENT)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    @contextmanager
    def running(self, name: str) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, name]
        with subprocess.Popen(
            command, cwd=self.directory, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=100)
                assert process.returncode == 0
            finally:
                process.kill()


@pytest.fixture
def steps(tmp_path: Path) -> Iterator[Steps]:
    with (
        running_nsqlookupd(kind="process") as lookupd,
        running_nsqd(kind="process", lookupd_tcp_addresses=[lookupd.tcp_address]) as nsqd,
    ):
        for block in blocks(page("tutorial.rst")):
            name = re.match(r"# (\w+\.py)\n", block)
            assert name
            meant = {"127.0.0.1:4150": nsqd.tcp_address, "127.0.0.1:4161": lookupd.http_address}
            text = replaced(block, meant)
            (tmp_path / name[1]).write_text(text)
        yield Steps(tmp_path, nsqd)


def test_the_tutorial_publishes_counts_and_keeps_what_fails(steps: Steps) -> None:
    nsqd = steps.nsqd
    assert steps.run("publish.py") == "100 clicks published\n"
    with steps.running("count.py") as counting:
        assert counting.stdout is not None
        lines = [counting.stdout.readline() for _ in range(2)]
    assert lines[1] == "{'/page/0': 34, '/page/1': 33, '/page/2': 33}\n"
    nsqd.wait_until("clicks", "count", left=0, timeout=PATIENCE)
    nsqd.publish("clicks", b"not JSON")
    nsqd.create_channel("clicks.dead", "look")
    with steps.running("count_safely.py"):
        [dead] = nsqd.messages("clicks.dead", "look", count=1, timeout=PATIENCE)
        nsqd.wait_until("clicks", "count", left=0, timeout=PATIENCE)
    letter = open_envelope(dead.body)
    assert (letter.topic, letter.channel, letter.body) == ("clicks", "count", b"not JSON")


def test_the_tutorials_test_passes(steps: Steps) -> None:
    printed = steps.run("-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "test_count.py")
    assert "1 passed" in printed


def test_the_tutorials_reader_is_found_by_the_command(steps: Steps) -> None:
    printed = steps.run("-m", "gnsq_like", "run", "count_safely", "--processes", "2", "--check")
    assert re.search(r"clicks +count +count\.count", printed)


PROGRAMS = {
    "index.rst": "b'/home'\n",
    "guides/asyncio.rst": "",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs(name: str, tmp_path: Path) -> None:
    [program] = blocks(page(name))
    with running_nsqd(kind="process") as nsqd:
        path = tmp_path / "program.py"
        path.write_text(program.replace("127.0.0.1:4150", nsqd.tcp_address))
        done = run_beside([sys.executable, "-W", "error", str(path)], cwd=tmp_path, env=ENVIRONMENT)
        assert (done.returncode, done.stdout, done.stderr) == (0, PROGRAMS[name], "")
        if "asyncio" in name:
            assert nsqd.depth("clicks") == 100


def test_the_guides_reader_drains_at_sigterm(tmp_path: Path) -> None:
    [program] = blocks(section(page("reader.rst"), "Stopping"))
    with running_nsqd(kind="process") as nsqd:
        (tmp_path / "archive.py").write_text(program.replace("127.0.0.1:4150", nsqd.tcp_address))
        nsqd.publish("clicks", b"/home")
        with Steps(tmp_path, nsqd).running("archive.py"):
            [archived] = nsqd.messages("archived", "look", count=1, timeout=PATIENCE)
        assert archived.body == b"/home"
        nsqd.wait_until("clicks", "archive", left=0, timeout=PATIENCE)
