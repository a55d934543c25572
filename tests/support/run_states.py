"""Statuses of a pipeline's run, made without a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gnsq_like.spark.source.plan import Depth
from gnsq_like.spark.staging.offsets import TopicChannel
from gnsq_like.spark.watch.live_server import LiveServer
from gnsq_like.spark.watch.options import WatchOptions
from gnsq_like.spark.watch.run_status import Problem, RunStatus
from tests.support.pipeline_tables import START, batch

#: When the runs here began: batch 0 begins then, the others every 10 seconds.
BEGAN = START.timestamp()


class Run:
    """A run that is told what it sees, with the problems that it announced."""

    def __init__(self, **options: Any) -> None:
        self.announced: list[tuple[str, bool]] = []
        self.status = RunStatus("clicks <b>", WatchOptions(**options), BEGAN, self._announce)
        self.status.runs(BEGAN)

    def _announce(self, problem: Problem, begins: bool, at: float) -> None:
        self.announced.append((problem.name, begins))

    def wrote(self, number: int, **figures: Any) -> None:
        """Write a batch (``pipeline_tables.batch``), in a second."""
        self.status.wrote([replace(row, topic="clicks") for row in batch(number, **figures)])

    def look(
        self, seconds: float, depths: Mapping[str, int | None] | None = None, *, busy: bool = False, times: int = 1
    ) -> Mapping[str, Any]:
        """Look ``seconds`` after the beginning, so many times a second apart; the status then."""
        given = {"127.0.0.1:4150": 0} if depths is None else depths
        found = {address: Depth(count, 1) for address, count in given.items() if count is not None}
        away = [address for address, count in given.items() if count is None]
        for number in range(times):
            at = BEGAN + seconds + number
            self.status.look({TopicChannel("clicks", "table"): found}, away, is_busy=busy, duplicates=0, now=at)
        return self.status.current


@contextmanager
def running_status(run: Run, seconds: float = 120) -> Iterator[str]:
    """Context manager: a server of the run's status, so many seconds after its beginning; its address."""
    server = LiveServer(lambda: run.status.current, "127.0.0.1:0", clock=lambda: BEGAN + seconds)
    try:
        yield server.address
    finally:
        server.close()
