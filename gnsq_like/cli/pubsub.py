"""``gnsq-like pubsub``: topics over HTTP; NSQ's nsq_pubsub."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gnsq_like.cli.client_flags import consumes, publishes
from gnsq_like.cli.exits import run_service
from gnsq_like.cli.logs import logs
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.tool_options import Duration, option

if TYPE_CHECKING:
    from gevent.event import Event


@click.command("pubsub", cls=ToolCommand)
@option("--http-address", default="127.0.0.1:8080", metavar="HOST:PORT", help="To listen on; port 0: any free one.")
@option(
    "--allow-origin",
    "origins",
    metavar="ORIGIN",
    multiple=True,
    help="Let web pages from there make requests, such as https://app.example.com; may be repeated.",
)
@option("--heartbeat", type=Duration(above_zero=True), default="30s", help="Time between signs of life on a stream.")
@logs("pubsub")
@partial(consumes, in_flight=100)
@publishes
def pubsub(
    reading: dict[str, Any],
    publishing: dict[str, Any],
    http_address: str,
    **arguments: Any,
) -> None:
    """Serve topics over HTTP.

    \b
    GET  /sub?topic=T&channel=C  the messages as they come, a line each; with
                                 &format=sse as server-sent events
    POST /pub?topic=T            publishes the body
    GET  /stats                  the clients; with ?format=json as JSON

    A message is finished when it has been written to the client. Whoever can reach the address can read and publish
    everything: there are no users.
    """

    def run(stop: Event) -> None:
        from gnsq_like.tools.pubsub import serve
        from gnsq_like.tools.sources import Source

        serve(Source(**reading), http_address, stop=stop, producer_options=publishing, **arguments)

    run_service(run)
