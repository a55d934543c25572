"""The supervisor's metrics, together with those that its workers write in prometheus-client's multiprocess mode.

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

import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import mark_process_dead

from gnsq_like.contrib.shared.worker_files import WorkerFiles
from gnsq_like.tools.supervisor.process import memory_bytes
from gnsq_like.tools.supervisor.roster import Cause

#: Reasons that the metric has from the beginning, so that an increase from 0 is seen.
_REASONS = [cause for cause in Cause if cause not in (Cause.FEWER, Cause.STOP)]
#: Of the workers' table in a status: the metric and its text.
_BY_WORKER = {
    "memory_bytes": ("nsq_worker_memory_bytes", "Resident memory of a worker."),
    "started_at": ("nsq_worker_start_time_seconds", "When a worker was started, as Unix time."),
    "heartbeat_age": ("nsq_worker_heartbeat_age_seconds", "Seconds since a worker's last heartbeat."),
}


class Figures:
    """Makes the page ``/metrics``; a context manager.

    :param directory: for the workers' files, as the environment's PROMETHEUS_MULTIPROC_DIR; empty for a new one, which
        is removed at the end
    """

    def __init__(self, directory: str = "") -> None:
        self._made = None if directory else tempfile.TemporaryDirectory(prefix="gnsq-like-metrics-")
        self.directory = directory or (self._made.name if self._made else "")

    def forget(self, number: int) -> None:
        """A worker has ended: drop its gauges, and keep its counts."""
        mark_process_dead(number, self.directory)  # type: ignore[no-untyped-call]

    def page(self, status: Mapping[str, Any]) -> bytes:
        """The page for a status of the supervisor, in Prometheus's text format. From any thread."""
        registry = CollectorRegistry()
        WorkerFiles(registry, self.directory)
        registry.register(_Collector(status))
        return generate_latest(registry)

    def close(self) -> None:
        """Remove the directory if it was made here; twice is fine."""
        if self._made is not None:
            self._made.cleanup()


class _Collector:
    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        workers = self._status["workers"]
        running = sum(worker["state"] == "running" for worker in workers)
        yield GaugeMetricFamily("nsq_workers", "Worker processes that run.", running)
        yield GaugeMetricFamily("nsq_workers_wanted", "Worker processes that should run.", self._status["wanted"])
        restarts = CounterMetricFamily("nsq_worker_restarts", "Workers that were replaced.", labels=["reason"])
        for reason in _REASONS:
            restarts.add_metric([reason], self._status["restarts"].get(reason, 0))
        yield restarts
        for key, (name, text) in _BY_WORKER.items():
            family = GaugeMetricFamily(name, text, labels=["worker"])
            for worker in workers:
                family.add_metric([str(worker["number"])], worker[key])
            yield family
        yield GaugeMetricFamily("nsq_supervisor_memory_bytes", "Resident memory of the supervisor.", memory_bytes())
