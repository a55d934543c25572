"""Runs scenarios of many seeds: ``make simulate-faults SEEDS=1000``.

Prints one line for each seed that fails, with the command that repeats it, and figures at the end.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.simulation.forked import Outcome, run_forked, run_many
from tests.simulation.run import Report, run_scenario
from tests.simulation.scenario import Scenario
from tests.simulation.world import patch
from tests.support.progress import Progress

#: Seconds of the processor for a virtual hour, at most, and for the least run.
_LIMIT, _LEAST_LIMIT = 600.0, 30.0


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual seconds of each run")
    parser.add_argument("--hours", type=float, help="the same in virtual hours")
    parser.add_argument("--only", help="only the faults with these numbers, separated by commas")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="how many runs at once")
    parser.add_argument("--real", action="store_true", help="with NSQ's daemons on PATH, in real time")
    parser.add_argument("--trace", help="write the events of one seed to this file")
    parser.add_argument("--shrink", action="store_true", help="of one seed that fails: fewer faults, a shorter run")
    arguments = parser.parse_args()
    seconds = arguments.seconds if arguments.hours is None else arguments.hours * 3600
    patch()
    if arguments.real:
        return _run_real(Scenario(1 if arguments.seed is None else arguments.seed, seconds))
    if arguments.seed is not None:
        only = None if arguments.only is None else frozenset(map(int, filter(None, arguments.only.split(","))))
        scenario = Scenario(arguments.seed, seconds, only)
        if arguments.shrink:
            return _shrink(scenario)
        return _run_one(scenario, arguments.trace)
    return _run_many(range(arguments.first, arguments.first + arguments.seeds), seconds, arguments.processes)


def _run(scenario: Scenario, trace: str | None = None) -> Report:
    def run() -> Report:
        if trace is None:
            return run_scenario(scenario)
        with Path(trace).open("w") as file:
            return run_scenario(scenario, file)

    return _report(scenario.seed, run_forked(run, _limit(scenario.seconds)))


def reports(seeds: range, seconds: float, processes: int) -> Iterator[Report]:
    """Run a scenario of each seed, so many at once; the reports come as they end."""
    jobs = (partial(run_scenario, Scenario(seed, seconds)) for seed in seeds)
    for number, outcome in run_many(jobs, _limit(seconds), processes):
        yield _report(seeds[number], outcome)


def _limit(seconds: float) -> float:
    """Seconds of the processor for a run of so many virtual ones."""
    return max(_LEAST_LIMIT, seconds / 3600 * _LIMIT)


def _report(seed: int, outcome: Outcome) -> Report:
    return outcome.value if not outcome.error else Report(seed, [outcome.text])


def command(scenario: Scenario) -> str:
    """The command that repeats a run."""
    only = "" if scenario.only is None else f" --only={','.join(map(str, sorted(scenario.only)))}"
    return f"python -m tests.simulation --seed={scenario.seed} --seconds={scenario.seconds:g}{only}"


def _run_one(scenario: Scenario, trace: str | None) -> int:
    return _print(scenario, _run(scenario, trace))


def _run_real(scenario: Scenario) -> int:
    from tests.simulation.real import run_real  # it loads pytest, which no simulation needs

    return _print(scenario, run_real(scenario))


def _print(scenario: Scenario, report: Report) -> int:
    print(f"options: {scenario.options}")
    for fault in scenario.faults:
        print(f"fault {fault.number} at {fault.at:.3f}: {fault.kind}")
    print(f"{report.virtual_seconds:.1f} virtual seconds in {report.cpu_seconds:.2f} s, hash {report.hash}")
    print(report.messages)
    print(report.tally)
    for failure in report.failures:
        print(f"FAILED: {failure}")
    return bool(report.failures)


def _run_many(seeds: range, seconds: float, processes: int) -> int:
    start, virtual, cpu, failed = time.monotonic(), 0.0, 0.0, 0
    messages: Counter[str] = Counter()
    tally: Counter[str] = Counter()
    progress = Progress(lambda line: print(line, flush=True))
    for report in reports(seeds, seconds, processes):
        progress.done(len(seeds))
        virtual += report.virtual_seconds
        cpu += report.cpu_seconds
        messages.update(report.messages)
        tally.update({name: count for name, count in report.tally.items() if name.startswith("fault: ")})
        if report.failures:
            failed += 1
            print(f"seed {report.seed}: {_in_short(report.failures[0])}; {command(Scenario(report.seed, seconds))}")
            sys.stdout.flush()
    took = time.monotonic() - start
    speed = f"{virtual:.0f} virtual seconds in {took:.0f} s: {virtual / took:.0f} a second"
    print(f"{len(seeds)} seeds, {failed} failed; {speed}")
    print(f"a second of one processor: {virtual / max(cpu, 0.001):.0f} virtual seconds; messages: {dict(messages)}")
    print(", ".join(f"{name.removeprefix('fault: ')} {count}" for name, count in sorted(tally.items())))
    return bool(failed)


def _in_short(failure: str) -> str:
    lines = failure.strip().splitlines()
    return (lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}")[:250]


def _shrink(scenario: Scenario) -> int:
    """Leave out faults, then shorten, as long as it fails."""
    if not _run(scenario).failures:
        print("it does not fail")
        return 0
    kept = [fault.number for fault in scenario.faults]
    seconds = scenario.seconds
    portion = max(1, len(kept) // 2)
    while portion:
        index = 0
        while index < len(kept):
            fewer = kept[:index] + kept[index + portion :]
            if _run(Scenario(scenario.seed, seconds, frozenset(fewer))).failures:
                kept = fewer
                print(f"{len(kept)} faults: {command(Scenario(scenario.seed, seconds, frozenset(kept)))}")
            else:
                index += portion
        portion //= 2
    while seconds > 2 and _run(Scenario(scenario.seed, seconds * 0.7, frozenset(kept))).failures:
        seconds *= 0.7
    smallest = Scenario(scenario.seed, seconds, frozenset(kept))
    print(command(smallest))
    return _run_one(smallest, None)


if __name__ == "__main__":
    sys.exit(main())
