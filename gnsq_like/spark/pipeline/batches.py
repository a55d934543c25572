"""What is done with a batch: it is counted, written, and what does not fit laid aside.

The package's head says why a batch that is repeated writes the same, and the order.
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

from gnsq_like.spark.pipeline import metrics, paths
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.dead_letters import DDL, Describe
from gnsq_like.spark.pipeline.faults import PipelineFailed, sentence
from gnsq_like.spark.pipeline.metrics import GROWTH, MOST_ATTEMPTS, SHORTEST, Group, MinuteMetrics
from gnsq_like.spark.pipeline.parse import FITS, PARSED, parse

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: A smaller batch is too small to tell that a schema is wrong.
LEAST_TO_JUDGE = 100
#: What is kept of a message beside its body.
KEPT = ("id", "timestamp", "attempts", "topic", "channel", "nsqd_address", "seen_at")
#: Seconds that a batch waits to hear of its query: it may begin before start() returned.
_PATIENCE = 60.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Written:
    """A batch that was written."""

    number: int
    rows: list[MinuteMetrics]

    @property
    def messages(self) -> int:
        """All of them, those that were rejected included."""
        return sum(row.messages for row in self.rows)

    @property
    def rejected(self) -> int:
        """Those that did not fit."""
        return sum(row.rejected for row in self.rows)

    @property
    def bytes(self) -> int:
        """Of bodies."""
        return sum(row.bytes for row in self.rows)


class BatchWriter:
    """For ``foreachBatch``.

    :param schema: of the JSON objects; None keeps bodies as they are
    :param depth: what waits in nsqd now, or None
    :param written: called after each batch, in a thread of Spark's
    :param clock: the time of day that Spark has, too
    """

    def __init__(
        self,
        pipeline: Pipeline,
        schema: StructType | None,
        depth: Callable[[], int | None],
        written: Callable[[Written], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pipeline = pipeline
        self._schema = schema
        self._depth = depth
        self._tell = written
        self._clock = clock
        #: The latest time of day at which a batch began.
        self._latest = 0.0
        self._query_id = ""
        self._is_named = threading.Event()
        #: What went wrong; Spark itself makes a text of it.
        self.failure: Exception | None = None

    def belongs_to(self, query_id: str) -> None:
        """The query that the batches are of; its id stays the same as long as its checkpoint is there."""
        self._query_id = query_id
        self._is_named.set()

    def __call__(self, rows: DataFrame, number: int) -> None:
        try:
            if not self._is_named.wait(_PATIENCE):
                raise PipelineFailed("Spark did not say which query a batch belongs to")
            self._check_clock()
            self._write(rows, number)
        except Exception as exc:
            self.failure = exc
            # Not the whole of it: while it stops a query, Spark looks through the text of an error with a regular
            # expression that a long one of py4j's overflows its stack with.
            raise PipelineFailed(sentence(exc, self._pipeline.location)) from None

    def _check_clock(self) -> None:
        """Raise PipelineFailed if Spark has dropped this batch's messages as too late; they are in the stage yet."""
        now = self._clock()
        back = self._latest - now
        if 0 < self._pipeline.dedupe_within < back:
            raise PipelineFailed(
                f"the clock of the driver's machine went back by {back:.0f} s, more than dedupe_within: Spark takes "
                f"what comes for too late. Set the clock right"
            )
        self._latest = max(self._latest, now)

    def _write(self, rows: DataFrame, number: int) -> None:
        spark = rows.sparkSession
        batch = parse(rows, self._schema).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            seen_at, groups = count(batch)
            if seen_at is None:
                return
            messages = sum(group.messages for group in groups)
            rejected = sum(group.messages for group in groups if not group.fits)
            self._judge(batch, messages, rejected)
            name = paths.batch_name(self._query_id, number)
            self._write_data(batch.where(FITS), number, seen_at, name, messages - rejected)
            self._write_rejected(batch.where(~F.col(FITS)), seen_at, name, rejected)
            made = metrics.fold(
                groups, batch_number=number, seen_at=seen_at, written_at=datetime.now(UTC), depth=self._depth()
            )
            table = spark.createDataFrame([metrics.row_of(row) for row in made], metrics.DDL)
            paths.write_parquet(table.coalesce(1), self._place("metrics", seen_at, name))
        finally:
            batch.unpersist()
        self._tell(Written(number, made))

    def _place(self, table: str, seen_at: datetime, name: str) -> str:
        return paths.place_of(self._pipeline.place(table), seen_at, name)

    def _judge(self, batch: DataFrame, messages: int, rejected: int) -> None:
        """Raise PipelineFailed if it is the schema that does not fit, and not a few messages."""
        if messages < LEAST_TO_JUDGE or rejected <= self._pipeline.stop_above * messages:
            return
        described = self._described(batch.where(~F.col(FITS)).limit(1000))
        why, _ = max(
            ((row["reason"], row["count"]) for row in described.groupBy("reason").count().collect()),
            key=lambda each: each[1],
        )
        raise PipelineFailed(
            f"the schema does not fit: {rejected} of {messages} messages of a batch are not what it says, mostly "
            f"because {why}. Nothing of the batch was written: correct parse.schema and start again, or raise "
            f"parse.stop_above to reject them"
        )

    def _write_data(self, rows: DataFrame, number: int, seen_at: datetime, name: str, count: int) -> None:
        table = rows.select(F.col(PARSED).alias("body"), *KEPT)
        if self._pipeline.format == "delta":
            self._append_delta(table, number, seen_at)
            return
        place = self._place("data", seen_at, name)
        if count:
            paths.write_parquet(table, place)
        else:
            paths.remove(rows.sparkSession, place)

    def _append_delta(self, table: DataFrame, number: int, seen_at: datetime) -> None:
        at = seen_at.astimezone(UTC)
        dated = table.withColumn("date", F.lit(at.date())).withColumn("hour", F.lit(at.hour))
        # Delta itself keeps which numbers it has of which application, and leaves out what comes again.
        writer = dated.write.format("delta").mode("append").partitionBy("date", "hour")
        writer.option("txnAppId", self._query_id).option("txnVersion", number).save(self._pipeline.place("data"))

    def _write_rejected(self, rows: DataFrame, seen_at: datetime, name: str, count: int) -> None:
        place = self._place("rejected", seen_at, name)
        if not count:
            # One of an earlier try, with another schema, perhaps.
            paths.remove(rows.sparkSession, place)
            return
        described = self._described(rows)
        paths.write_parquet(described.drop("letter"), place)
        if self._pipeline.dead_letters:
            letters = described.select(F.col("letter").alias("body"))
            letters.write.format("nsq").options(**self._pipeline.dead_letters_given).mode("append").save()

    def _described(self, rows: DataFrame) -> DataFrame:
        assert self._schema is not None  # without one everything fits
        options = self._pipeline.sink_options
        most = options.longest_body if options is not None else 2**31
        describe = F.udf(Describe(self._schema, most, self._pipeline.place("rejected")), DDL, useArrow=False)
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
    """When the batch began (None: it is empty), and its messages, counted."""
    # In microseconds, since what arithmetic with timestamps gives depends on settings.
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
    """``metrics.CLASSES.index`` as Spark computes it."""
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
    except Exception:  # py4j's, of a class that is not there
        return False
    return True
