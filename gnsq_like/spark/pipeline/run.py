"""A run of a pipeline: the query, what is told of it while it runs, and how it ends.

Everything between nsqd and the places is one query: the source, ``seen_at``, and the dropping of copies; ``batches``
does the rest with each batch. ``seen_at`` is the time that Spark notes for a batch before it reads it: the same for all
rows of a batch, and the same again when the batch is repeated. The watermark, up to which copies are remembered, is
on ``seen_at`` alone, so no message can be too late for it, however long ago it was published.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gevent

from gnsq_like.errors import InvalidOption, NSQError
from gnsq_like.spark import register
from gnsq_like.spark.pipeline.claim import claimed
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.faults import NotBegun, PipelineFailed, failure, sentence, spark_errors
from gnsq_like.spark.source.daemons import Daemons

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from gnsq_like.spark.pipeline.batches import BatchWriter, Written

#: What a message is known by: ids alone collide between nsqds (docs/spark.rst).
IDENTITY = ("nsqd_address", "topic", "id")

#: Seconds between two looks at the query, and at what waits in nsqd.
_LOOK_INTERVAL = 0.25
_DEPTH_INTERVAL = 2.0
#: Seconds over which the rate is measured while it runs.
_RATE_SPAN = 15.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment. Durations in seconds."""

    #: Since the query was started.
    seconds: float = 0.0
    batches: int = 0
    #: Messages that were taken, those that did not fit included, and how many those were.
    messages: int = 0
    rejected: int = 0
    #: Copies that were dropped, beside those.
    duplicates: int = 0
    #: Of bodies.
    bytes: int = 0
    #: Messages a second: lately, and in the end over the whole run.
    rate: float = 0.0
    #: How old the newest message of the last batch was when that began; None before the first.
    lag: float | None = None
    #: What waits in nsqd; None where no nsqd answers.
    depth: int | None = None
    is_over: bool = False


def run_pipeline(
    pipeline: Pipeline,
    *,
    spark: SparkSession | None = None,
    master: str | None = None,
    available_now: bool | None = None,
    watch: Callable[[Snapshot], None] | None = None,
    stop: Callable[[], bool] | None = None,
    log_level: str = "OFF",
) -> Snapshot:
    """Run a pipeline until it ends or is stopped; what it did. May switch, and blocks.

    :param spark: the session to run in; without one, that of spark-submit, or a new one that ends with the run
    :param master: which Spark a new session is on; None for this machine
    :param available_now: whether it ends when all is written that was there; None for what the pipeline says
    :param watch: called a few times a second
    :param stop: asked as often; the run ends when it says True, and what a batch had not finished comes again
    :param log_level: of Spark's own log, for a new session
    :raises InvalidOption: a schema or a place that cannot be
    :raises HTTPError: no daemon answers
    :raises JavaNotFound: there is no Java for Spark
    :raises NotBegun: Spark does not start, or another run uses the checkpoint
    :raises PipelineFailed: it ended by itself before it should have
    """
    stop = stop or _never
    daemons = Daemons(pipeline.source_options)
    daemons.prepare()  # before Spark is started, which takes long
    with (
        claimed(pipeline.place("checkpoint")),
        _own_session(pipeline, master, log_level) if spark is None else nullcontext(spark) as session,
    ):
        if stop():
            return Snapshot(is_over=True)
        run = _Run(pipeline, session, daemons)
        run.start(pipeline.available_now if available_now is None else available_now)
        try:
            return run.follow(watch or _nobody, stop)
        finally:
            run.end()


@contextmanager
def _own_session(pipeline: Pipeline, master: str | None, log_level: str) -> Iterator[SparkSession]:
    """A session that ends with the block; raises NotBegun."""
    from gnsq_like.spark.pipeline.session import open_session

    # OSError: its program, or the temporary directory.
    errors: tuple[type[Exception], ...] = (*spark_errors(), OSError)
    try:
        spark = open_session(pipeline, master, log_level)
    except errors as exc:
        on = f" on {master}" if master else ""
        raise NotBegun(f"Spark does not start{on}: {sentence(exc, pipeline.location)}") from exc
    try:
        yield spark
    finally:
        with suppress(*spark_errors()):  # its Java may have ended before
            spark.stop()


