"""The wheel and the sdist, built as for a release, and environments that have them and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path = ROOT, status: int = 0, more: Mapping[str, str] = {}) -> str:
    """What it prints, stderr too. Outside the checkout, and without what the tests have on their path.

    :param more: further variables of its environment
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | dict(more)
    environ["PYTHONUNBUFFERED"] = "1"  # programs wait for what others have printed
    environ["PATH"] = f"{Path(command[0]).parent}:{environ['PATH']}"
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def build(source: Path, into: Path) -> None:
    """Build both as ``make dist`` does, as of a moment in 2027; the wheel from the sdist."""
    run(sys.executable, "-m", "build", "--outdir", into, source, more={"SOURCE_DATE_EPOCH": "1800000000"})


def environment_of(requirement: str, directory: Path, *others: str) -> Path:
    """Where the commands are of a new environment with these requirements and nothing else."""
    run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, directory / "venv")
    python = directory / "venv/bin/python"
    run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, requirement, *others)
    return directory / "venv/bin"
