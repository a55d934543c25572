"""``gnsq-like run``: arguments, --check, and what cannot be run. The rest is tested with the supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import PATIENCE, gnsq_like, open_terminal, terminal_environment
from tests.support.daemons import wait_for
from tests.support.supervised import APP
from tests.support.tools import NOBODY, run_tool

pytestmark = pytest.mark.commands

MODULE = """
from gnsq_like import Batch, Reader

def archive(message):
    pass

def store(messages):
    pass

readers = [
    Reader("clicks", "archive", archive, nsqd_tcp_addresses="127.0.0.1:1", max_in_flight=10),
    Reader("clicks", "store", Batch(store, size=50), nsqd_tcp_addresses="127.0.0.1:1", max_in_flight=3, spawn="thread"),
]
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A directory with a module."""
    (tmp_path / "shop.py").write_text(MODULE)
    return tmp_path


def test_check_lists_what_would_run(shop: Path) -> None:
    done = gnsq_like("run", "shop", "--check", "--processes", "4", cwd=shop)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert rows[0] == ["TOPIC", "CHANNEL", "HANDLER", "RUNS", "IN", "IN", "FLIGHT", "EACH", "OF", "4"]
    assert rows[1:] == [
        ["clicks", "archive", "shop.archive", "greenlets", "10", "2", "or", "3"],
        ["clicks", "store", "shop.store,", "lists", "of", "50", "threads", "3", "1"],
    ]


def test_check_as_json(shop: Path) -> None:
    done = gnsq_like("run", "shop:readers", "--check", "--json", "--processes=2", f"--app-dir={shop}")
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)
    assert first == {
        "topic": "clicks",
        "channel": "archive",
        "max_in_flight": 10,
        "handler": "shop.archive",
        "batch": None,
        "spawn": "greenlet",
        "concurrency": None,
        "shares": [5, 5],
    }
    assert (second["batch"], second["spawn"], second["shares"]) == (50, "thread", [1, 2])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["missing"], "Error: cannot import missing: ModuleNotFoundError: No module named 'missing'"),
        (["shop:archive"], "Error: shop:archive is a function: write shop:archive() for the Readers that it returns"),
        (["shop.py"], "Error: shop.py is a file: give a module's name, such as shop"),
        (["shop", "--health=nobody.invalid:1"], "Error: cannot listen on nobody.invalid:1: "),
    ],
)
def test_what_cannot_be_run_is_one_line(shop: Path, arguments: list[str], line: str) -> None:
    done = gnsq_like("run", *arguments, cwd=shop)
    assert done.returncode == 2
    assert done.stdout == ""
    errors = [each for each in done.stderr.splitlines() if each.startswith("Error: ")]
    assert len(errors) == 1, done.stderr
    assert errors[0].startswith(line)
    assert "Traceback" not in done.stderr


def test_verbose_shows_the_traceback(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import missing\n")
    done = gnsq_like("run", "shop", "--verbose", cwd=tmp_path)
    assert done.returncode == 2
    assert 'shop.py", line 1, in <module>' in done.stderr
    assert done.stderr.splitlines()[-1].startswith("Error: cannot import shop: ")


def test_settings_come_from_the_environment_and_from_a_file(shop: Path) -> None:
    (shop / "nsq.toml").write_text("[run]\nprocesses = 3\n")
    arguments = ["run", "shop", "--check", "--json", f"--app-dir={shop}"]
    found = json.loads(run_tool(*arguments, f"--config={shop / 'nsq.toml'}").stdout)
    assert len(found[0]["shares"]) == 3
    found = json.loads(run_tool(*arguments, NSQ_PROCESSES="5").stdout)
    assert len(found[0]["shares"]) == 5


def test_each_line_of_a_json_log_is_an_object(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-m", "gnsq_like", "run", f"{APP}:greenlets()", "--log-json", "--processes=2"]
    environment = {**os.environ, "NOTES": str(tmp_path / "notes"), "NSQD": NOBODY}
    with (
        log.open("wb") as file,
        subprocess.Popen(command, stdout=file, stderr=subprocess.PIPE, env=environment, text=True) as process,
    ):
        try:
            assert process.stderr is not None
            lines: list[str] = []
            while not lines or "running: 2 processes" not in lines[-1]:
                lines.append(process.stderr.readline())
            process.send_signal(signal.SIGUSR1)
            while "stacks of all threads" not in lines[-1]:
                lines.append(process.stderr.readline())
            process.terminate()
            lines += process.stderr.readlines()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    found = [json.loads(line) for line in lines]
    assert {each["worker"] for each in found} == {"master", "worker 1", "worker 2"}
    assert all(each["time"] and each["level"] and each["message"] for each in found)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_is_closed_ends_it_but_not_with_nohup(tmp_path: Path, ignored: bool) -> None:
    ours, theirs = open_terminal(80, 24)
    log = tmp_path / "log"
    command = [sys.executable, "-m", "gnsq_like", "run", f"{APP}:greenlets()"]
    environment = terminal_environment(NOTES=str(tmp_path / "notes"), NSQD=NOBODY)
    # Whatever the tests themselves were started with.
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["setsid", "--ctty", *command], stdin=theirs, stdout=file, stderr=file, env=environment
        )
    signal.signal(signal.SIGHUP, before)
    os.close(theirs)
    try:
        _wait_for_log(log, "running: 1 process")
        os.close(ours)
        if ignored:
            process.send_signal(signal.SIGHUP)
            process.send_signal(signal.SIGUSR1)
            _wait_for_log(log, "stacks of all threads")
            process.terminate()
        assert process.wait(PATIENCE) == 0
        assert "reloading" not in log.read_text()
    finally:
        process.kill()
        process.wait()


def _wait_for_log(log: Path, text: str) -> None:

    wait_for(lambda: text in log.read_text())
