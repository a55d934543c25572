"""Scenarios: the same seed gives the same run anywhere, many seeds hold, and so do those that once failed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.forked import run_forked
from tests.simulation.run import Report, run_scenario
from tests.simulation.scenario import Scenario

#: Seeds that failed once, with the seconds and the numbers of the faults that it took, and why.
FOUND = [
    pytest.param(40, 42.0, frozenset({6, 8}), id="a pause that was stored before a kill"),
]


def _hash(seed: int, hash_seed: str) -> str:
    """The hash of a run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", f"--seed={seed}", "--seconds=30"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    return next(line.rpartition(" ")[2] for line in done.stdout.splitlines() if ", hash " in line)


def test_the_same_seed_gives_the_same_run_in_every_process() -> None:
    """Whatever the order of sets is: it depends on the hash seed for strings, and on addresses for objects."""
    first, second = [[_hash(seed, hash_seed) for seed in (1, 2, 3)] for hash_seed in ("1", "2")]
    assert first == second
    assert len(set(first)) == 3


@pytest.mark.parametrize(("seed", "seconds", "only"), FOUND)
def test_what_was_found_stays_mended(seed: int, seconds: float, only: frozenset[int]) -> None:
    outcome = run_forked(lambda: run_scenario(Scenario(seed, seconds, only)), 60)
    assert not outcome.error, outcome.text
    report: Report = outcome.value
    assert report.failures == []


def test_a_scenario_keeps_its_faults_when_others_are_left_out() -> None:
    whole = Scenario(7, 200.0)
    some = frozenset(fault.number for fault in whole.faults[::2])
    assert Scenario(7, 200.0, some).faults == whole.faults[::2]
    assert Scenario(7, 200.0, some).options == whole.options