def rows_of(pipeline: Pipeline, spark: SparkSession) -> DataFrame:
    """The stream that the batches are of: the source's rows, ``seen_at``, and no copies."""
    from pyspark.sql import functions as F

    rows = spark.readStream.format("nsq").options(**pipeline.source_given).load()
    seen = rows.withColumn("seen_at", F.current_timestamp())
    if not pipeline.dedupe_within:
        return seen
    watermarked = seen.withWatermark("seen_at", f"{pipeline.dedupe_within:.3f} seconds")
    return watermarked.dropDuplicatesWithinWatermark(list(IDENTITY))


def _nobody(snapshot: Snapshot) -> None:
    return None


def _never() -> bool:
    return False


class _Run:
    """One query, from its start to its end."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession, daemons: Daemons) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self._daemons = daemons
        self._places = ", ".join(dict.fromkeys(pipeline.place(each) for each in ("data", "metrics", "checkpoint")))
        self._writer: BatchWriter | None = None
        self._query: StreamingQuery | None = None
        self._snapshot = Snapshot()
        #: Monotonic times: the start, and the last look at what waits.
        self._started = self._looked = 0.0
        #: Batches that were written and not counted yet; filled by a thread of Spark's.
        self._written: deque[Written] = deque()
        #: Monotonic time and messages so far, of the last moments.
        self._past: deque[tuple[float, int]] = deque()
        #: The last batch of which Spark's report was read, and messages that the watermark dropped.
        self._reported = -1
        self._too_late = 0

    # -- the beginning ----------------------------------------------------------------------------------

    def start(self, available_now: bool) -> None:
        """Start the query."""
        from gnsq_like.spark.pipeline.batches import BatchWriter, has_delta
        from gnsq_like.spark.pipeline.parse import schema_of

        if self._pipeline.format == "delta" and not has_delta(self._spark):
            reason = "this Spark has no Delta: install delta-spark, and add its package and extension to [spark]"
            raise InvalidOption("format", "delta", reason)
        schema = schema_of(self._spark, self._pipeline.schema) if self._pipeline.schema else None
        register(self._spark)
        checkpoint = self._pipeline.place("checkpoint")
        writer = self._writer = BatchWriter(self._pipeline, schema, self._depth, self._written.append)
        trigger = (
            {"availableNow": True} if available_now else {"processingTime": f"{self._pipeline.trigger:.3f} seconds"}
        )
        try:
            _check_clock(self._spark, checkpoint)
            self._query = (
                rows_of(self._pipeline, self._spark)
                .writeStream.queryName(self._pipeline.title)
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
        self._past.append((self._started, 0))

    def _depth(self) -> int | None:
        return self._snapshot.depth

    # -- while it runs ----------------------------------------------------------------------------------

    def follow(self, watch: Callable[[Snapshot], None], stop: Callable[[], bool]) -> Snapshot:
        """Wait for its end; the last snapshot. Raises PipelineFailed."""
        query = self._query
        assert query is not None
        try:
            while query.isActive and not stop():
                self._look()
                watch(self._snapshot)
                # Not awaitTermination: greenlets of the caller's go on meanwhile.
                gevent.sleep(_LOOK_INTERVAL)
            exc = query.exception()
            query.stop()
            self._looked = 0.0
            self._look()  # once more, at everything
            last = self._told(watch)
        except spark_errors() as error:
            if stop():
                # Who stops all processes of a service at once stops Spark's Java, too.
                return self._told(watch)
            raise failure(error, self._places) from error
        if exc is not None and not stop():
            cause = self._writer.failure if self._writer is not None and self._writer.failure is not None else exc
            raise failure(cause, self._places) from exc
        if self._too_late:
            raise PipelineFailed(
                f"{self._too_late} messages were dropped, since the clock of the driver's machine went back by more "
                f"than dedupe_within"
            )
        return last

    def end(self) -> None:
        """Stop the query; twice is fine."""
        query, self._query = self._query, None
        if query is not None:
            with suppress(*spark_errors()):  # its Java may have ended before
                query.stop()

    def _told(self, watch: Callable[[Snapshot], None]) -> Snapshot:
        """The last snapshot, after ``watch`` has it."""
        snapshot = self._snapshot
        self._snapshot = replace(
            snapshot, rate=snapshot.messages / snapshot.seconds if snapshot.seconds else 0.0, is_over=True
        )
        watch(self._snapshot)
        return self._snapshot

    def _look(self) -> None:
        now = time.monotonic()
        snapshot = self._snapshot
        while self._written:
            batch = self._written.popleft()
            snapshot = replace(
                snapshot,
                batches=snapshot.batches + 1,
                messages=snapshot.messages + batch.messages,
                rejected=snapshot.rejected + batch.rejected,
                bytes=snapshot.bytes + batch.bytes,
                lag=batch.rows[0].lag,
            )
        self._past.append((now, snapshot.messages))
        while len(self._past) > 2 and self._past[1][0] < now - _RATE_SPAN:
            self._past.popleft()
        (then, before), depth = self._past[0], snapshot.depth
        if now - self._looked > _DEPTH_INTERVAL:
            self._looked = now
            depths = self._daemons.depths()
            depth = sum(each.messages for each in depths.values()) if depths else None
            if self._query is not None:
                self._read_reports(self._query)
        self._snapshot = replace(
            snapshot,
            seconds=now - self._started,
            rate=(snapshot.messages - before) / (now - then) if now > then else 0.0,
            depth=depth,
            duplicates=self._snapshot.duplicates,
        )

    def _read_reports(self, query: StreamingQuery) -> None:
        """Spark's own counts: of copies, and of what the watermark dropped."""
        duplicates = self._snapshot.duplicates
        for report in query.recentProgress:
            if report["batchId"] <= self._reported:
                continue
            self._reported = report["batchId"]
            for operator in report["stateOperators"]:
                duplicates += operator["customMetrics"].get("numDroppedDuplicateRows", 0)
                self._too_late += operator["numRowsDroppedByWatermark"]
        self._snapshot = replace(self._snapshot, duplicates=duplicates)


