"""``gnsq-like to-nsq``: copies topics to other nsqds; NSQ's nsq_to_nsq."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gnsq_like.cli.client_flags import channel, consumes, publishes, topics
from gnsq_like.cli.exits import run_service
from gnsq_like.cli.logs import logs
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.tool_options import Integer, option
from gnsq_like.tools.host_pool import MODES

if TYPE_CHECKING:
    from gevent.event import Event


@click.command("to-nsq", cls=ToolCommand)
@topics
@channel("nsq_to_nsq")
@option(
    "--destination-nsqd-tcp-address",
    "destinations",
    metavar="HOST:PORT",
    multiple=True,
    listed=True,
    help="nsqd to publish to; may be repeated.",
)
@option("--destination-topic", help="Topic to publish to; default: the source topic.")
@option("--mode", type=click.Choice(MODES), default="hostpool", help="How a destination is chosen for each message.")
@option("--require-json-field", default="", metavar="NAME", help="Pass on only JSON objects with this field.")
@option("--require-json-value", default="", metavar="VALUE", help="Pass on only objects in which it has this value.")
@option(
    "--whitelist-json-field",
    "kept_fields",
    metavar="NAME",
    multiple=True,
    help="Pass on only this field of JSON objects; may be repeated.",
)
@option("--status-every", type=Integer(0), default=250, help="Messages between two lines of status; 0: none.")
@logs("to-nsq")
@consumes
@publishes
def to_nsq(
    reading: dict[str, Any],
    publishing: dict[str, Any],
    topics: tuple[str, ...],
    destinations: tuple[str, ...],
    require_json_field: str,
    require_json_value: str,
    kept_fields: tuple[str, ...],
    **arguments: Any,
) -> None:
    """Copy the messages of topics to other nsqds.

    Each message goes to one of the destinations, and is finished when that has confirmed it. Messages that the JSON
    options exclude are finished.
    """
    if not topics:
        raise click.UsageError("--topic required")
    if not destinations:
        raise click.UsageError("--destination-nsqd-tcp-address required")

    def run(stop: Event) -> None:
        from gnsq_like.tools.sources import Source
        from gnsq_like.tools.to_nsq import JSONFilter, copy_topics

        json_filter = JSONFilter(require_json_field, require_json_value, kept_fields)
        copy_topics(
            Source(**reading),
            topics,
            destinations,
            stop=stop,
            json_filter=json_filter,
            producer_options=publishing,
            **arguments,
        )

    run_service(run)
