"""``gnsq-like nsqd`` and ``gnsq-like nsqlookupd``: NSQ's daemons in Python as processes, with NSQ's flags.

They log to stderr as NSQ does, first of all the addresses that they listen on; so whoever starts one
with port 0 can read there which port it got. The flags are made from the daemons' options; HELP says
what each is for.
"""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from datetime import datetime
from typing import Any

import click
import gevent
import gevent.os
from gevent.event import Event

from gnsq_like.errors import UsageError
from gnsq_like.server import Nsqd, NsqdOptions, Nsqlookupd, NsqlookupdOptions

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = rf"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)({'|'.join(sorted(_UNITS, key=len, reverse=True))})"

HELP = {
    "tcp_address": "<addr>:<port> or unix:<path> to listen on for TCP clients; port 0 takes any free one",
    "http_address": "<addr>:<port> or unix:<path> to listen on for HTTP clients; empty for no HTTP",
    "broadcast_address": "address that clients are told to use; default: the one listened on",
    "broadcast_tcp_port": "TCP port that clients are told to use; 0: the one listened on",
    "broadcast_http_port": "HTTP port that clients are told to use; 0: the one listened on",
    "lookupd_tcp_addresses": "TCP address of a nsqlookupd to register with; may be given several times",
    "http_client_connect_timeout": "for reaching the HTTP API of a nsqlookupd",
    "http_client_request_timeout": "for the answer of a nsqlookupd's HTTP API",
    "node_id": "unique part of message ids, 0 to 1023; default: made of the host name",
    "mem_queue_size": "messages that an ephemeral topic or channel keeps",
    "msg_timeout": "time until a message not answered is delivered again",
    "max_msg_timeout": "longest time for which a message may be kept by touching it",
    "max_msg_size": "largest message in bytes",
    "max_body_size": "largest command body in bytes",
    "max_req_timeout": "longest delay of a requeued or deferred message",
    "max_heartbeat_interval": "longest time between heartbeats that a client may ask for",
    "max_rdy_count": "largest RDY count",
    "max_output_buffer_size": "largest output buffer that a client may ask for, in bytes",
    "max_output_buffer_timeout": "longest output buffer timeout that a client may ask for",
    "min_output_buffer_timeout": "shortest output buffer timeout that a client may ask for",
    "output_buffer_timeout": "time for which messages may wait in the output buffer",
    "max_channel_consumers": "consumers that a channel may have; 0: any number",
    "inactive_producer_timeout": "time without a ping after which an nsqd is left out of answers",
    "tombstone_lifetime": "time for which a tombstone hides an nsqd of a topic",
}


def duration(text: str) -> float:
    """The seconds of NSQ's durations, such as 250ms, 60s or 1h30m."""
    if text != "0" and not re.fullmatch(f"(?:{_PART})+", text):
        raise click.BadParameter(f"{text!r} is not a duration such as 250ms, 60s or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, text))


class NSQFormatter(logging.Formatter):
    """NSQ's log lines: prefix, date, time, level, text."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def formatMessage(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created)
        return f"[{self._prefix}] {when:%Y/%m/%d %H:%M:%S.%f} {record.levelname}: {record.message}"


def _flag(field: Field[Any]) -> Callable[[Any], Any]:
    """The command-line flag of one option."""
    name = field.name.replace("_", "-")
    if isinstance(field.default, tuple):
        return click.option(f"--{name.removesuffix('es')}", field.name, multiple=True, help=HELP[field.name])
    default = None if field.default is MISSING else field.default
    kind: Any = int if field.name == "node_id" else None
    if isinstance(default, float):
        kind = duration
        default = f"{default * 1000:g}ms" if default < 1 else f"{default:g}s"
    return click.option(f"--{name}", type=kind, default=default, show_default=bool(default), help=HELP[field.name])


def _flags_of(options: type) -> Callable[[Any], Any]:
    """The flags of all options of a daemon, and those that every daemon has here."""

    def add(function: Any) -> Any:
        function = click.option(
            "--exit-with-parent",
            is_flag=True,
            help="stop when standard input ends: a parent with a pipe to it takes the daemon along, however it ends",
        )(function)
        for field in reversed(fields(options)):
            function = _flag(field)(function)
        return function

    return add


def _run(daemon: Nsqd | Nsqlookupd, name: str, exit_with_parent: bool) -> None:
    """Run until a signal comes, or the parent ends."""
    handler = logging.StreamHandler()
    handler.setFormatter(NSQFormatter(name))
    log = logging.getLogger("gnsq_like")
    log.addHandler(handler)
    log.setLevel(logging.INFO)

    stopped = Event()
    # Before the addresses are out: whoever reads them may send a signal at once.
    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, stopped.set)
    if exit_with_parent:
        gevent.spawn(_wait_for_the_parents_end).link(lambda _: stopped.set())
    try:
        daemon.start()
    except (OSError, UsageError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise click.ClickException(f"{name} cannot start: {reason}") from None
    stopped.wait()
    daemon.stop()


def _wait_for_the_parents_end() -> None:
    while gevent.os.tp_read(0, 4096):
        pass


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """The options that have a value; the rest keep their computed default."""
    return {name: value for name, value in values.items() if value is not None}


@click.command()
@_flags_of(NsqdOptions)
def nsqd(exit_with_parent: bool, **values: Any) -> None:
    """Run an nsqd in Python. Its messages are in memory only."""
    try:
        options = NsqdOptions(**_given(values))
    except UsageError as exc:
        raise click.UsageError(str(exc)) from None
    _run(Nsqd(options), "nsqd", exit_with_parent)


@click.command()
@_flags_of(NsqlookupdOptions)
def nsqlookupd(exit_with_parent: bool, **values: Any) -> None:
    """Run an nsqlookupd in Python."""
    _run(Nsqlookupd(NsqlookupdOptions(**_given(values))), "nsqlookupd", exit_with_parent)
