"""The metrics that several processes write in prometheus-client's multiprocess mode."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from contextlib import suppress

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector


class WorkerFiles(MultiProcessCollector):
    """prometheus-client's collector, which skips a file that a process is just creating.

    For a moment that file is empty, and prometheus-client's own collector raises struct.error then: a scrape while
    workers start would fail.

    :param directory: of the files; None for the environment's PROMETHEUS_MULTIPROC_DIR
    """

    def __init__(self, registry: CollectorRegistry, directory: str | None = None) -> None:
        super().__init__(registry, directory)  # type: ignore[no-untyped-call]

    def collect(self) -> Iterable[Metric]:
        """For the registry: the metrics of all processes."""
        found = []
        for path in glob.glob(os.path.join(self._path, "*.db")):
            with suppress(FileNotFoundError):  # gauges of a process that has ended
                if os.path.getsize(path):
                    found.append(path)
        merged: Iterable[Metric] = self.merge(found)  # type: ignore[no-untyped-call]
        return merged
