"""Two checkouts of gnsq_like in turn, and what became slower beyond the noise.

    make bench BENCH=compare BENCH_ARGS=main

``BASE`` is a commit; it is checked out beside this one for the time of the run. Each mode runs with the one and with
the other, in every round, the first of the pair changing from round to round. A difference counts when the median of
the pairs' ratios is further from 1 than ``--tolerance`` and four of five pairs agree on the side. CPU a message
is compared likewise; on a busy machine it is the figure to trust. Exits with 1 if something became slower.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _children import MEM_QUEUE_SIZE, ROOT, run
from _modes import MODES, Mode
from _nsqd import running_nsqd
from _publishers import Done

#: The share of pairs that must agree on the side.
_AGREEING = 0.8

Pairs = list[tuple[Done, Done]]


def pairs_of(modes: list[Mode], base: Path, rounds: int, seconds: float, count: int, nsqd: str) -> dict[str, Pairs]:
    found: dict[str, Pairs] = {mode.name: [] for mode in modes}
    with running_nsqd(nsqd, MEM_QUEUE_SIZE) as daemon:
        for number in range(rounds):
            for position, mode in enumerate(modes):
                done: dict[Path, Done] = {}
                for tree in (base, ROOT) if number % 2 == 0 else (ROOT, base):
                    topic = f"compare-{number}-{position}-{len(done)}"
                    done[tree] = run(mode, daemon, topic, seconds, count, tree)
                found[mode.name].append((done[base], done[ROOT]))
                print(f"\rround {number + 1} of {rounds}, {position + 1} of {len(modes)} ", end="", file=sys.stderr)
    print(file=sys.stderr)
    return found


def verdict(ratios: list[float], tolerance: float) -> str:
    """ "slower", "faster" or "": ratios are new by old of something of which less is better."""
    median = statistics.median(ratios)
    above = sum(ratio > 1 for ratio in ratios)
    if median > 1 + tolerance and above >= _AGREEING * len(ratios):
        return "slower"
    if median < 1 - tolerance and len(ratios) - above >= _AGREEING * len(ratios):
        return "faster"
    return ""


def show(found: dict[str, Pairs], tolerance: float) -> bool:
    """Print the table; whether something became slower."""
    worse = False
    print(f"{'':<44}{'messages/s':>24}{'':>8}{'CPU µs':>18}")
    for name, pairs in found.items():
        rates = [statistics.median([run.messages / run.seconds for run in runs]) for runs in zip(*pairs, strict=True)]
        costs = [statistics.median([1e6 * run.cpu / run.messages for run in runs]) for runs in zip(*pairs, strict=True)]
        times = [(new.seconds / new.messages) / (old.seconds / old.messages) for old, new in pairs]
        cpu = [(new.cpu / new.messages) / (old.cpu / old.messages) for old, new in pairs]
        verdicts = verdict(times, tolerance), verdict(cpu, tolerance)
        worse = worse or "slower" in verdicts
        print(
            f"{name:<44}{rates[0]:>11,.0f} -> {rates[1]:>9,.0f} {verdicts[0]:<8}"
            f"{costs[0]:>7.2f} -> {costs[1]:>6.2f} {verdicts[1]}"
        )
    return worse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="a commit, or the directory of another checkout")
    parser.add_argument("--nsqd", default="nsqd", help="the nsqd to start (default: the one on PATH)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a publishing run (default: %(default)s)")
    parser.add_argument("--count", type=int, default=300_000, help="messages of a consuming run (default: %(default)s)")
    parser.add_argument("--only", action="append", metavar="SECTION", help="part of a section's name; may be repeated")
    parser.add_argument("--tolerance", type=float, default=0.03, help="(default: %(default)s)")
    given = parser.parse_args()
    modes = [mode for mode in MODES if mode.client.startswith("gnsq_like") and mode.size == 100]
    modes = [mode for mode in modes if not given.only or any(part in mode.section for part in given.only)]

    def compared(base: Path) -> bool:
        found = pairs_of(modes, base, given.rounds, given.seconds, given.count, given.nsqd)
        return show(found, given.tolerance)

    if Path(given.base).is_dir():
        sys.exit(compared(Path(given.base).resolve()))
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory) / "base"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(base), given.base], check=True)
        try:
            worse = compared(base)
        finally:
            subprocess.run([*git, "remove", "--force", str(base)], check=True)
    sys.exit(worse)


if __name__ == "__main__":
    main()
