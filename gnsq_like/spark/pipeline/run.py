"""A run of a pipeline: its query, the reports while it runs, and its end.

One query does everything between nsqd and the tables. Its tasks write files and report them (``writing``), the source's
own tasks if Spark has nothing to do in between; ``batches`` makes these files part of the tables. ``seen_at`` is the
time when a batch was planned, which the checkpoint has: the same for all rows of a batch, and the same again when the
batch is repeated.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import gevent

from gnsq_like.errors import NSQError
from gnsq_like.spark import register
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.faults import NotBegun, failure, sentence, spark_errors
from gnsq_like.spark.pipeline.maintenance import Leisure
from gnsq_like.spark.pipeline.owners import claimed
from gnsq_like.spark.pipeline.reachable import check_sink
from gnsq_like.spark.pipeline.repair import check_checkpoint
from gnsq_like.spark.pipeline.status import RunStatus, served
from gnsq_like.spark.pipeline.transform import load_function
from gnsq_like.spark.source.nsqds import Nsqds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from gnsq_like.spark.pipeline.batches import BatchWriter
    from gnsq_like.spark.pipeline.metrics import MinuteMetrics

logger = logging.getLogger(__name__)

#: Seconds between two checks of the query, and of nsqd's depth.
_CHECK_INTERVAL = 0.25
_DEPTH_INTERVAL = 2.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment. Durations are in seconds."""

    #: The time since the query was started.
    seconds: float = 0.0
    batches: int = 0
    #: All messages, and how many of them were rejected.
    messages: int = 0
    rejected: int = 0
    #: Bytes of bodies.
    bytes: int = 0
    #: Messages a second: over the last minute, or over the whole run when it is over.
    rate: float = 0.0
    #: The age of the newest message in the table as long as others wait, else 0; None if that is not known.
    lag: float | None = None
    #: How many messages wait in nsqd; None if no nsqd answers.
    depth: int | None = None
    is_over: bool = False
    #: Where metrics are served; "" for nowhere.
    http_address: str = ""


def run_pipeline(
    pipeline: Pipeline,
    *,
    spark: SparkSession | None = None,
    master: str | None = None,
    available_now: bool | None = None,
    watch: Callable[[Snapshot], None] | None = None,
    stop: Callable[[], bool] | None = None,
    log_level: str = "OFF",
    adopt: bool = False,
) -> Snapshot:
    """Run a pipeline until it ends or is stopped, and return its last snapshot. May switch, and blocks.

    :param spark: the session to run in; without one, that of spark-submit, or a new one that ends with the run
    :param master: the Spark of a new session; None for this machine
    :param available_now: whether to end once the present messages are written; None for the pipeline's own setting
    :param watch: called with a snapshot a few times a second
    :param stop: called as often; the run ends when it returns True, and an unfinished batch is repeated next time
    :param log_level: the level of Spark's own log, for a new session
    :param adopt: take over tables and staged messages of a pipeline that has ended for good or lost its checkpoint
    :raises InvalidOption: the schema or a place is wrong
    :raises NSQError: no daemon of the source answers
    :raises NoDeadLetterNsqd: none takes dead letters
    :raises JavaNotFound: there is no Java for Spark
    :raises NotBegun: Spark does not start, another run uses the checkpoint, or a table is another pipeline's or gone
    :raises PipelineFailed: the run ended by itself
    """
    watch = watch or (lambda snapshot: None)
    stop = stop or (lambda: False)
    if adopt:
        pipeline = replace(pipeline, source={**pipeline.source, "unfinished_log": "adopt"})
    # All of this before Spark is started, which takes a while.
    check_functions(pipeline)
    daemons = Nsqds(pipeline.source_options)
    for doubt in daemons.doubts():
        logger.warning("%s: %s", pipeline.title, doubt)
    daemons.prepare()
    if pipeline.sink_options is not None:
        check_sink(pipeline.sink_options)
    check_checkpoint(pipeline)
    status = RunStatus(pipeline.title)
    with claimed(pipeline.place("checkpoint")), served(status, pipeline.http_address) as address:
        if address:
            watch(Snapshot(http_address=address))
        with session_for(pipeline, spark, master, log_level) as session:
            if stop():
                return Snapshot(is_over=True)
            run = _Run(pipeline, session, daemons, status, address)
            run.start(pipeline.available_now if available_now is None else available_now, adopt)
            try:
                return run.follow(watch, stop)
            finally:
                run.end()


def check_functions(pipeline: Pipeline) -> None:
    """Raise InvalidOption for functions that cannot be imported; does not need Spark."""
    for each in (pipeline, *map(pipeline.for_topic, pipeline.topics)):
        load_function(each.transform, "transform")


