"""The benchmarks run; their figures are for people and are not looked at here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.commands

ROOT = Path(__file__).resolve().parent.parent

NSQD = ("--nsqd", f"{sys.executable} -m gnsq_like nsqd")


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, f"benchmarks/{script}", *arguments],
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
        *NSQD,
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


def test_places_measures_a_network_that_becomes_slower() -> None:
    output = run("places.py", *NSQD, "--seconds", "8", "--only", "then 5 ms, handlers of 5 ms")
    [line] = output.splitlines()
    assert line.endswith(" of adaptive_rdy=False; wanted 0.85")


def test_compare_runs_both_trees_and_finds_no_difference_beyond_any_bound() -> None:
    output = run(
        "compare.py",
        *NSQD,
        *(str(ROOT), "--rounds", "1", "--seconds", "0.1", "--count", "2000", "--tolerance", "1000"),
        *("--only", "one caller, patched"),
    )
    assert "one caller, patched: gnsq_like" in output
    assert "slower" not in output


def test_growth_measures_and_names_its_limits() -> None:
    output = run(
        "growth.py",
        *NSQD,
        *("--rounds", "1", "--seconds", "0.2", "--connections", "20", "--messages", "4000"),
    )
    figures = {line[:27].strip(): line.split()[-4:] for line in output.splitlines()[1:]}
    for name in ("import, ms", "first publish, ms", "plan, ms", "idle, MB", "idle, % of a core"):
        assert float(figures[name][-1]) > 0
    assert figures["consuming, 64 by 1"][-1] == figures["publishing, 64 by 1"][-1] == "0.8"


def test_a_fleet_is_simulated(tmp_path: Path) -> None:
    fleet = ("--readers", "3", "--nsqds", "4", "--max-in-flight", "10", "--poll", "60:0.3")
    run("simulate.py", *fleet, "--json", str(tmp_path / "all.json"), "--charts", str(tmp_path))
    found = json.loads((tmp_path / "all.json").read_text())

    [traffic], [discovery] = found["traffic"], found["discovery"]
    phases = traffic["figures"]
    assert phases["all"]["share in use"] > 0.95
    assert phases["all"]["least, a Reader"] > 0.8
    for name in ("a tenth", "another tenth", "killed, replaced"):
        assert phases[name]["share in use"] > 0.6
        assert phases[name]["first message, latest"] < 5
    assert phases["trickle"]["delivered, latest"] < 1
    assert max(share for _, share, _ in traffic["samples"]) <= 1

    events = discovery["figures"]
    assert [each["not connected at the end"] for each in events.values()] == [0] * len(events)
    # Rounds of three requests by each Reader: together at the start, and spread over the seconds from then on.
    asked = discovery["lookups"][: 150 - 10]
    assert 3 * 3 * 3 <= sum(asked) <= 3 * 3 * 4
    assert asked[1] == 3 * 3
    assert max(asked[2:]) <= 2 * 3
    assert events["an nsqd comes"]["found after, latest"] <= 60 * 1.15
    assert events["an nsqd is replaced"]["found after, latest"] < 5

    for kind in ("traffic", "discovery"):
        ElementTree.parse(tmp_path / f"scale-{kind}.svg")


def test_jobs_run_at_least_once_under_faults() -> None:
    output = run("jobs.py", "faults", "--count", "100", "--only", "dramatiq")
    assert "dramatiq: 100 jobs, 1 rounds of 4 faults; never ran: 0;" in output
