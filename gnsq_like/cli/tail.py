"""``gnsq-like tail``: shows the messages of topics; NSQ's nsq_tail."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from string import Formatter
from typing import TYPE_CHECKING, Any

import click

from gnsq_like.cli.client_flags import channel, consumes, topics
from gnsq_like.cli.cluster_flags import address_option
from gnsq_like.cli.exits import run_service
from gnsq_like.cli.logs import log_to_stderr
from gnsq_like.cli.tool_command import ToolCommand
from gnsq_like.cli.tool_options import Integer, Regex, option, printable, switch, unescaped

if TYPE_CHECKING:
    from gevent.event import Event

    from gnsq_like import Message


#: The fields of a message; as text, bytes that are not UTF-8 are surrogates.
FIELDS: dict[str, Callable[[Message], Any]] = {
    "topic": lambda message: message.topic,
    "channel": lambda message: message.channel,
    "id": lambda message: message.id,
    "timestamp": lambda message: datetime.fromtimestamp(message.timestamp).astimezone(),
    "timestamp_ns": lambda message: message.timestamp_ns,
    "attempts": lambda message: message.attempts,
    "nsqd": lambda message: message.nsqd_address,
    "body": lambda message: message.body.decode(errors="surrogateescape"),
}


def _template(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    """A format, checked on fields of the right kinds."""
    if text is None:
        return None
    template = unescaped(text)
    kinds = {"timestamp": datetime.now(), "timestamp_ns": 0, "attempts": 0}
    try:
        if not _names(template) <= FIELDS.keys() or any("{" in (spec or "") for _, _, spec, _ in _parts(template)):
            raise ValueError(f"the fields are {', '.join(FIELDS)}")
        template.format_map({name: kinds.get(name, "") for name in FIELDS})
    except (ValueError, LookupError, AttributeError) as exc:
        raise click.BadParameter(f"{text!r}: {exc}", ctx, param) from None
    return template


def _parts(template: str) -> list[tuple[str, str | None, str | None, str | None]]:
    return [*Formatter().parse(template)]


def _names(template: str) -> set[str]:
    return {name for _, name, _, _ in _parts(template) if name is not None}


@click.command("tail", cls=ToolCommand)
@topics
@channel(None)
@option("-n", "--count", type=Integer(0), default=0, help="Messages to show in total; 0: no limit.")
@option(
    "--format",
    "template",
    metavar="TEXT",
    callback=_template,
    help='Format of a message, with \\t and other escapes: "{topic} {timestamp:%H:%M:%S} {attempts} {body}". '
    f"Fields: {', '.join(FIELDS)}.",
)
@switch("--json", "as_json", help="Show each message as a JSON object with its metadata.")
@option("--grep", "matching", type=Regex(of_bytes=True), help="Show only messages whose body has a match.")
@switch("--print-topic", help="Show the topic before each message.")
@switch("--create", help="Subscribe even if this creates a topic, or a channel that takes the whole backlog.")
@address_option("nsqd_http_addresses", "HTTP address of an nsqd, if its port is not the next one", short=False)
@consumes
def tail(
    verbose: bool,
    topics: tuple[str, ...],
    template: str | None,
    as_json: bool,
    print_topic: bool,
    reading: dict[str, Any],
    **arguments: Any,
) -> None:
    """Show the messages of topics as they arrive.

    Without --channel, an ephemeral channel is used, so that no other consumer loses messages. Messages are finished
    when they have been written; the others go back to their channel.
    """
    if not topics:
        raise click.UsageError("--topic required")
    log_to_stderr("info" if verbose else "warning", "gnsq-like tail: ", with_tracebacks=verbose)
    if as_json and template is not None:
        raise click.UsageError("use --format or --json not both")
    template = template or ("{topic} | {body}" if print_topic else "{body}")
    to_line = as_json_line if as_json else in_format(template, raw=not sys.stdout.isatty())

    def run(stop: Event) -> None:
        from gnsq_like.tools.sources import Source
        from gnsq_like.tools.tailing import tail

        with suppress(BrokenPipeError):  # the reader of the pipe has closed it, as head(1) does
            tail(Source(**reading), topics, _writer(to_line), stop=stop, **arguments)

    run_service(run)


def _writer(to_line: Callable[[Message], str]) -> Callable[[list[Message]], None]:
    """A function that writes messages to stdout; in a native thread, because that may block."""

    def write(messages: list[Message]) -> None:
        rest = memoryview(b"".join(f"{to_line(each)}\n".encode(errors="surrogateescape") for each in messages))
        while rest:
            rest = rest[os.write(1, rest) :]

    return write


def in_format(template: str, *, raw: bool = True) -> Callable[[Message], str]:
    """A function that formats messages.

    :param template: has names of :data:`FIELDS`
    :param raw: whether messages are shown unchanged; otherwise, control characters are replaced
    """
    fields = [(name, FIELDS[name]) for name in _names(template)]

    def shown(value: Any) -> Any:
        return value if raw or not isinstance(value, str) else printable(value, "\n\t")

    return lambda message: template.format_map({name: shown(field(message)) for name, field in fields})


def as_json_line(message: Message) -> str:
    """A message with its metadata; the body as text if it is UTF-8, else in base64 as ``body_base64``."""
    found = {name: field(message) for name, field in FIELDS.items() if name not in ("timestamp", "body")}
    try:
        found["body"] = message.body.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(message.body).decode()
    text = json.dumps(found, ensure_ascii=False)
    return (
        text if text.isprintable() else "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
    )
