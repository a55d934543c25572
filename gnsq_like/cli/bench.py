"""``gnsq-like bench``: how fast a cluster is, from here."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from gnsq_like.cli.client_flags import connects
from gnsq_like.cli.daemon_flags import asks_cluster, json_switch
from gnsq_like.cli.exits import INTERRUPTED_STATUS, Interrupted, until_a_signal
from gnsq_like.cli.logs import log_to_stderr
from gnsq_like.cli.tables import Cell, print_json, print_table
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.tool_options import Duration, Integer, option, switch

if TYPE_CHECKING:
    from gnsq_like.tools.benchmark import Measured
    from gnsq_like.tools.daemons import Daemons

HEADINGS = ("STAGE", "MESSAGES", "SECONDS", "RATE/S", "MB/S", "P50", "P90", "P99", "P99.9", "MAX")
DISPENSABLE = ("SECONDS", "MB/S", "P90", "MESSAGES")
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


@click.command("bench", cls=ToolCommand)
@option("--topic", help="A topic that does not exist; default: a name of its own.")
@option("--size", type=Integer(24, 1024 * 1024), default=200, help="Bytes of a message.")
@option("--duration", type=Duration(above_zero=True), default="5s", help="For each stage.")
@option("--greenlets", type=Integer(1), default=50, help="Messages on their way at once.")
@option("--max-in-flight", type=Integer(1), default=1000, help="Of the consumer.")
@switch("--batching", help="Combine concurrent publishes into one command.")
@option(
    "--stage",
    "stages",
    type=click.Choice(["publish", "consume", "end-to-end"]),
    multiple=True,
    listed=True,
    help="Only this stage; may be repeated.",
)
@json_switch
@asks_cluster
@connects
def bench(
    daemons: Daemons,
    connecting: dict[str, Any],
    topic: str | None,
    stages: tuple[str, ...],
    as_json: bool,
    verbose: bool,
    **load: Any,
) -> None:
    """Measure how fast a cluster publishes, consumes, and does both.

    On a topic of its own, which is made on all nsqds and deleted in the end, also after a signal. A topic that exists
    is refused. Latencies are in microseconds: of nsqd's confirmations, and from publishing to the handler. This process
    is part of what is measured.
    """
    from gnsq_like.tools.benchmark import STAGES, Load
    from gnsq_like.tools.benchmark import bench as measure
    from gnsq_like.tools.operations import check_name

    if topic is not None:
        check_name("topic", topic)
    log_to_stderr("info" if verbose else "error", "gnsq-like bench: ", with_tracebacks=verbose)
    wanted = [each for each in STAGES if not stages or each.replace(" ", "-") in stages]
    found: list[Measured] = []

    def begin(stage: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"{stage} ...", err=True)

    def run() -> int:
        with closing(
            measure(daemons, Load(**load), wanted, topic=topic, options=connecting, on_begin=begin)
        ) as results:
            for each in results:
                found.append(each)  # those of complete stages are shown, whatever comes
        return 0

    try:
        status = until_a_signal(run)
    except Interrupted:
        status = INTERRUPTED_STATUS
    if as_json:
        print_json([_as_dict(each) for each in found])
    elif found:
        print_table(HEADINGS, map(_row, found), DISPENSABLE)
    raise SystemExit(status)


def _row(measured: Measured) -> list[Cell]:
    latencies = [*(measured.quantile(share) for share in _QUANTILES.values()), measured.longest]
    return [
        measured.stage,
        measured.messages,
        measured.seconds,
        round(measured.rate),
        measured.rate * measured.size / 1e6,
        *(round(each * 1e6) if each is not None and measured.counts else None for each in latencies),
    ]


def _as_dict(measured: Measured) -> dict[str, Any]:
    latencies = {name: measured.quantile(share) for name, share in _QUANTILES.items()}
    return {
        "stage": measured.stage,
        "size": measured.size,
        "messages": measured.messages,
        "seconds": measured.seconds,
        "rate": measured.rate,
        "latency_seconds": {**latencies, "max": measured.longest} if measured.counts else None,
    }
