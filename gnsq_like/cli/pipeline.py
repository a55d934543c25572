"""``gnsq-like pipeline``: the commands, their exit statuses and their signals.

Spark and gevent are imported when a command runs: ``--help`` loads neither.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from gnsq_like.cli.confirm import confirm, plural
from gnsq_like.cli.exits import INTERRUPTED_STATUS, CannotRun
from gnsq_like.cli.tool_options import Integer, Number

if TYPE_CHECKING:
    from gnsq_like.spark.pipeline import Replayed, Snapshot

#: Modules that the commands need in addition to those of [cli].
_NEEDED = {"pyspark", "pyarrow", "py4j"}


class Failed(click.ClickException):
    """The run ended by itself; the message is a sentence."""

    exit_code = 1


@click.group()
def pipeline() -> None:
    """Write each message of a topic once into a table with Spark, and the rejected ones to another topic.

    Needs the extra [pipeline] and Java 17 or newer. docs/pipeline.rst
    describes the file.
    """


_CONFIG = click.option(
    "--config", "path", required=True, type=click.Path(dir_okay=False), help="The pipeline: a TOML file."
)


_MASTER = click.option("--master", help="The Spark master; see run.")
_SPARK_LOG = click.option(
    "--spark-log",
    type=click.Choice(["OFF", "ERROR", "WARN", "INFO", "DEBUG"]),
    default="OFF",
    show_default=True,
    help="The level of Spark's own log on stderr.",
)


@pipeline.command(short_help="Run a pipeline until a signal, or until all is written.")
@_CONFIG
@click.option("--available-now", is_flag=True, help="End when all messages that were there at the start are written.")
@click.option(
    "--master", help="The Spark master, as local[4] or spark://host:7077. Default: this machine, or spark-submit's."
)
@_SPARK_LOG
@click.option(
    "--http-address",
    metavar="ADDRESS",
    help="Serve metrics for Prometheus here, as 127.0.0.1:9160; not at the file's http_address.",
)
@click.option(
    "--adopt",
    is_flag=True,
    help="Take over tables and staged messages of a pipeline that has ended for good, or whose checkpoint is lost.",
)
@click.option("--quiet", is_flag=True, help="Print the result only.")
def run(
    path: str,
    available_now: bool,
    master: str | None,
    spark_log: str,
    http_address: str | None,
    adopt: bool,
    quiet: bool,
) -> None:
    """Run a pipeline until Ctrl-C or SIGTERM, or, with --available-now, until all is written.

    \b
    Exit status:
      0    all messages are written
      1    it failed under way; nothing is lost, start it again
      2    it could not begin: wrong configuration, no nsqd, no Java
      130  ended by Ctrl-C or SIGTERM; nothing is lost
    """
    from gnsq_like.cli.pipeline_screen import PipelineLayout, summary
    from gnsq_like.cli.screen import make_view

    with _sentences(), _stop_signals() as stopped:
        from gnsq_like.spark.pipeline import load_pipeline, run_pipeline

        loaded = load_pipeline(path)
        if http_address is not None:
            loaded = replace(loaded, http_address=http_address)
        shown: list[str] = []

        def update(snapshot: Snapshot) -> None:
            if snapshot.http_address and not shown:
                shown.append(snapshot.http_address)
                view.say(f"Its metrics are at http://{snapshot.http_address}/metrics")
            view.update(snapshot)

        with make_view(PipelineLayout(), quiet=quiet) as view:
            view.say(f"Rows of {loaded.title} go to {loaded.place('data')}; Spark takes some seconds to start.")
            last = run_pipeline(
                loaded,
                master=master,
                available_now=available_now or None,
                watch=update,
                stop=lambda: bool(stopped),
                log_level=spark_log,
                adopt=adopt,
            )
        click.echo(summary(last))


@pipeline.command(short_help="Check a pipeline's file, its daemons and its places, and write nothing.")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False))
@click.option("--offline", is_flag=True, help="Ask no daemon: for continuous integration.")
def check(path: str, offline: bool) -> None:
    """Check whether a pipeline could begin: its configuration, schemas, SQL, daemons, dead letters, tables and disks.

    SQL is checked by Spark, which needs Java. Nothing is written.

    \b
    Exit status:
      0  all is well
      2  something is wrong
    """
    from gnsq_like.cli.tables import print_table

    with _sentences():
        from gnsq_like.spark.pipeline.checking import check_pipeline

        found = list(check_pipeline(path, offline=offline))
    print_table(("CHECK", "OF", "STATE"), [(each.what, each.which, each.problem or each.found) for each in found])
    problems = sum(bool(each.problem) for each in found)
    if problems:
        raise CannotRun(f"{plural(problems, 'check')} of {len(found)} failed")


@pipeline.command(short_help="Compact tables, and delete what is older than wanted.")
@_CONFIG
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def maintain(path: str, quiet: bool) -> None:
    """Care for the tables of a pipeline, which may be running: delete old rows, compact small files, and remove files
    that no table has, as [table] in the file says. Does not need Java.

    \b
    Exit status:
      0    it is done
      1    a table could not be maintained; the others were
      2    wrong configuration, or another process maintains the tables
      130  ended by Ctrl-C or SIGTERM; nothing is half done
    """
    with _sentences(), _stop_signals() as stopped:
        from gnsq_like.spark.pipeline import load_pipeline
        from gnsq_like.spark.pipeline.maintenance import maintain_tables

        for line in maintain_tables(load_pipeline(path), stop=lambda: bool(stopped)):
            if not quiet:
                click.echo(line)


@pipeline.command(short_help="Put a damaged checkpoint or stage in order.")
@_CONFIG
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def repair(path: str, yes: bool) -> None:
    """Say what is damaged in the checkpoint and the stage, what is lost by it and what comes again; then repair it.

    A crash of the machine can leave files empty, and files can go. The pipeline must not run. Does not need Java.

    \b
    Exit status:
      0  nothing is damaged, or all is repaired
      1  something cannot be repaired, or the answer was no
      2  wrong configuration, another run, or a checkpoint that is in no
         directory
    """
    with _sentences():
        from gnsq_like.spark.pipeline import load_pipeline
        from gnsq_like.spark.pipeline.owners import claimed
        from gnsq_like.spark.pipeline.repair import find_problems

        loaded = load_pipeline(path)
        with claimed(loaded.place("checkpoint")):
            problems = find_problems(loaded)
            for problem in problems:
                click.echo(f"{problem.text}.")
            mends = [problem.mend for problem in problems if problem.mend is not None]
            if mends:
                confirm(f"Repair {plural(len(mends), 'problem')}?", yes)
            for mend in mends:
                mend()
    if len(mends) < len(problems):
        raise Failed(f"{plural(len(problems) - len(mends), 'problem')} cannot be repaired")
    click.echo(f"{plural(len(mends), 'problem')} repaired." if mends else "Nothing is damaged.")


@pipeline.command(short_help="Run archived or rejected messages through today's schema, or into a topic.")
@_CONFIG
@click.option("--from", "start", required=True, metavar="TIME", help="Arrival of the first messages, in ISO 8601; UTC.")
@click.option("--to", "end", required=True, metavar="TIME", help="Arrival up to which they are taken.")
@click.option("--rejected", is_flag=True, help="Take the messages that were rejected, not those of the archive.")
@click.option("--where", default="", metavar="SQL", help="A condition on the columns of the archive, or of rejected.")
@click.option("--into", default="", metavar="PLACE", help="The table to write: a directory or URL.")
@click.option("--topic", default="", help="Or the topic to publish to, at the source's nsqds.")
@_MASTER
@_SPARK_LOG
def replay(
    path: str,
    start: str,
    end: str,
    rejected: bool,
    where: str,
    into: str,
    topic: str,
    master: str | None,
    spark_log: str,
) -> None:
    """Replay messages of the archive, or rejected ones, into another table or into a topic.

    \b
    Exit status:
      0  all are written or published
      1  it failed under way; the same command again completes a table, and
         publishes messages again
      2  it could not begin: wrong configuration, no archive, no Java
    """
    since, until = _time("--from", start), _time("--to", end)
    with _sentences():
        from gnsq_like.spark.pipeline import load_pipeline, replay

        place = into if "://" in into or not into else os.path.abspath(into)
        found = replay(
            load_pipeline(path),
            start=since,
            end=until,
            rejected=rejected,
            where=where,
            into=place,
            topic=topic,
            master=master,
            log_level=spark_log,
        )
        click.echo(f"{_counts(found)} to {f'topic {topic}' if topic else place}.")


def _counts(found: Replayed) -> str:
    """The result of a replay, as the beginning of a sentence."""
    rejected = f", {found.rejected:,} rejected" if found.rejected else ""
    count = found.messages - found.rejected
    return f"{count:,} of {found.messages:,} messages{rejected} in {found.batches:,} batches"


def _time(option: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{option} {text}: it must be a time such as 2026-11-21T13:00") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


@pipeline.command(short_help="Show a pipeline at work on its own daemons.")
@click.option("--messages", type=Integer(1, 10**8), default=100_000, show_default=True, help="Clicks to publish.")
@click.option("--nsqds", type=Integer(1, 16), default=2, show_default=True, help="nsqds to start.")
@click.option("--seconds", type=Number(1, 3600), default=20.0, show_default=True, help="How long publishing takes.")
@click.option(
    "--location",
    type=click.Path(file_okay=False),
    default="",
    help="Directory for the tables; it must be empty. Default: a new one below the temporary directory.",
)
@click.option("--quiet", is_flag=True, help="Print the result only.")
def demo(messages: int, nsqds: int, seconds: float, location: str, quiet: bool) -> None:
    """Show a pipeline at work: its own daemons, clicks, the table.

    Starts a nsqlookupd and some nsqds as child processes, publishes clicks to them, and runs a pipeline that writes
    them to Parquet. A few clicks are not JSON or lack a field, some are deferred, and some are requeued once by another
    consumer. The last lines say how many are missing from the table or in it twice, and where the tables are.

    \b
    Exit status:
      0    every click is in the table once
      1    some are lost or there twice, or the pipeline failed
      2    the demo could not be run
      130  ended by Ctrl-C or SIGTERM
    """
    with _sentences(), _stop_signals("; no process is left") as stopped:
        from gnsq_like.cli.pipeline_demo import PipelinePlan, run_demo
        from gnsq_like.cli.pipeline_screen import PipelineLayout
        from gnsq_like.cli.screen import make_view

        plan = PipelinePlan(messages=messages, nsqds=nsqds, seconds=seconds, location=location)
        with make_view(PipelineLayout(), quiet=quiet) as view:
            verdict = run_demo(plan, view, lambda: bool(stopped))
    for line in verdict.lines:
        click.echo(line)
    raise SystemExit(verdict.exit_status)


@contextmanager
def _sentences() -> Iterator[None]:
    """Turn errors with a sentence into exit statuses; others are bugs, and keep their traceback."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # for the function of a transformation
    # Nothing here uses pandas, but pyspark looks at it when it is imported.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    try:
        from gnsq_like.errors import NSQError
        from gnsq_like.spark.pipeline.faults import PipelineFailed
        from gnsq_like.spark.tables.data_file import TableError

        try:
            yield
        except (PipelineFailed, TableError) as exc:
            raise Failed(str(exc)) from exc
        except NSQError as exc:
            raise CannotRun(str(exc)) from exc
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in _NEEDED:
            raise
        raise CannotRun(f"{exc.name} is not installed; a pipeline needs it: install the extra [pipeline]") from exc


@contextmanager
def _stop_signals(after: str = "") -> Iterator[list[str]]:
    """The names of the signals received, SIGINT or SIGTERM; a run checks them often, and ends cleanly.

    Then the process ends here, with status 130.
    """
    came: list[str] = []
    before: dict[signal.Signals, Any] = {}

    def note(number: int, frame: object) -> None:
        came.append(signal.Signals(number).name)

    for each in (signal.SIGINT, signal.SIGTERM):
        before[each] = signal.signal(each, note)
    try:
        yield came
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if came:
        click.echo(f"Ended by {came[0]}{after}.", err=True)
        raise SystemExit(INTERRUPTED_STATUS)
