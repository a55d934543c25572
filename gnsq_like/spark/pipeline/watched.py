"""A run as it is watched: its status, and where that is served."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from gnsq_like.errors import NSQError
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.faults import NotBegun
from gnsq_like.spark.pipeline.metrics import MinuteMetrics
from gnsq_like.spark.pipeline.report import newest_batch
from gnsq_like.spark.source.plan import Depth, Queue
from gnsq_like.spark.staging.offsets import TopicChannel
from gnsq_like.spark.watch.live_server import CannotServe, LiveServer
from gnsq_like.spark.watch.run_status import RunStatus


class Watch:
    """What a run reports to; belongs to its thread. Never switches."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._named = pipeline.source_options.named
        self.status = RunStatus(pipeline.title, pipeline.limit_options, time.time())
        self.server: LiveServer | None = None

    @property
    def address(self) -> str:
        """Where the status is served; "" for nowhere."""
        return self.server.address if self.server is not None else ""

    def wrote(self, rows: Sequence[MinuteMetrics]) -> None:
        """A batch was written."""
        self.status.wrote(rows)
        self.status.renew(time.time())

    def runs(self) -> None:
        """The query was started."""
        self.status.runs(time.time())

    def did(self, report: Mapping[str, Any]) -> None:
        """Spark reports a batch, perhaps an empty one."""
        began = datetime.fromisoformat(report["timestamp"]).timestamp()
        self.status.is_ready(began + report["durationMs"].get("triggerExecution", 0) / 1000)

    def look(self, depths: Mapping[Queue, Depth], away: Collection[str], *, duplicates: int, is_busy: bool) -> None:
        """How much waits in each nsqd (``RunStatus.look``)."""
        found = by_topic(self._named, depths)
        self.status.look(found, away, is_busy=is_busy, duplicates=duplicates, now=time.time())

    def end(self, failure: str = "") -> None:
        """The run is over."""
        self.status.end(time.time(), failure)

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong now, as sentences."""
        return tuple(problem.text for problem in self.status.problems)


def by_topic(named: Sequence[TopicChannel], depths: Mapping[Queue, Depth]) -> dict[TopicChannel, dict[str, Depth]]:
    """Depths by topic with its channel, and nsqd; also of named topics that no nsqd has."""
    found: dict[TopicChannel, dict[str, Depth]] = {of: {} for of in named}
    for queue, depth in depths.items():
        found.setdefault(queue.of, {})[queue.address] = depth
    return found


@contextmanager
def watched(pipeline: Pipeline) -> Iterator[Watch]:
    """Watch a run during the block.

    :raises NotBegun: its status cannot be served
    """
    watch = Watch(pipeline)
    if pipeline.limit_options.nothing_for is not None:
        before = newest_batch(pipeline)
        watch.status.came_before(None if before is None else before.timestamp())
    if pipeline.http_address:
        try:
            watch.server = LiveServer(lambda: watch.status.current, pipeline.http_address)
        except CannotServe as exc:
            raise NotBegun(str(exc)) from exc
    try:
        yield watch
    except NSQError as exc:
        watch.end(str(exc))
        raise
    finally:
        if watch.server is not None:
            watch.server.close()
