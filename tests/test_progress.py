"""The lines that make test prints while it runs, and which tests a command finds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.progress import Progress


def test_a_line_every_ten_seconds_with_target_count_and_seconds() -> None:
    now, lines = 100.0, list[str]()
    progress = Progress(lines.append, target="tests", clock=lambda: now)
    for _ in range(50):
        now += 0.5
        progress.done(5120)
    assert lines == ["make tests: 20 of 5120, 10 s", "make tests: 40 of 5120, 20 s"]


def test_nothing_is_printed_without_make() -> None:
    now, lines = 0.0, list[str]()
    progress = Progress(lines.append, target="", clock=lambda: now)
    for _ in range(5):
        now += 60
        progress.done(5)
    assert lines == []


@pytest.mark.commands
def test_tests_have_the_fixtures_of_their_folder_in_whatever_order_files_are_listed() -> None:
    files = ["tests/producer/test_encoder.py", "tests/test_lazy.py", "tests/producer/test_pool.py"]
    command = [sys.executable, "-m", "pytest", "--setup-plan", *files]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stdout
    assert "test_pool.py::" in done.stdout
