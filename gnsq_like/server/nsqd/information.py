"""The part of nsqd's HTTP API about the daemon itself: health, figures, debugging, and options (docs/internals 3).

Options are at /config/<name>, with the names of NSQ's config file; durations are nanoseconds, and options that NSQ
keeps as numbers are numbers.
"""

from __future__ import annotations

import gc
import json
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields
from typing import Any, Protocol

from gevent.util import format_run_info

from gnsq_like.addresses import parse_address
from gnsq_like.errors import InvalidAddress
from gnsq_like.httpd.listen import port_of
from gnsq_like.httpd.wsgi import JSON, NSQ_HEADER, Answer, HTTPProblem, Request, Routes, TakesBody
from gnsq_like.server.daemon_options import LOG_LEVELS, TLS_REQUIRED, TLS_VERSIONS, VERSION, config_name
from gnsq_like.server.nsqd.lookup_peers import Registered
from gnsq_like.server.nsqd.stats import Observed, as_text, stats

#: Values of /stats that mean false; anything else is true.
_FALSE = frozenset({"false", "0"})


class Informing(Observed, Registered, Protocol):
    """The members of an nsqd that are used here."""

    http_address: str
    tcp_address: str

    def set_log_level(self, level: str) -> None: ...
    def set_lookupd_tcp_addresses(self, addresses: Iterable[str]) -> None: ...


def routes(nsqd: Informing) -> Routes:
    """This part of the table of nsqd's HTTP API."""
    return {
        "/ping": {"GET": lambda request: _ping(nsqd)},
        "/info": {"GET": lambda request: _info(nsqd)},
        "/stats": {"GET": lambda request: _stats(nsqd, request)},
        "/debug/pprof/cmdline": {"GET": lambda request: "\0".join(sys.argv)},
        "/debug/pprof/goroutine": {"GET": _greenlets},
        "/debug/freememory": {"POST": _free_memory},
        "/config/<name>": {
            "GET": lambda request: _option(nsqd, request.last_word),
            "PUT": TakesBody(lambda request: _set_option(nsqd, request)),
        },
    }


def _ping(nsqd: Informing) -> Answer:
    if nsqd.health != "OK":
        raise HTTPProblem(500, nsqd.health, plain=True)
    return nsqd.health


def _info(nsqd: Informing) -> Answer:
    options = nsqd.options
    return {
        "version": VERSION,
        "broadcast_address": nsqd.broadcast_address,
        "hostname": socket.gethostname(),
        "http_port": port_of(nsqd.http_address),
        "tcp_port": port_of(nsqd.tcp_address),
        "start_time": nsqd.start_time,
        "max_heartbeat_interval": _nanoseconds(options.max_heartbeat_interval),
        "max_output_buffer_size": options.max_output_buffer_size,
        "max_output_buffer_timeout": _nanoseconds(options.max_output_buffer_timeout),
        "max_deflate_level": options.max_deflate_level,
        "topology_zone": options.topology_zone,
        "topology_region": options.topology_region,
    }


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _stats(nsqd: Informing, request: Request) -> Answer:
    parameters = request.parameters()
    figures = stats(
        nsqd,
        parameters.get("topic", ""),
        parameters.get("channel", ""),
        parameters.get("include_clients") not in _FALSE,
    )
    return figures if parameters.get("format") == "json" else as_text(figures, nsqd.start_time)


def _greenlets(request: Request) -> Answer:
    return "\n".join(format_run_info())


def _free_memory(request: Request) -> Answer:
    gc.collect()
    return None


def _option(nsqd: Informing, name: str) -> Answer:
    for field in fields(nsqd.options):
        if config_name(field.name) == name:
            # The defaults of these depend on the addresses that are listened on.
            source = nsqd if field.name.startswith("broadcast_") else nsqd.options
            return _shown(field, getattr(source, field.name))
    raise HTTPProblem(400, "INVALID_OPTION")


def _set_option(nsqd: Informing, request: Request) -> Answer:
    """Change one of the two options that can change at run time; the response has the new value."""
    name = request.last_word
    body = request.read_body(nsqd.options.max_msg_size + 1)
    if not body or len(body) > nsqd.options.max_msg_size:
        raise HTTPProblem(413, "INVALID_VALUE")
    if name == "nsqlookupd_tcp_addresses":
        nsqd.set_lookupd_tcp_addresses(_addresses(body))
    elif name == "log_level":
        level = body.decode("utf-8", "replace").lower()
        if level not in LOG_LEVELS:
            raise HTTPProblem(400, "INVALID_VALUE")
        nsqd.set_log_level(level)
    else:
        raise HTTPProblem(400, "INVALID_OPTION")
    return _option(nsqd, name)


def _addresses(body: bytes) -> list[str]:
    try:
        addresses = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPProblem(400, "INVALID_VALUE") from None
    if addresses is None:
        return []
    if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
        raise HTTPProblem(400, "INVALID_VALUE")
    try:
        for address in addresses:
            parse_address(address)
    except InvalidAddress:
        raise HTTPProblem(400, "INVALID_VALUE") from None
    return addresses


def _shown(field: Field[Any], value: Any) -> Answer:
    if field.name == "log_level":
        return LOG_LEVELS.index(value) + 1
    if field.name == "tls_required":
        return TLS_REQUIRED.index(value)
    if field.name == "tls_min_version":
        return TLS_VERSIONS[value]
    if isinstance(field.default, float):
        return round(value * 1e9)
    return list(value) if isinstance(value, tuple) else value


class TlsRequired:
    """The plain HTTP server where TLS is required: it answers every request with the port of HTTPS, or 0."""

    def __init__(self, https_address: str) -> None:
        port = port_of(https_address) if https_address else 0
        self._body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % port

    def __call__(self, environ: Mapping[str, object], start_response: Callable[..., object]) -> Iterable[bytes]:
        headers = [("Content-Type", JSON), NSQ_HEADER, ("Content-Length", str(len(self._body)))]
        start_response("403 Forbidden", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [self._body]
