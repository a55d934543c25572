"""A fleet of Readers over some nsqds and 3 nsqlookupds, in virtual time.

All of them are the package's own (``tests.simulation``), so the same arguments give the same figures, however busy the
machine is. docs/guides/scale.rst shows them; to make its charts and tables anew:

    make bench BENCH=simulate BENCH_ARGS="--only traffic --charts docs/_static"
    make bench BENCH=simulate BENCH_ARGS="--only discovery --readers 30 --nsqds 10 --poll 60:0.3 --charts docs/_static"

Runs with messages, one for each --max-in-flight, show the use of the window, fairness, the time to the first message
after a shift, and RDY commands. Runs without, one for each --poll, show requests to nsqlookupds and connections tried.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _fleet import Setup, job
from _fleet_charts import draw_discovery, draw_traffic

from tests.simulation.forked import run_many
from tests.simulation.world import patch

WINDOWS = ("10", "50", "200")
POLLS = ("60:0.3", "60:0", "15:0.3")
#: Seconds of the processor for a run.
LIMIT = 3600.0


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
    parser.add_argument("--readers", type=int, default=10, help="(default: %(default)s)")
    parser.add_argument("--nsqds", type=int, default=30, help="(default: %(default)s)")
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


def window(text: str) -> dict[str, Any]:
    number, _, seconds = text.partition(":")
    return {"max_in_flight": int(number), "low_rdy_idle_timeout": float(seconds or 10)}


def poll(text: str) -> dict[str, Any]:
    interval, _, jitter = text.partition(":")
    return {"lookupd_poll_interval": float(interval), "lookupd_poll_jitter": float(jitter)}


def main() -> None:
    given = arguments()
    setup = Setup(readers=given.readers, nsqds=given.nsqds, seed=given.seed)
    wanted: list[tuple[str, dict[str, Any]]] = []
    if given.only != "discovery":
        wanted += [("traffic", window(each)) for each in given.max_in_flight or WINDOWS]
    if given.only != "traffic":
        wanted += [("discovery", poll(each)) for each in given.poll or POLLS]
    patch()
    outcomes = dict(run_many((job(kind, setup, options) for kind, options in wanted), LIMIT, os.cpu_count() or 1))
    results: dict[str, list[dict[str, Any]]] = {}
    for number, (kind, options) in enumerate(wanted):
        outcome = outcomes[number]
        if outcome.error:
            sys.exit(outcome.text)
        results.setdefault(kind, []).append(outcome.value)
        print(table(", ".join(f"{name} {value:g}" for name, value in options.items()), outcome.value["figures"]))
    if given.json:
        given.json.write_text(json.dumps({"setup": setup, **results}))
    if given.charts:
        for kind, draw in (("traffic", draw_traffic), ("discovery", draw_discovery)):
            if kind in results:
                draw(results[kind], setup, given.charts / f"scale-{kind}.svg")


if __name__ == "__main__":
    main()
