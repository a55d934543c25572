"""``/healthz`` and ``/metrics`` of all workers on one port, served by threads of the master.

The threads read the last status that the master has published, and never wait for its loop or for a worker. They are
few: if there are more clients, those without a complete request are disconnected, the longest first. The metrics are
those that workers write in prometheus-client's multiprocess mode, and the supervisor's own:

==================================  =========  ====================================================================
nsq_workers                         gauge      processes that run
nsq_workers_wanted                  gauge
nsq_worker_restarts_total           counter    by reason: died, blocked, overdue, memory, messages, reload, asked
nsq_worker_memory_bytes             gauge      by worker: resident memory
nsq_worker_start_time_seconds       gauge      by worker: when its process was started, as Unix time
nsq_worker_heartbeat_age_seconds    gauge      by worker: over a second or two, its hub is blocked
nsq_supervisor_memory_bytes         gauge
==================================  =========  ====================================================================
"""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from gnsq_like.addresses import join_host_port, parse_address
from gnsq_like.errors import NSQError
from gnsq_like.httpd.connections import HTTPConnections, TooManyConnections
from gnsq_like.workers.process import memory_bytes
from gnsq_like.workers.roster import Cause

try:
    import prometheus_client
except ModuleNotFoundError:  # there is no /metrics then
    prometheus_client = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

#: Clients at once.
_MOST_CLIENTS = 50
#: Reasons that the metric has from the start, so that Prometheus sees the increase from 0.
REASONS = [cause for cause in Cause if cause is not Cause.STOP]
#: Of the workers' table in a status: the metric and its text.
_BY_WORKER = {
    "memory_bytes": ("nsq_worker_memory_bytes", "Resident memory of a worker."),
    "started_at": ("nsq_worker_start_time_seconds", "When a worker was started, as Unix time."),
    "heartbeat_age": ("nsq_worker_heartbeat_age_seconds", "Seconds since a worker's last heartbeat."),
}
_MISSING = b"metrics need prometheus-client: install the extra [prometheus]\n"


class Pages:
    """The HTTP server; listens from its construction on. Next: :meth:`close`.

    :param address: "host:port"
    :param directory: for the workers' files, as the environment's PROMETHEUS_MULTIPROC_DIR; empty for a new one, which
        is removed at the end
    :raises NSQError: when it cannot be listened on
    """

    def __init__(self, address: str, directory: str = "") -> None:
        where = parse_address(address, to_listen=True)
        #: The status that the pages show; replaced as a whole.
        self.status: Mapping[str, Any] = {"status": "failing", "wanted": 0, "restarts": {}, "workers": []}
        self._made = None
        #: Whether there is a page /metrics.
        self.has_metrics = prometheus_client is not None
        if self.has_metrics and not directory:
            self._made = tempfile.TemporaryDirectory(prefix="gnsq-like-metrics-")
        #: Of the metrics' files; empty without metrics.
        self.directory = (directory or (self._made.name if self._made else "")) if self.has_metrics else ""
        pages = self

        class Handler(_Handler):
            def page(self, path: str) -> tuple[int, str, bytes]:
                return pages.page(path)

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
            daemon_threads = True
            request_queue_size = 128
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
            self._remove_files()
            raise NSQError(f"cannot listen on {address}: {exc.strerror or exc}") from exc
        self.address = join_host_port(where.host or "0.0.0.0", self._server.server_port)
        threading.Thread(target=self._server.serve_forever, name="health pages", daemon=True).start()

    def page(self, path: str) -> tuple[int, str, bytes]:
        """Status, type and body. From any thread."""
        status = self.status
        if path == "/healthz":
            body = json.dumps(status, indent=1).encode() + b"\n"
            return 200 if status["status"] == "ok" else 503, "application/json", body
        if path == "/metrics" and self.has_metrics:
            return 200, "text/plain; version=0.0.4; charset=utf-8", self.metrics()
        return 404, "text/plain", _MISSING if path == "/metrics" else b"not found\n"

    def metrics(self) -> bytes:
        """The page for the current status, in Prometheus's text format. From any thread."""
        from gnsq_like.workers.metric_files import WorkerFiles

        registry = prometheus_client.CollectorRegistry()
        WorkerFiles(registry, self.directory)
        registry.register(Collector(self.status))
        return prometheus_client.generate_latest(registry)

    def forget(self, number: int) -> None:
        """A worker has ended: drop its gauges, and keep its counts."""
        if self.has_metrics:
            from prometheus_client.multiprocess import mark_process_dead

            mark_process_dead(number, self.directory)

    def close(self) -> None:
        """Stop listening, and remove the directory if it was made here; twice is fine."""
        self._server.shutdown()
        self._server.server_close()
        self._remove_files()

    def _remove_files(self) -> None:
        if self._made is not None:
            self._made.cleanup()


class Collector:
    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        workers = self._status["workers"]
        running = sum(worker["state"] == "running" for worker in workers)
        yield GaugeMetricFamily("nsq_workers", "Worker processes that run.", running)
        yield GaugeMetricFamily("nsq_workers_wanted", "Worker processes that should run.", self._status["wanted"])
        restarts = CounterMetricFamily("nsq_worker_restarts", "Workers that were replaced.", labels=["reason"])
        for reason in REASONS:
            restarts.add_metric([reason], self._status["restarts"].get(reason, 0))
        yield restarts
        for key, (name, text) in _BY_WORKER.items():
            family = GaugeMetricFamily(name, text, labels=["worker"])
            for worker in workers:
                family.add_metric([str(worker["number"])], worker[key])
            yield family
        yield GaugeMetricFamily("nsq_supervisor_memory_bytes", "Resident memory of the supervisor.", memory_bytes())


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
