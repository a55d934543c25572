"""Scenarios: the same seed gives the same run anywhere, many seeds hold, and so do those that once failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.simulation.forked import run_forked
from tests.simulation.run import Report, run_scenario
from tests.simulation.scenario import Scenario
from tests.support.scale import share_of

#: Seeds that failed once, with the seconds and the numbers of the faults that it took, and why.
FOUND = [
    pytest.param(40, 42.0, frozenset({6, 8}), id="a pause that was stored before a kill"),
]


#: Prints the hashes of the runs of two seeds; in the last of them, an nsqd names a file in an error.
_HASHES = """
from tests.simulation.__main__ import reports
from tests.simulation.world import patch

patch()
print([report.hash for report in [*reports(range(1, 2), 30.0, 1), *reports(range(23, 24), 42.0, 1)]])
"""


def _hashes(hash_seed: str) -> str:
    """What a process with this seed of hashes prints."""
    done = subprocess.run(
        [sys.executable, "-c", _HASHES],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_same_seed_gives_the_same_run_in_every_process() -> None:
    """Whatever the order of sets is: it depends on the hash seed for strings, and on addresses for objects."""
    hashes = _hashes("1")
    assert hashes == _hashes("2")
    assert len(set(json.loads(hashes))) == 2


@pytest.mark.parametrize(("seed", "seconds", "only"), FOUND)
def test_what_was_found_stays_mended(seed: int, seconds: float, only: frozenset[int]) -> None:
    outcome = run_forked(lambda: run_scenario(Scenario(seed, seconds, only)), 60)
    assert not outcome.error, outcome.text
    report: Report = outcome.value
    assert report.failures == []


@pytest.mark.parametrize("seed", range(share_of(25)))
def test_damaged_disks_cost_what_the_damage_covers(seed: int) -> None:
    """Nsqds that keep everything on disk, killed and crashed in most of the faults; half the times, bits flip then."""
    scenario = Scenario(seed, 60.0)
    scenario.options |= {"data_path": True, "mem_queue_size": 0}
    ends = ["kill nsqd", "crash nsqd"]
    scenario.faults = [
        replace(each, kind=ends[each.number % 2]) if each.number % 3 else each for each in scenario.faults
    ]
    outcome = run_forked(lambda: run_scenario(scenario), 120)
    assert not outcome.error, outcome.text
    report: Report = outcome.value
    assert report.failures == []


def test_a_scenario_keeps_its_faults_when_others_are_left_out() -> None:
    whole = Scenario(7, 200.0)
    some = frozenset(fault.number for fault in whole.faults[::2])
    assert Scenario(7, 200.0, some).faults == whole.faults[::2]
    assert Scenario(7, 200.0, some).options == whole.options
