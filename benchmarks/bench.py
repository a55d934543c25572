"""Consuming and publishing, by gnsq_like and by other clients, beside a bare loop, all in one run.

    make bench [BENCH_ARGS="--quick --only consuming"]

Starts the nsqd on PATH (or ``--nsqd``). Every mode runs in a process of its own, one after the other, in interleaved
rounds; the table shows medians, and a ratio is the median over the rounds of (mode / its bare loop of the same round),
so that a machine that is busy for a while does not distort it. CPU is the client's process alone. Other clients are
installed into environments of their own at first use.

"bare" is the minimum with gevent and a socket: no Message, no flow control, no deadline, no errors; the upper bound.
"patched" means that the process is monkey-patched; else it is not, which is how a plain script runs.
"""

from __future__ import annotations

import argparse
import platform
import sys
from datetime import date
from pathlib import Path

import _report
from _children import MEM_QUEUE_SIZE, Failed, run
from _modes import MODES, Mode
from _nsqd import running_nsqd


def chosen(only: list[str] | None, clients: list[str] | None) -> list[Mode]:
    modes = [mode for mode in MODES if not only or any(part in mode.section for part in only)]
    modes = [mode for mode in modes if not clients or mode.client.partition(",")[0] in (*clients, "bare")]
    if not modes:
        sys.exit("no mode has such a section and client")
    return modes


def measure(modes: list[Mode], rounds: int, seconds: float, count: int, nsqd_command: str) -> _report.Results:
    results: _report.Results = {mode.name: [] for mode in modes}
    broken: set[str] = set()
    with running_nsqd(nsqd_command, MEM_QUEUE_SIZE) as nsqd:
        for number in range(rounds):
            for position, mode in enumerate(modes):
                if mode.name in broken:
                    continue
                # Of large ones fewer, so that the channel fits into memory.
                wanted = max(1000, min(count, count * 1000 // mode.size))
                try:
                    results[mode.name].append(run(mode, nsqd, f"bench-{number}-{position}", seconds, wanted))
                except Failed as exc:
                    broken.add(mode.name)
                    print(f"left out: {exc}", file=sys.stderr)
                print(f"\rround {number + 1} of {rounds}, {position + 1} of {len(modes)} ", end="", file=sys.stderr)
    print(file=sys.stderr)
    return {name: runs for name, runs in results.items() if len(runs) == rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nsqd", default="nsqd", help="the nsqd to start (default: the one on PATH)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a publishing run (default: %(default)s)")
    parser.add_argument("--count", type=int, default=500_000, help="messages of a consuming run (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one short round: two minutes, and rough figures")
    parser.add_argument("--only", action="append", metavar="SECTION", help="part of a section's name; may be repeated")
    parser.add_argument("--client", action="append", help="only this client and bare; may be repeated")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the chart there")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.seconds, given.count = 1, 0.7, 100_000
    modes = chosen(given.only, given.client)
    results = measure(modes, given.rounds, given.seconds, given.count, given.nsqd)
    print(_report.text(results))
    about = (
        f"Measured on {date.today().isoformat()}: Python {platform.python_version()}, medians of {given.rounds} "
        f"interleaved rounds, 100-byte messages unless said otherwise."
    )
    if given.markdown:
        given.markdown.write_text(_report.markdown(results, about), encoding="utf-8")
    if given.svg:
        _report.chart(results, given.svg)


if __name__ == "__main__":
    main()