@contextmanager
def session_for(
    pipeline: Pipeline, spark: SparkSession | None, master: str | None, log_level: str
) -> Iterator[SparkSession]:
    """The caller's session, or a new one that ends with the block; raises NotBegun."""
    if spark is not None:
        if type(spark).__module__.startswith("pyspark.sql.connect."):
            raise NotBegun(
                "a session of Spark Connect cannot run a pipeline, which needs the driver in its own process: give it "
                "a session of SparkSession.builder.master(...), or none"
            )
        yield spark
        return
    from gnsq_like.spark.pipeline.session import open_session

    # OSError: for Spark's program, or the temporary directory.
    errors: tuple[type[Exception], ...] = (*spark_errors(), OSError)
    try:
        spark = open_session(pipeline, master, log_level)
    except errors as exc:
        on = f" on {master}" if master else ""
        raise NotBegun(f"Spark does not start{on}: {sentence(exc, pipeline.location)}") from exc
    try:
        yield spark
    finally:
        with suppress(*spark_errors()):  # its Java may be gone
            spark.stop()


class _Run:
    """One query from start to end."""

    def __init__(
        self, pipeline: Pipeline, spark: SparkSession, daemons: Nsqds, status: RunStatus, address: str
    ) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self._daemons = daemons
        places = [pipeline.place(each) for each in ("data", "metrics", "checkpoint")]
        self._places = ", ".join(dict.fromkeys([*places, pipeline.source_options.staging_location]))
        self._writer: BatchWriter | None = None
        self._leisure = Leisure(pipeline)
        self._query: StreamingQuery | None = None
        self._status = status
        self._snapshot = Snapshot(http_address=address)
        #: Monotonic times of the start, and of the last check of nsqd's depth.
        self._started = self._depth_at = 0.0
        #: The metrics of batches that were written and not counted yet; a thread of Spark fills it.
        self._written: deque[list[MinuteMetrics]] = deque()

    def start(self, available_now: bool, adopt: bool) -> None:
        """Start the query."""
        from gnsq_like.spark.pipeline.batches import BatchWriter
        from gnsq_like.spark.pipeline.owners import Owner
        from gnsq_like.spark.pipeline.selecting import stream_of

        checkpoint = self._pipeline.place("checkpoint")
        owner = Owner(checkpoint, adopt=adopt)
        trigger = (
            {"availableNow": True} if available_now else {"processingTime": f"{self._pipeline.trigger:.3f} seconds"}
        )
        register(self._spark)
        try:
            rows, plan = stream_of(self._pipeline, self._spark)
            writer = BatchWriter(self._pipeline, plan, lambda: self._snapshot.depth, self._written.append, owner=owner)
            writer.check()
            self._writer = writer
            self._query = (
                rows.writeStream.queryName(self._pipeline.title)
                .option("checkpointLocation", checkpoint)
                .foreachBatch(writer)
                .trigger(**trigger)
                .start()
            )
        except NSQError:
            raise
        except Exception as exc:
            raise failure(exc, self._places) from exc
        writer.belongs_to(self._query.id)
        self._started = time.monotonic()

    def follow(self, watch: Callable[[Snapshot], None], stop: Callable[[], bool]) -> Snapshot:
        """Wait until the query ends, and return the last snapshot. Raises PipelineFailed."""
        query = self._query
        assert query is not None
        try:
            while query.isActive and not stop():
                self._check()
                self._leisure.check()
                watch(self._snapshot)
                # Not awaitTermination, which would block the caller's other greenlets.
                gevent.sleep(_CHECK_INTERVAL)
            exc = query.exception()
            query.stop()
            self._depth_at = 0.0
            self._check()  # the last time, with the depth
            last = self._last_snapshot(watch)
        except spark_errors() as error:
            if stop():
                # A service that stops all its processes at once stops Spark's Java, too.
                return self._last_snapshot(watch)
            raise failure(error, self._places) from error
        if exc is not None and not stop():
            cause = self._writer.failure if self._writer is not None and self._writer.failure is not None else exc
            raise failure(cause, self._places) from exc
        return last

    def end(self) -> None:
        """Stop the query, unless it has ended, and the care of the tables."""
        self._leisure.stop()
        if self._query is not None:
            with suppress(*spark_errors()):  # its Java may be gone
                self._query.stop()

    def _last_snapshot(self, watch: Callable[[Snapshot], None]) -> Snapshot:
        snapshot = self._snapshot
        self._snapshot = replace(
            snapshot,
            rate=snapshot.messages / snapshot.seconds if snapshot.seconds else 0.0,
            is_over=True,
        )
        watch(self._snapshot)
        return self._snapshot

    def _check(self) -> None:
        """Report the batches that were written, and ask nsqd for its depth from time to time."""
        now = time.monotonic()
        while self._written:
            self._status.wrote(self._written.popleft())
        if now - self._depth_at > _DEPTH_INTERVAL:
            self._depth_at = now
            self._status.look(self._daemons.depths(), self._daemons.away)
        status = self._status
        self._snapshot = replace(
            self._snapshot,
            **status.written._asdict(),
            batches=status.batches,
            rate=status.rate(),
            lag=status.lag,
            depth=status.depth,
            seconds=now - self._started,
        )
