"""The part of nsqd's HTTP API that reports on the daemon: health, figures, debugging (docs/internals 3)."""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from gevent.util import format_run_info

from gnsq_like.server.nsqd.stats import Observed, as_text, stats
from gnsq_like.server.options import VERSION
from gnsq_like.server.shared.listen import port_of
from gnsq_like.server.shared.wsgi import JSON, NSQ_HEADER, Answer, Problem, Request, Routes

#: What /stats takes for false; anything else is true.
_FALSE = frozenset({"false", "0"})


class Informing(Observed, Protocol):
    """What this needs of an nsqd."""

    http_address: str
    tcp_address: str

    @property
    def broadcast_address(self) -> str: ...


def routes(nsqd: Informing) -> Routes:
    """This part of the table of nsqd's HTTP API."""
    return {
        "/ping": {"GET": lambda request: _ping(nsqd)},
        "/info": {"GET": lambda request: _info(nsqd)},
        "/stats": {"GET": lambda request: _stats(nsqd, request)},
        "/debug/pprof/cmdline": {"GET": lambda request: "\0".join(sys.argv)},
        "/debug/pprof/goroutine": {"GET": _greenlets},
        "/debug/freememory": {"POST": _free_memory},
    }


def _ping(nsqd: Informing) -> Answer:
    if nsqd.health != "OK":
        raise Problem(500, nsqd.health, plain=True)
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
        parameters.get("include_mem") not in _FALSE,
    )
    return figures if parameters.get("format") == "json" else as_text(figures, nsqd.start_time)


def _greenlets(request: Request) -> Answer:
    return "\n".join(format_run_info())


def _free_memory(request: Request) -> Answer:
    gc.collect()
    return None


class TlsRequired:
    """The plain HTTP server where TLS is required: it answers every request with the port of HTTPS, or 0."""

    def __init__(self, https_address: str) -> None:
        port = port_of(https_address) if https_address else 0
        self._body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % port

    def __call__(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        headers = [("Content-Type", JSON), NSQ_HEADER, ("Content-Length", str(len(self._body)))]
        start_response("403 Forbidden", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [self._body]
