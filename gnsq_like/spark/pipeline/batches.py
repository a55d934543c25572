"""Writing a batch: its messages are counted, those that fit are written, and the others rejected.

The docstring of the package explains the order, and why a repeated batch writes the same content.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from gnsq_like.spark.pipeline import kept_schema, metrics, paths
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.dead_letters import DDL, DescribeRejected
from gnsq_like.spark.pipeline.faults import PipelineFailed, sentence
from gnsq_like.spark.pipeline.metrics import GROWTH, MOST_ATTEMPTS, SHORTEST, Group, MinuteMetrics
from gnsq_like.spark.pipeline.parse import FITS, PARSED, parse
from gnsq_like.spark.pipeline.reachable import check_sink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: Smaller batches do not show whether a schema is wrong.
LEAST_TO_JUDGE = 100
#: The columns that are kept beside the body.
KEPT = ("id", "timestamp", "attempts", "topic", "channel", "nsqd_address", "seen_at")
#: Seconds that a batch waits for the id of its query: it may begin before start() has returned.
_PATIENCE = 60.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """A batch that was written."""

    number: int
    rows: list[MinuteMetrics]

    @property
    def messages(self) -> int:
        """The number of messages, including rejected ones."""
        return sum(row.messages for row in self.rows)

    @property
    def rejected(self) -> int:
        """The number of rejected messages."""
        return sum(row.rejected for row in self.rows)

    @property
    def bytes(self) -> int:
        """The bytes of bodies."""
        return sum(row.bytes for row in self.rows)


class BatchWriter:
    """A function for ``foreachBatch``.

    :param schema: the schema of the JSON objects; None keeps bodies as they are
    :param depth: returns how many messages wait in nsqd now, or None if that is not known
    :param on_written: called after each batch, in a thread of Spark
    :param clock: returns the time of day, as Spark sees it
    """

    def __init__(
        self,
        pipeline: Pipeline,
        schema: StructType | None,
        depth: Callable[[], int | None],
        on_written: Callable[[WrittenBatch], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pipeline = pipeline
        self._schema = schema
        self._depth = depth
        self._on_written = on_written
        self._clock = clock
        #: The latest time of day when a batch began.
        self._latest = 0.0
        #: Whether the table has the schema of its rows beside it.
        self._is_schema_kept = False
        self._query_id = ""
        self._is_named = threading.Event()
        #: The error of the last batch; Spark only keeps its text.
        self.failure: Exception | None = None

    def belongs_to(self, query_id: str) -> None:
        """Set the query of the batches; its id stays the same as long as its checkpoint exists."""
        self._query_id = query_id
        self._is_named.set()

    def __call__(self, rows: DataFrame, number: int) -> None:
        try:
            if not self._is_named.wait(_PATIENCE):
                raise PipelineFailed("Spark has not started the query of a batch")
            self._check_clock()
            self._write(rows, number)
        except Exception as exc:
            self.failure = exc
            # Not the whole text: when Spark stops a query, it searches the error with a regular expression, which
            # overflows Java's stack for long texts from py4j.
            raise PipelineFailed(sentence(exc, self._pipeline.location)) from None

    def _check_clock(self) -> None:
        """Raise PipelineFailed if Spark has dropped messages of this batch as too late; the stage still has them."""
        now = self._clock()
        back = self._latest - now
        if 0 < self._pipeline.dedupe_within < back:
            raise PipelineFailed(
                f"the clock of the driver's machine went back by {back:.0f} s, more than dedupe_within: Spark would "
                f"drop new messages as too late. Set the clock right"
            )
        self._latest = max(self._latest, now)

    def _write(self, rows: DataFrame, number: int) -> None:
        spark = rows.sparkSession
        batch = parse(rows, self._schema, self._pipeline.timestamp_unit).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            seen_at, groups = count(batch)
            if seen_at is None:
                return
            messages = sum(group.messages for group in groups)
            rejected = sum(group.messages for group in groups if not group.fits)
            self._judge(batch, messages, rejected)
            self._write_data(batch.where(FITS), number, seen_at, messages - rejected)
            self._write_rejected(batch.where(~F.col(FITS)), number, seen_at, rejected)
            made = metrics.fold(
                groups, batch_number=number, seen_at=seen_at, written_at=datetime.now(UTC), depth=self._depth()
            )
            table = spark.createDataFrame([metrics.row_of(row) for row in made], metrics.DDL)
            paths.write_parquet(table.coalesce(1), self._path("metrics", seen_at, number))
        finally:
            batch.unpersist()
        self._on_written(WrittenBatch(number, made))

    def _path(self, table: str, seen_at: datetime, number: int) -> str:
        return paths.batch_path(self._pipeline.place(table), seen_at, paths.batch_name(self._query_id, number))

    def _judge(self, batch: DataFrame, messages: int, rejected: int) -> None:
        """Raise PipelineFailed if so many messages are rejected that the schema must be wrong."""
        if messages < LEAST_TO_JUDGE or rejected <= self._pipeline.stop_above * messages:
            return
        described = self._described(batch.where(~F.col(FITS)).limit(1000))
        why, _ = max(
            ((row["reason"], row["count"]) for row in described.groupBy("reason").count().collect()),
            key=lambda each: each[1],
        )
        raise PipelineFailed(
            f"the schema must be wrong: {rejected} of {messages} messages of a batch do not fit it, mostly because "
            f"{why}. Nothing of the batch was written: correct parse.schema and start again, or raise parse.stop_above "
            f"to reject them"
        )

    def _write_data(self, rows: DataFrame, number: int, seen_at: datetime, count: int) -> None:
        table = rows.select(F.col(PARSED).alias("body"), *KEPT)
        if self._pipeline.format == "delta":
            self._append_delta(table, number, seen_at)
            return
        path = self._path("data", seen_at, number)
        if count:
            if not self._is_schema_kept:
                kept_schema.keep(rows.sparkSession, self._pipeline.place("data"), self._schema)
                self._is_schema_kept = True
            paths.write_parquet(table, path)
        else:
            paths.remove(rows.sparkSession, path)

    def _append_delta(self, table: DataFrame, number: int, seen_at: datetime) -> None:
        at = seen_at.astimezone(UTC)
        dated = table.withColumn("date", F.lit(at.date())).withColumn("hour", F.lit(at.hour))
        # Delta remembers the numbers that each application has written, and leaves out a repeated one.
        writer = dated.write.format("delta").mode("append").partitionBy("date", "hour")
        writer.option("txnAppId", self._query_id).option("txnVersion", number).save(self._pipeline.place("data"))

    def _write_rejected(self, rows: DataFrame, number: int, seen_at: datetime, count: int) -> None:
        path = self._path("rejected", seen_at, number)
        if not count:
            # An earlier attempt may have written there, with another schema.
            paths.remove(rows.sparkSession, path)
            return
        described = self._described(rows)
        paths.write_parquet(described.drop("letter"), path)
        options = self._pipeline.sink_options
        if options is not None:
            check_sink(options)  # Spark's tasks would try for minutes
            letters = described.select(F.col("letter").alias("body"))
            letters.write.format("nsq").options(**self._pipeline.dead_letters_given).mode("append").save()

    def _described(self, rows: DataFrame) -> DataFrame:
        """Rejected rows with the reason and the dead letter of each."""
        assert self._schema is not None  # without one everything fits
        options = self._pipeline.sink_options
        most = options.longest_body if options is not None else 2**31
        describing = DescribeRejected(
            self._schema, most, self._pipeline.place("rejected"), self._pipeline.timestamp_unit
        )
        describe = F.udf(describing, DDL, useArrow=False)
        described = describe(
            "id",
            "body",
            F.unix_micros("timestamp"),
            "attempts",
            "topic",
            "channel",
            "nsqd_address",
            F.unix_micros("seen_at"),
        )
        return rows.select("body", *KEPT, described.alias("described")).select("body", *KEPT, "described.*")


def count(batch: DataFrame) -> tuple[datetime | None, list[Group]]:
    """When the batch began (None if it is empty), and its messages in groups."""
    # In microseconds, since the type of a timestamp difference depends on settings.
    published, seen = F.unix_micros("timestamp"), F.unix_micros("seen_at")
    latency = seen - published
    keys = {
        "minute": F.floor(published / 60_000_000) * 60,
        "attempts": F.least(F.col("attempts"), F.lit(MOST_ATTEMPTS)),
        "latency_class": _class_of(latency),
        "fits": F.col(FITS),
    }
    counted = (
        batch.groupBy(*[column.alias(name) for name, column in keys.items()])
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum(F.octet_length("body")).alias("bytes"),
            F.min(latency).alias("shortest_us"),
            F.max(latency).alias("longest_us"),
            F.max(seen).alias("seen_us"),
        )
        .collect()
    )
    if not counted:
        return None, []
    values = [row.asDict() for row in counted]
    seen_us = max(row.pop("seen_us") for row in values)
    return _EPOCH + timedelta(microseconds=seen_us), [Group(**row) for row in values]


def _class_of(latency_us: Column) -> Column:
    """``metrics.CLASSES.index`` in Spark."""
    steps = F.log(latency_us / (SHORTEST * 1e6)) / F.log(F.lit(GROWTH))
    return F.when(latency_us < SHORTEST * 1e6, 0).otherwise(1 + F.floor(steps)).cast("int")


def has_delta(spark: SparkSession) -> bool:
    """Whether Spark can write Delta tables."""
    loader: Any = spark.sparkContext._jvm
    try:
        loader.java.lang.Class.forName(
            "io.delta.sql.DeltaSparkSessionExtension",
            False,
            loader.java.lang.Thread.currentThread().getContextClassLoader(),
        )
    except Exception:  # py4j's, for a class that does not exist
        return False
    return True
