"""The benchmarks run; their figures are for people and are not looked at here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, f"benchmarks/{script}", "--nsqd", f"{sys.executable} -m gnsq_like nsqd", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bench_measures_and_reports(tmp_path: Path) -> None:
    table, chart = tmp_path / "table.md", tmp_path / "chart.svg"
    output = run(
        "bench.py",
        *("--rounds", "1", "--seconds", "0.1", "--count", "2000", "--client", "gnsq_like"),
        *("--only", "consuming, 100 bytes", "--only", "MPUB of 100, patched"),
        *("--markdown", str(table), "--svg", str(chart)),
    )
    lines = {line.split("  ")[1] for line in output.splitlines() if line.startswith("  ")}
    assert lines == {"bare", "gnsq_like", "gnsq_like, Batch", "gnsq_like, pulled"}
    assert table.read_text().count("| gnsq_like |") == 2
    drawn = "".join(ElementTree.parse(chart).getroot().itertext())
    assert "gnsq_like" in drawn
    assert "consuming, 100 bytes" in drawn


def test_compare_runs_both_trees_and_finds_no_difference_beyond_any_bound() -> None:
    output = run(
        "compare.py",
        *(str(ROOT), "--rounds", "1", "--seconds", "0.1", "--count", "2000", "--tolerance", "1000"),
        *("--only", "one caller, patched"),
    )
    assert "one caller, patched: gnsq_like" in output
    assert "slower" not in output