def _check_clock(spark: SparkSession, checkpoint: str) -> None:
    """Refuse to go on with a clock that is behind what was written: Spark would drop messages as too late."""
    from gnsq_like.spark.pipeline import paths

    log = f"{checkpoint}/offsets"
    batches = [int(name) for name in paths.names(spark, log) if name.isdigit()]
    if not batches:
        return
    last = max(batches)
    lines = paths.read(spark, f"{log}/{last}").splitlines()
    noted: dict[str, Any] = json.loads(lines[1]) if len(lines) > 1 else {}
    watermark = noted.get("batchWatermarkMs", 0) / 1000
    if watermark > time.time():
        raise NotBegun(
            f"the clock of this machine is {watermark - time.time():.0f} s behind what the checkpoint {checkpoint} has "
            f"noted, beyond dedupe_within: Spark would drop messages as too late. Set the clock right"
        )
    planned = noted.get("batchTimestampMs", 0) / 1000
    if planned < watermark and str(last) not in paths.names(spark, f"{checkpoint}/commits"):
        raise NotBegun(
            f"batch {last} of {checkpoint} was planned while the clock of this machine was {watermark - planned:.0f} s "
            f"behind, beyond dedupe_within: Spark would drop its messages as too late. In {log}/{last}, set "
            f"batchTimestampMs to {time.time() * 1000:.0f}, and delete {log}/.{last}.crc"
        )
