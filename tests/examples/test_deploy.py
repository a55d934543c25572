"""examples/deploy: each file's command line is one that the command accepts, and its times fit together."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnsq_like.cli.run import run as command
from gnsq_like.workers.plan import Plan, flags
from tests.support.commands import PATIENCE, gnsq_like

DEPLOY = Path(__file__).resolve().parents[2] / "examples" / "deploy"
UNIT = (DEPLOY / "nsq-readers.service").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
KUBERNETES: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())
DOCKER = (DEPLOY / "Dockerfile").read_text()

POD = KUBERNETES["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]
READERS = COMPOSE["services"]["readers"]


def of_unit(name: str) -> str:
    """The value of a line of the unit."""
    [found] = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    value: str = found
    return value


def entry_point() -> list[str]:
    [found] = re.findall(r"^ENTRYPOINT (.*)$", DOCKER, re.MULTILINE)
    words: list[str] = yaml.safe_load(found)
    return words


def plan_of(words: list[str]) -> Plan:
    """The plan that the command makes of these arguments, the first two being its name."""
    assert (Path(words[0]).name, words[1]) == ("gnsq-like", "run")
    arguments = [word for word in words[2:] if word != "/srv/shop" and word != "--app-dir"]
    found = command.make_context("run", arguments).params
    assert found["targets"] == ("readers",)
    return Plan("x:y", **{flag.name: found[flag.name] for flag in flags()})


PLANS = {
    "systemd": plan_of(shlex.split(of_unit("ExecStart"))),
    "compose": plan_of(entry_point() + READERS["command"]),
    "kubernetes": plan_of(entry_point() + CONTAINER["args"]),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_command_lines(name: str) -> None:
    plan = PLANS[name]
    assert plan.processes == 4
    assert plan.handler_timeout == 60.0
    assert plan.health.endswith(":8001")
    assert plan.max_memory_bytes


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("systemd", of_unit("TimeoutStopSec")),
        ("compose", READERS["stop_grace_period"].removesuffix("s")),
        ("kubernetes", POD["terminationGracePeriodSeconds"]),
    ],
)
def test_nothing_is_killed_before_its_stop_timeout_is_over(name: str, seconds: Any) -> None:
    assert float(seconds) >= PLANS[name].stop_timeout + 10


def test_processes_are_replaced_before_the_kernel_kills_them() -> None:
    for name, limit in (("compose", READERS["mem_limit"]), ("kubernetes", CONTAINER["resources"]["limits"]["memory"])):
        mebibytes = int(re.match(r"\d+", limit)[0])  # type: ignore[index]
        assert mebibytes << 20 > PLANS[name].processes * PLANS[name].max_memory_bytes


def test_the_module_can_be_run() -> None:
    done = gnsq_like("run", "readers", f"--app-dir={DEPLOY}", "--check", "--processes=4")
    assert done.returncode == 0, done.stderr
    assert ["clicks", "archive", "readers.archive", "greenlets", "200", "50"] in [
        line.split() for line in done.stdout.splitlines()
    ]


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze")
    unit = tmp_path / "nsq-readers.service"
    # The paths of the example do not exist here.
    unit.write_text(UNIT.replace("/srv/shop/venv/bin/gnsq-like", "/bin/true").replace("User=", "#User="))
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    complaints = [line for line in done.stderr.splitlines() if "nsq-readers" in line]
    assert complaints == []
