"""``gnsq-like tail``: shows the messages of topics; NSQ's nsq_tail."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gnsq_like.cli.client_flags import channel, consumes, topics
from gnsq_like.cli.exits import INTERRUPTED_STATUS, Interrupted, until_stopped
from gnsq_like.cli.logs import log_to_stderr
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.tool_options import Integer, option, switch

if TYPE_CHECKING:
    from gevent.event import Event

    from gnsq_like import Message


def _pattern(ctx: click.Context, param: click.Parameter, text: str | None) -> re.Pattern[bytes] | None:
    if text is None:
        return None
    try:
        return re.compile(text.encode())
    except re.error as exc:
        raise click.BadParameter(f"{text!r}: {exc}", ctx, param) from None


@click.command("tail", cls=ToolCommand)
@topics
@channel(None)
@option("-n", "--count", type=Integer(0), default=0, help="Messages to show in all; 0: no limit.")
@switch("--json", "as_json", help="Show each message as a JSON object with its metadata.")
@option("--grep", "matching", metavar="REGEX", callback=_pattern, help="Show only messages whose body has a match.")
@switch("--print-topic", help="Show the topic before each message.")
@switch("--create", help="Subscribe also where this makes a topic, or a channel that takes the whole backlog.")
@option(
    "--nsqd-http-address",
    "nsqd_http_addresses",
    metavar="HOST:PORT",
    multiple=True,
    listed=True,
    help="HTTP address of an nsqd, if its port is not the one after its TCP port.",
)
@consumes
def tail(
    verbose: bool, topics: tuple[str, ...], as_json: bool, print_topic: bool, reading: dict[str, Any], **arguments: Any
) -> None:
    """Show the messages of topics as they come.

    Without --channel they come through an ephemeral channel, so that no other consumer loses any. Messages are finished
    when they have been written; those that were not go back to their channel.
    """
    if not topics:
        raise click.UsageError("--topic required")
    log_to_stderr("info" if verbose else "warning", "gnsq-like tail: ", with_tracebacks=verbose)
    to_bytes = as_json_line if as_json else _with_topic if print_topic else _plain

    def run(stop: Event) -> int:
        from gnsq_like.tools.sources import Source
        from gnsq_like.tools.tailing import tail

        tail(Source(**reading), topics, _writer(to_bytes), stop=stop, **arguments)
        return 0

    try:
        status = until_stopped(run)
    except BrokenPipeError:
        status = 0  # the reader of the pipe has closed it, as head(1) does
    except Interrupted:
        status = INTERRUPTED_STATUS
    raise SystemExit(status)


def _writer(to_bytes: Callable[[Message], bytes]) -> Callable[[list[Message]], None]:
    """A function that writes messages to stdout; in a native thread, because that may block."""

    def write(messages: list[Message]) -> None:
        rest = memoryview(b"".join(map(to_bytes, messages)))
        while rest:
            rest = rest[os.write(1, rest) :]

    return write


def _plain(message: Message) -> bytes:
    return message.body + b"\n"


def _with_topic(message: Message) -> bytes:
    return f"{message.topic} | ".encode() + message.body + b"\n"


def as_json_line(message: Message) -> bytes:
    """A message with its metadata; the body as text if it is UTF-8, else in base64 as ``body_base64``."""
    try:
        body = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(message.body).decode()}
    found = {
        "topic": message.topic,
        "channel": message.channel,
        "id": message.id,
        "timestamp_ns": message.timestamp_ns,
        "attempts": message.attempts,
        "nsqd": message.nsqd_address,
        **body,
    }
    return json.dumps(found, ensure_ascii=False).encode() + b"\n"
