"""``gnsq-like pub``: publishes messages, or lines and other records of standard input; NSQ's to_nsq."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from gnsq_like.cli.client_flags import destination, publishes
from gnsq_like.cli.confirm import plural
from gnsq_like.cli.exits import INTERRUPTED_STATUS, run_service
from gnsq_like.cli.logs import log_to_stderr
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.tool_options import Duration, Number, option, switch, unescaped

if TYPE_CHECKING:
    from gevent.event import Event

    from gnsq_like.tools.publishing import Progress


def _delimiter(ctx: click.Context, param: click.Parameter, text: str) -> bytes:
    """The bytes of a delimiter, where a backslash may begin an escape as in C."""
    found = unescaped(text).encode(errors="surrogateescape")
    if not found:
        raise click.BadParameter("it must not be empty", ctx, param)
    return found


@click.command("pub", cls=ToolCommand)
@option("--topic", word=True, help="Topic.")
@option("--topic-field", metavar="NAME", help="Records are JSON objects; this field names the topic (else --topic).")
@option(
    "--delimiter",
    default="\\n",
    callback=_delimiter,
    help="Separator of records: any text, with escapes such as \\t and \\0.",
)
@option("--rate", type=Number(0), default=0.0, help="Most messages a second; 0: no limit.")
@option(
    "--to",
    type=click.Choice(["all", "one"]),
    default="all",
    help="Publish each message to all given nsqds, or to one of them in turn.",
)
@option("--defer", type=Duration(), help="Time until nsqd delivers the messages.")
@switch("-q", "--quiet", help="Show no progress.")
@destination
@publishes
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
def pub(verbose: bool, quiet: bool, **arguments: Any) -> None:
    """Publish messages, or the lines of standard input.

    \b
    gnsq-like pub clicks '{"page": "/"}' -d 127.0.0.1
    gnsq-like pub clicks -d 127.0.0.1 < clicks.jsonl

    Each line is a message; empty lines are skipped. On a terminal, a bar shows the progress. If a message cannot be
    published, those before it have been, and the command ends with status 1. After SIGINT or SIGTERM, the lines already
    read are published, and the status is 130.
    """
    if not arguments["topic"] and not arguments["topic_field"]:
        raise click.UsageError("--topic or --topic-field required")
    log_to_stderr("info" if verbose else "error", "gnsq-like pub: ", with_tracebacks=verbose)
    run_service(lambda stop: _run(stop, quiet, **arguments))


def _run(
    stop: Event,
    quiet: bool,
    *,
    topic: str | None,
    topic_field: str | None,
    delimiter: bytes,
    rate: float,
    to: str,
    defer: float | None,
    nsqd_tcp_addresses: tuple[str, ...],
    lookupd_http_addresses: tuple[str, ...],
    publishing: dict[str, object],
    messages: tuple[str, ...],
) -> int:
    from gnsq_like.tools.publishing import (
        Progress,
        Targets,
        publish_records,
        read_chunks,
        split_records,
        topic_by_field,
    )

    targets = Targets(nsqd_tcp_addresses, lookupd_http_addresses, to_one=to == "one", options=publishing)
    topic_of = topic_by_field(topic_field, topic) if topic_field else lambda record: str(topic)
    progress = Progress()

    def counted() -> Iterator[bytes]:
        for chunk in read_chunks(0, stop):
            progress.read_bytes += len(chunk)
            yield chunk

    records = map(os.fsencode, messages) if messages else split_records(counted(), delimiter, targets.longest)
    with closing(targets), _shown(progress, quiet or bool(messages)):
        publish_records(records, targets, topic_of, rate=rate, defer=defer, progress=progress)
    if messages and not quiet and sys.stderr.isatty():
        click.echo(f"{plural(len(messages), 'message')} published", err=True)
    return INTERRUPTED_STATUS if stop.is_set() else 0


@contextmanager
def _shown(progress: Progress, quiet: bool) -> Iterator[None]:
    """Show the progress on stderr if that is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    state = os.fstat(0)
    size = state.st_size if stat.S_ISREG(state.st_mode) else None
    import gevent
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = [
        *([BarColumn(), DownloadColumn()] if size else []),
        TextColumn("{task.fields[count]:,} messages"),
        TextColumn("{task.fields[rate]:,.0f}/s"),
        TimeElapsedColumn(),
    ]
    # Its own refreshing would be a thread, which a busy hub starves.
    bar = Bar(*columns, console=console, auto_refresh=False)
    task = bar.add_task("", total=size, count=0, rate=0.0)

    def draw() -> None:
        elapsed = bar.tasks[0].elapsed or 0.0
        rate = progress.published / elapsed if elapsed else 0.0
        bar.update(task, completed=progress.read_bytes, count=progress.published, rate=rate, refresh=True)

    def keep_drawing() -> None:
        while True:
            gevent.sleep(0.1)
            draw()

    with bar:
        drawing = gevent.spawn(keep_drawing)
        try:
            yield
        finally:
            drawing.kill()
            draw()
