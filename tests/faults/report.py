"""The figures of a run as text, and what is wrong in it."""

from __future__ import annotations

from collections import Counter

from tests.faults.campaign import Result
from tests.faults.ledger import OUTCOMES, REFUSED
from tests.faults.resources import ALLOWED, kept

#: Numbers of messages that are shown of each violation.
_SHOWN = 10


def problems(result: Result) -> list[str]:
    """Everything in a run that must not be."""
    found = [f"{len(numbers)} {name}: {numbers[:_SHOWN]}" for name, numbers in result.verdict.violations.items()]
    if result.window.excesses:
        found.append(f"{len(result.window.excesses)} above max_in_flight: {result.window.excesses[:_SHOWN]}")
    if result.window.beyond_rdy:
        found.append(f"{len(result.window.beyond_rdy)} sent beyond RDY: {result.window.beyond_rdy[:_SHOWN]}")
    for client, held in result.resources.items():
        found += [f"{client} keeps {what}" for what in kept(held["before"], held["after"])]
    return found + result.errors


def as_text(result: Result) -> str:
    """All figures."""
    verdict, window = result.verdict, result.window
    wrong = problems(result)
    rows = [
        f"seed {result.seed}, {result.seconds:g} s of faults, {result.nsq} daemons",
        _row("published", verdict.published),
        *[
            _row(f"  {name}", verdict.outcomes[name], _causes(verdict.refusals) if name == REFUSED else "")
            for name in (*OUTCOMES, "killed")
        ],
        _row("delivered at the wire", verdict.delivered),
        _row("handled to the end", verdict.handled),
        _row("  of these again", verdict.duplicates.total(), _causes(verdict.duplicates)),
        _row("lost", len(verdict.lost)),
        _row("taken by kill -9 of nsqd", verdict.killed.total(), _causes(verdict.killed)),
        _row("in flight above the window", window.excused.total(), _causes(window.excused)),
        _row("  at most, at one time", window.most_excused),
        _row("  without an excuse", len(window.excesses)),
        _row("publishes after their deadline", len(verdict.late)),
        _row("faults", result.faults.total()),
        *[_row(f"  {name}", count) for name, count in sorted(result.faults.items())],
        *[f"{'peak memory of a ' + name:34}{peak:9.0f} MiB" for name, peak in result.peaks.items()],
    ]
    for client, held in result.resources.items():
        shown = ", ".join(f"{name} {held['before'][name]} -> {held['after'][name]}" for name in ALLOWED)
        rows.append(f"{client + ' held':34}{shown}")
    rows += [f"WRONG: {problem}" for problem in wrong] or ["nothing wrong"]
    return "\n".join(rows)


def _row(name: str, count: int, more: str = "") -> str:
    return f"{name:34}{count:9d}{'  ' if more else ''}{more}"


def _causes(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {cause}" for cause, count in counts.most_common())
