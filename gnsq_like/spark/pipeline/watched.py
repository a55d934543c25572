"""A run as it is watched: its status, where that is served, who hears of problems, and what is noted for later.

A run notes its state at its beginning and its end, for the time between runs: ``<metrics>/_last_run.json``. The table
of metrics only has batches: it does not say that a run found nothing, or why it failed. Readers of tables skip names
that begin with "_". Only where a path is a path: elsewhere, a run may have no credentials but Spark's, and would wait
for an answer before it begins.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from gnsq_like.durable_file import replace_file
from gnsq_like.errors import NSQError
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.faults import NotBegun, PipelineFailed
from gnsq_like.spark.pipeline.metrics import MinuteMetrics
from gnsq_like.spark.pipeline.report import newest_batch
from gnsq_like.spark.source.plan import Depth, Queue
from gnsq_like.spark.staging.offsets import TopicChannel
from gnsq_like.spark.watch.live_server import CannotServe, LiveServer
from gnsq_like.spark.watch.run_status import Problem, RunStatus

logger = logging.getLogger(__name__)


class Watch:
    """What a run reports to; belongs to its thread. Never switches."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._title = pipeline.title
        self._named = pipeline.source_options.named
        self.status = RunStatus(pipeline.title, pipeline.watch_options, time.time(), self._announce)
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

    def _announce(self, problem: Problem, begins: bool, at: float) -> None:
        if self.server is not None:
            self.server.send(
                {
                    "alert": problem.name,
                    "state": "begins" if begins else "ends",
                    "text": problem.text,
                    "pipeline": self._title,
                    "topic": problem.topic,
                    "timestamp": int(at),
                }
            )


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
    options = pipeline.watch_options
    watch = Watch(pipeline)
    if options.nothing_for is not None:
        before = newest_batch(pipeline)
        watch.status.came_before(None if before is None else before.timestamp())
    if options.http_address or options.webhook:
        try:
            watch.server = LiveServer(lambda: watch.status.current, options.http_address, options.webhook)
        except CannotServe as exc:
            raise NotBegun(str(exc)) from exc
    note_run(pipeline, watch.status.current)
    try:
        yield watch
    except NSQError as exc:
        watch.end(str(exc))
        raise
    finally:
        note_run(pipeline, watch.status.current)
        if watch.server is not None:
            watch.server.close()


# -- between runs ---------------------------------------------------------------------------------------


#: Of a status (``RunStatus.current``).
_NOTED = ("state", "started_at", "updated_at", "batches", "messages", "rejected", "filtered", "lag", "depth")


def _path(pipeline: Pipeline) -> Path | None:
    place = pipeline.place("metrics")
    return Path(place.removeprefix("file://"), "_last_run.json") if place.startswith("file://") else None


def note_run(pipeline: Pipeline, status: Mapping[str, Any]) -> None:
    """Note the status of a run that begins or ends. If that is impossible, the run goes on, and the log says why."""
    path = _path(pipeline)
    if path is None:
        return
    noted = {name: status[name] for name in _NOTED}
    noted["failure"] = next((each["text"] for each in status["problems"] if each["name"] == "failed"), "")
    noted |= {"host": socket.gethostname(), "pid": os.getpid()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(noted).encode())
    except OSError as exc:
        logger.info("the state of the run cannot be noted in %s: %s", path, exc.strerror or exc)


def last_run(pipeline: Pipeline) -> dict[str, Any] | None:
    """What the last run noted; None if nothing is known of it.

    Its "state" is "ended" or "failed"; or "running", if it has begun and not ended; or "killed", if its process was one
    of this machine and is gone.

    :raises PipelineFailed: it cannot be read
    """
    path = _path(pipeline)
    if path is None:
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise PipelineFailed(f"{path} cannot be read: {exc}") from exc
    if found["state"] not in ("ended", "failed"):
        found["state"] = "killed" if _is_gone(found["host"], found["pid"]) else "running"
    return found


def _is_gone(host: str, pid: int) -> bool:
    if host != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it is somebody else's
    return False
