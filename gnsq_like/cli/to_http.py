"""``gnsq-like to-http``: sends a topic to HTTP servers; NSQ's nsq_to_http."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gnsq_like.cli.client_flags import channel, consumes
from gnsq_like.cli.cluster_flags import http_options
from gnsq_like.cli.exits import run_service
from gnsq_like.cli.logs import logs
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.tool_options import Integer, Number, option

if TYPE_CHECKING:
    from gevent.event import Event

_MODES = ["hostpool", "round-robin", "epsilon-greedy", "all"]


@click.command("to-http", cls=ToolCommand)
@option("--topic", required=True, word=True, help="Topic.")
@channel("nsq_to_http")
@option("--post", metavar="URL", multiple=True, help="POST messages here; may be repeated.")
@option("--get", metavar="URL", multiple=True, help="GET this URL, with the message in place of %s; may be repeated.")
@option("--header", "headers", metavar="'NAME: VALUE'", multiple=True, help="Header of requests; may be repeated.")
@option("--content-type", default="application/octet-stream", help="Content-Type of a POST.")
@option("-n", "--concurrency", type=Integer(1), default=100, help="Most requests at once.")
@option("--mode", type=click.Choice(_MODES), default="hostpool", help="How a URL is chosen for each message.")
@option("--sample", type=Number(0, 1), default=1.0, help="Fraction of messages to send.")
@partial(http_options, request_timeout="20s")
@option("--status-every", type=Integer(0), default=250, help="Requests between two lines of status; 0: none.")
@logs("to-http")
@consumes
def to_http(
    reading: dict[str, Any],
    topic: str,
    post: tuple[str, ...],
    get: tuple[str, ...],
    headers: tuple[str, ...],
    content_type: str,
    http: dict[str, Any],
    **arguments: Any,
) -> None:
    """Send the messages of a topic to HTTP servers.

    A message is finished when a server answered a POST with a status from 200 to 299, or a GET with 200. Otherwise it
    is requeued, with backoff.
    """
    if not post and not get:
        raise click.UsageError("--get or --post required")
    if post and get:
        raise click.UsageError("use --get or --post not both")
    ctx = click.get_current_context()
    if get and ctx.get_parameter_source("content_type") is not ParameterSource.DEFAULT:
        raise click.UsageError("--content-type only used with --post")

    def run(stop: Event) -> None:
        from gnsq_like.tools.sources import Source
        from gnsq_like.tools.to_http import Requests, parse_header, post_topic

        requests = Requests(
            "POST" if post else "GET",
            post or get,
            headers=dict(map(parse_header, headers)),
            content_type=content_type,
            **http,
        )
        post_topic(Source(**reading), topic, requests, stop=stop, **arguments)

    run_service(run)
