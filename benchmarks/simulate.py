"""A fleet of Readers in virtual time, over 100 nsqds and 3 nsqlookupds, in this one process.

The policy and discovery are those of gnsq_like; network, nsqds and nsqlookupds are models (`_fleet`). With the same
arguments, it finds the same figures, however busy the machine is. docs/guides/scale.rst shows them; to make its charts
and tables anew:

    make bench BENCH=simulate BENCH_ARGS="--readers 10 --only traffic --charts docs/_static"

Runs with messages (`_fleet_traffic`), one for each --max-in-flight, show the use of the window, fairness, the time to
the first message after a shift, and RDY commands. Runs without (`_fleet_discovery`), one for each --poll, show requests
to nsqlookupds and connections tried.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _fleet import Setup
from _fleet_charts import draw_discovery, draw_traffic
from _fleet_discovery import Discovery
from _fleet_traffic import Traffic

from gnsq_like.options import ReaderOptions

WINDOWS = ("10", "50", "200", "200:2")
POLLS = ("60:0.3", "60:0", "15:0.3")


def table(title: str, figures: Mapping[str, Mapping[str, float]]) -> str:
    """A column for each phase or event."""
    names = list(dict.fromkeys(name for each in figures.values() for name in each))
    lines = [f"\n{title}", " " * 30 + "".join(f"{each[:17]:>19}" for each in figures)]
    for name in names:
        cells = [_text(each[name]) if name in each else "" for each in figures.values()]
        lines.append(f"{name:<30}" + "".join(f"{cell:>19}" for cell in cells))
    return "\n".join(lines)


def _text(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 or figure == int(figure) else f"{figure:.3g}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=1000, help="(default: %(default)s)")
    parser.add_argument("--nsqds", type=int, default=100, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="chooses all that is random (default: %(default)s)")
    parser.add_argument(
        "--max-in-flight",
        action="append",
        metavar="N[:SECONDS]",
        help=f"a run with messages, and its low_rdy_idle_timeout; may be repeated (default: {', '.join(WINDOWS)})",
    )
    parser.add_argument(
        "--poll",
        action="append",
        metavar="INTERVAL:JITTER",
        help=f"a run without messages, by lookupd_poll_interval and lookupd_poll_jitter (default: {', '.join(POLLS)})",
    )
    parser.add_argument("--only", choices=("traffic", "discovery"), help="runs of one kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    parser.add_argument("--charts", type=Path, metavar="DIRECTORY", help="where to write scale-*.svg")
    return parser.parse_args()


def run_traffic(setup: Setup, windows: Sequence[str]) -> list[dict[str, Any]]:
    done = []
    for window in windows:
        number, _, seconds = window.partition(":")
        options = ReaderOptions(max_in_flight=int(number))
        if seconds:
            options = ReaderOptions(max_in_flight=int(number), low_rdy_idle_timeout=float(seconds))
        began = time.monotonic()
        traffic = Traffic(setup._replace(options=options))
        traffic.run()
        title = f"max_in_flight {number}, low_rdy_idle_timeout {options.low_rdy_idle_timeout:g} s"
        print(table(title, traffic.figures), flush=True)
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        done.append(traffic.as_dict())
    return done


def run_discovery(setup: Setup, polls: Sequence[str]) -> list[dict[str, Any]]:
    done = []
    for poll in polls:
        interval, _, jitter = poll.partition(":")
        options = ReaderOptions(lookupd_poll_interval=float(interval), lookupd_poll_jitter=float(jitter))
        began = time.monotonic()
        discovery = Discovery(setup._replace(options=options))
        discovery.run()
        print(table(f"lookupd_poll_interval {interval} s, jitter {jitter}", discovery.figures), flush=True)
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        done.append(discovery.as_dict())
    return done


def main() -> None:
    given = arguments()
    setup = Setup(readers=given.readers, nsqds=given.nsqds, seed=given.seed)
    results: dict[str, list[dict[str, Any]]] = {}
    if given.only != "discovery":
        results["traffic"] = run_traffic(setup, given.max_in_flight or WINDOWS)
    if given.only != "traffic":
        results["discovery"] = run_discovery(setup, given.poll or POLLS)
    if given.json:
        given.json.write_text(json.dumps({"setup": [setup.readers, setup.nsqds, setup.seed], **results}))
    if given.charts:
        for kind, draw in (("traffic", draw_traffic), ("discovery", draw_discovery)):
            if kind in results:
                draw(results[kind], setup, given.charts / f"scale-{kind}.svg")


if __name__ == "__main__":
    main()
