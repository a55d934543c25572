"""The status of a run as a WSGI application: ``/status``, ``/healthz``, ``/metrics`` and ``/ping``.

It only reads the last status that the run has published, so it answers while Spark starts, and while the run waits.
Nothing can be changed here. A server on the loopback address
answers to no other names than this machine's, because others may be the doing of another site (``host_header``).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from flask import Flask, Response, jsonify, request

from gnsq_like.httpd.host_header import host_of, is_ip
from gnsq_like.spark.watch.run_metrics import metrics_page
from gnsq_like.spark.watch.run_status import time_text

#: Seconds after which a status that was not renewed is no longer believed: the run hangs.
STALE = 60.0
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def status_app(
    status: Callable[[], Mapping[str, Any]], *, is_local: bool, clock: Callable[[], float] = time.time
) -> Flask:
    """The application.

    :param status: returns the present status (``RunStatus.current``)
    :param is_local: whether to refuse hosts that are not this machine
    :param clock: the time of day
    """
    app = Flask("gnsq_like.spark.watch", static_folder=None)

    def checked() -> Mapping[str, Any]:
        return _checked(status(), clock())

    def health() -> tuple[Response, int]:
        found = checked()
        names = ("pipeline", "status", "state", "problems", "lag", "depth", "updated_at")
        return jsonify({name: found[name] for name in names}), 200 if found["status"] == "ok" else 503

    def whole() -> Response:
        return jsonify({name: value for name, value in checked().items() if name != "latencies"})

    def metrics() -> Response:
        return Response(metrics_page(checked()), content_type="text/plain; version=0.0.4; charset=utf-8")

    app.add_url_rule("/healthz", "health", health)
    app.add_url_rule("/status", "status", whole)
    app.add_url_rule("/metrics", "metrics", metrics)
    app.add_url_rule("/ping", "ping", lambda: Response("OK", content_type="text/plain; charset=utf-8"))
    app.before_request(_refusal if is_local else lambda: None)
    app.after_request(_finish)
    return app


def _checked(status: Mapping[str, Any], now: float) -> Mapping[str, Any]:
    """The status; one that says so if the run has not renewed it."""
    age = now - status["updated_at"]
    if status["state"] != "running" or age <= STALE:
        return status
    text = f"the run has not looked at anything for {time_text(age)}"
    problem = {"name": "stale", "text": text, "topic": "", "since": status["updated_at"]}
    return {**status, "status": "failing", "problems": [*status["problems"], problem]}


def _refusal() -> Response | None:
    host = host_of(request.headers.get("Host", ""))
    if host is not None and (is_ip(host) or host in {"localhost", socket.gethostname().lower()}):
        return None
    return Response("This is not a name of this server.\n", 421, content_type="text/plain; charset=utf-8")


def _finish(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers[name] = value
    return response
