"""``gnsq-like to-http``: sends a topic to HTTP servers; NSQ's nsq_to_http."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gnsq_like.cli.client_flags import channel, consumes
from gnsq_like.cli.exits import run_service
from gnsq_like.cli.logs import log_to_stderr, logs
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.tool_options import Duration, Integer, Number, option, switch

if TYPE_CHECKING:
    from gevent.event import Event

_MODES = ["hostpool", "round-robin", "epsilon-greedy", "all"]


@click.command("to-http", cls=ToolCommand)
@option("--topic", required=True, word=True, help="Topic.")
@channel("nsq_to_http")
@option("--post", metavar="URL", multiple=True, help="POST messages here; may be repeated.")
@option("--get", metavar="URL", multiple=True, help="GET this, with the message in the place of %s; may be repeated.")
@option("--header", "headers", metavar="'NAME: VALUE'", multiple=True, help="Header of requests; may be repeated.")
@option("--content-type", default="application/octet-stream", help="Content-Type of a POST.")
@option("-n", "--concurrency", type=Integer(1), default=100, help="Requests at once.")
@option("--mode", type=click.Choice(_MODES), default="hostpool", help="Which URL a message goes to.")
@option("--sample", type=Number(0, 1), default=1.0, help="Share of messages to send.")
@option("--http-client-connect-timeout", type=Duration(above_zero=True), default="2s", help="For connecting.")
@option("--http-client-request-timeout", type=Duration(above_zero=True), default="20s", help="For a request.")
@switch("--http-client-tls-insecure-skip-verify", help="Accept any certificate of a server.")
@option("--http-client-tls-root-ca-file", metavar="PATH", help="CA certificates to trust, as PEM.")
@option("--http-client-tls-cert", metavar="PATH", help="Client certificate for servers, as PEM.")
@option("--http-client-tls-key", metavar="PATH", help="Its key.")
@option("--status-every", type=Integer(0), default=250, help="Requests between two lines of status; 0: none.")
@logs("to-http")
@consumes
def to_http(
    verbose: bool,
    log_level: str,
    log_prefix: str,
    reading: dict[str, Any],
    topic: str,
    post: tuple[str, ...],
    get: tuple[str, ...],
    headers: tuple[str, ...],
    content_type: str,
    http_client_connect_timeout: float,
    http_client_request_timeout: float,
    http_client_tls_insecure_skip_verify: bool,
    http_client_tls_root_ca_file: str | None,
    http_client_tls_cert: str | None,
    http_client_tls_key: str | None,
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
    log_to_stderr("debug" if verbose else log_level, log_prefix, with_tracebacks=verbose)

    def run(stop: Event) -> None:
        from gnsq_like.tools.sources import Source
        from gnsq_like.tools.to_http import Requests, parse_header, post_topic

        requests = Requests(
            "POST" if post else "GET",
            post or get,
            headers=dict(map(parse_header, headers)),
            content_type=content_type,
            connect_timeout=http_client_connect_timeout,
            request_timeout=http_client_request_timeout,
            verify=not http_client_tls_insecure_skip_verify,
            ca_file=http_client_tls_root_ca_file,
            cert_file=http_client_tls_cert,
            key_file=http_client_tls_key,
        )
        post_topic(Source(**reading), topic, requests, stop=stop, **arguments)

    run_service(run)
