"""``gnsq-like to-file``: writes topics into files; NSQ's nsq_to_file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from gnsq_like.cli.client_flags import channel, consumes, topics
from gnsq_like.cli.exits import run_service
from gnsq_like.cli.logs import logs
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.tool_options import Duration, Integer, Regex, option, switch
from gnsq_like.runtime.files import NotOurs

if TYPE_CHECKING:
    from gevent.event import Event


@click.command("to-file", cls=ToolCommand)
@topics
@option("--topic-pattern", type=Regex(), help="Write only topics with a match.")
@option("--topic-refresh", type=Duration(above_zero=True), default="1m", help="Time between two polls for new topics.")
@channel("nsq_to_file")
@option("--output-dir", default="/tmp", help="Directory of files, or URL of a store such as s3://bucket/prefix.")
@option("--work-dir", default="", help="Directory of files in progress; default: --output-dir.")
@option(
    "--filename-format", default="<TOPIC>.<HOST><REV>.<DATETIME>.log", help="Name of a file; may contain <PID> and /."
)
@option(
    "--datetime-format",
    default="%Y-%m-%d_%H",
    help="Format of <DATETIME>, as for strftime; a new file when it changes.",
)
@option("--host-identifier", default="", help="Value of <HOST>; may contain <SHORT_HOST> and <HOSTNAME>.")
@switch("--gzip", help="Compress with gzip.")
@option("--gzip-level", type=Integer(1, 9), default=6, help="1 (fast) to 9 (small).")
@switch("--zstd", help="Compress with zstd.")
@option("--zstd-level", type=Integer(1, 22), default=3, help="1 (fast) to 22 (small).")
@switch("--skip-empty-files", help="Open a file only when there is a message for it.")
@option("--rotate-size", type=Integer(0), default=0, help="Bytes after which a file is closed; 0: no limit.")
@option("--rotate-interval", type=Duration(), default="0", help="Time after which a file is closed; 0: no limit.")
@option("--sync-interval", type=Duration(above_zero=True), default="30s", help="Longest time until a sync.")
@option("--http-client-connect-timeout", type=Duration(above_zero=True), default="2s", help="For nsqlookupds.")
@option("--http-client-request-timeout", type=Duration(above_zero=True), default="5s", help="For nsqlookupds.")
@logs("to-file")
@consumes
def to_file(
    reading: dict[str, Any],
    topics: tuple[str, ...],
    topic_pattern: re.Pattern[str] | None,
    topic_refresh: float,
    channel: str,
    gzip: bool,
    gzip_level: int,
    zstd: bool,
    zstd_level: int,
    http_client_connect_timeout: float,
    http_client_request_timeout: float,
    **naming: Any,
) -> None:
    """Write topics into files, a line for each message.

    A message is finished after its line is synced to disk. Without --topic, all topics that the nsqlookupds know and
    that match --topic-pattern are written, including those that appear later. SIGHUP closes the files.
    """
    if not topics and topic_pattern is None:
        raise click.UsageError("--topic or --topic-pattern required")
    if not topics and not reading["lookupd_http_addresses"]:
        raise click.UsageError("--lookupd-http-address must be specified when no --topic specified")
    if gzip and zstd:
        raise click.UsageError("use --gzip or --zstd not both")
    naming["compression"] = "gzip" if gzip else "zstd" if zstd else ""
    naming["compression_level"] = gzip_level if gzip else zstd_level

    from gevent.event import Event

    from gnsq_like.tools.sources import Source
    from gnsq_like.tools.to_file.archive import archive_topics
    from gnsq_like.tools.to_file.plan import FilePlan

    hang_up = Event()

    def run(stop: Event) -> None:
        try:
            archive_topics(
                Source(**reading),
                FilePlan(**naming),
                stop=stop,
                channel=channel,
                topics=topics,
                pattern=topic_pattern,
                topic_refresh=topic_refresh,
                lookupd_timeout=http_client_request_timeout,
                lookupd_connect_timeout=http_client_connect_timeout,
                hang_up=hang_up,
            )
        except NotOurs as exc:
            advice = "give --output-dir and --work-dir directories in which only you may write"
            raise click.ClickException(f"{exc.filename}: {exc.strerror}; {advice}") from None

    run_service(run, on_hup=hang_up.set)
