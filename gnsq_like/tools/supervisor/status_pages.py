"""``/healthz`` and ``/metrics`` of all workers on one port, served by threads of the master.

The threads read the last status that the master has published, and never wait for its loop or for a worker. There are
few: where more clients come, those that have sent no whole request are shut out, the longest first.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gnsq_like.addresses import join_host_port, parse_address
from gnsq_like.errors import NSQError
from gnsq_like.server.shared.http_connections import HTTPConnections, TooManyConnections

#: Clients at once.
_MOST_CLIENTS = 50


class StatusPages:
    """The HTTP server; listens from its construction on. Next: :meth:`close`.

    :param address: "host:port"
    :param metrics: makes the page ``/metrics`` of a status; None for no such page
    :raises NSQError: when it cannot be listened on
    """

    def __init__(self, address: str, metrics: Callable[[Mapping[str, Any]], bytes] | None) -> None:
        where = parse_address(address, to_listen=True)
        #: What the pages show; replaced as a whole.
        self.status: Mapping[str, Any] = {"status": "failing", "wanted": 0, "restarts": {}, "workers": []}
        pages = self

        class Handler(_Handler):
            def page(self, path: str) -> tuple[int, str, bytes]:
                return pages._page(path, metrics)

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
            daemon_threads = True
            connections = HTTPConnections(_MOST_CLIENTS)

            def process_request_thread(self, request: Any, client_address: Any) -> None:
                try:
                    with self.connections.opened(request) as connection, connection.owed(connection.seconds):
                        super().process_request_thread(request, client_address)
                except TooManyConnections:
                    self.shutdown_request(request)

            def service_actions(self) -> None:
                self.connections.shut_overdue()

        try:
            self._server = Server((where.host, where.port), Handler)
        except OSError as exc:
            raise NSQError(f"cannot listen on {address}: {exc.strerror or exc}") from exc
        self.address = join_host_port(where.host or "0.0.0.0", self._server.server_port)
        threading.Thread(target=self._server.serve_forever, name="health pages", daemon=True).start()

    def _page(self, path: str, metrics: Callable[[Mapping[str, Any]], bytes] | None) -> tuple[int, str, bytes]:
        status = self.status
        if path == "/healthz":
            body = json.dumps(status, indent=1).encode() + b"\n"
            return 200 if status["status"] == "ok" else 503, "application/json", body
        if path == "/metrics" and metrics is not None:
            return 200, "text/plain; version=0.0.4; charset=utf-8", metrics(status)
        missing = b'metrics need prometheus-client: pip install "gnsq-like[prometheus]"\n'
        return 404, "text/plain", missing if path == "/metrics" else b"not found\n"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def page(self, path: str) -> tuple[int, str, bytes]:
        """Status, type and body."""
        raise NotImplementedError

    def do_GET(self) -> None:
        status, kind, body = self.page(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *arguments: Any) -> None:
        """No log of requests."""
