"""The command ``gnsq-like`` and what it has in common with all of its commands."""

import configparser
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gnsq_like.cli import main
from gnsq_like.cli.app import app
from tests.support.commands import PATIENCE, gnsq_like, gnsq_like_without, run_python

PIPELINES = ["check", "demo", "maintain", "repair", "replay", "run"]
#: In the order in which --help lists them.
COMMANDS = [
    *("pub", "tail", "to-file", "to-http", "to-nsq"),
    *("stat", "nodes", "lookup", "ping"),
    *("topic", "channel", "node", "dlq"),
    *("run", "pipeline", "demo"),
    *("cluster", "nsqd", "nsqlookupd", "admin", "admin-password"),
]
SECTIONS = ["Publish and consume:", "Look:", "Change:", "Run:", "Daemons:"]


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra_one_line_says_what_to_install(missing: str) -> None:
    done = gnsq_like_without(missing, "--version")
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert missing in line
    assert "the extra [cli]" in line


def test_a_job_that_only_calls_main_ends_with_its_status() -> None:
    job = "from gnsq_like.cli import main\n\nmain()\n"
    done = run_python("-c", "import sys\nsys.modules['click'] = None\n" + job, "--version")
    assert (done.returncode, "click is not installed" in done.stderr) == (1, True)
    assert run_python("-c", job, "--version").returncode == 0
    assert run_python("-c", job, "no-such-command").returncode == 2


def test_a_broken_click_is_not_taken_for_a_missing_one() -> None:
    done = gnsq_like_without("click.core", "--version")
    assert done.returncode == 1
    assert "No module named 'click.core'" in done.stderr
    assert "the extra" not in done.stderr


def test_the_installed_script_is_the_same_command() -> None:
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(Path(__file__).parents[2] / "setup.cfg")
    name, _, target = setup["options.entry_points"]["console_scripts"].strip().partition(" = ")
    assert name == "gnsq-like"
    assert pkgutil.resolve_name(target) is main


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_lists_every_command(option: str) -> None:
    done = gnsq_like(option)
    assert done.returncode == 0
    first, *lines = done.stdout.partition("Publish and consume:")[1:]
    listed = [first, *"".join(lines).splitlines()]
    assert [line for line in listed if line and not line.startswith(" ")] == SECTIONS
    indented = [line for line in listed if line.startswith(" ")]
    assert [line.split()[0] for line in indented] == COMMANDS
    assert all(len(line.split()) > 2 for line in indented)


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS), *(["pipeline", name] for name in PIPELINES)])
def test_no_line_of_any_help_is_cut_at_80_columns(command: list[str]) -> None:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*command, "--help"], prog_name="gnsq-like")
    usage, *lines = done.stdout.splitlines()
    assert usage.startswith(f"Usage: gnsq-like {' '.join(command)}".strip())
    assert len(lines) > 5
    assert [line for line in lines if line.endswith(("...", "…")) or len(line) > 80] == []


@pytest.mark.commands
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--help"], ["nsqd", "--version"], ["demo", "--messages", "10"], ["cluster"]])
def test_a_stdout_that_cannot_be_written_is_a_sentence(arguments: list[str], unbuffered: str) -> None:
    command = [sys.executable, "-m", "gnsq_like", *arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False, env=environment
        )
    assert (done.returncode, done.stderr) == (2, "gnsq-like: cannot write to stdout: No space left on device\n")


def test_help_and_version_load_neither_gevent_nor_a_command() -> None:
    code = (
        "import sys\n"
        "from gnsq_like.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    print(*sorted(sys.modules), file=sys.stderr)\n"
    )
    for option in ("--help", "--version"):
        loaded = set(run_python("-c", code, option).stderr.split())
        assert "gnsq_like.cli.app" in loaded
        assert not loaded & {"gevent", "requests", "gnsq_like.cli.demo", "gnsq_like.cli.daemon_commands"}
