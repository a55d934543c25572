"""Writing a batch: its messages are counted, those that fit are written, and the others rejected.

If topics have tables of their own, these are written one by one; rejected messages and metrics of all topics follow.

The docstring of the package explains the order, and why a repeated batch writes the same content.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from gnsq_like.spark.pipeline import metrics, paths
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.dead_letters import DDL, DescribeRejected
from gnsq_like.spark.pipeline.faults import PipelineFailed, sentence
from gnsq_like.spark.pipeline.metrics import GROWTH, MOST_ATTEMPTS, SHORTEST, Group, MinuteMetrics
from gnsq_like.spark.pipeline.owners import Owner
from gnsq_like.spark.pipeline.parse import WHY
from gnsq_like.spark.pipeline.reachable import check_sink
from gnsq_like.spark.pipeline.targets import Reading, TableWriter, Target, Targets
from gnsq_like.spark.pipeline.transform import PART, Transform, is_of_data, key_of
from gnsq_like.spark.sink import Publishing
from gnsq_like.spark.tasks import run_in_tasks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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
    def filtered(self) -> int:
        """The number of messages of which the transformation left nothing."""
        return sum(row.filtered for row in self.rows)


@dataclass(frozen=True)
class _Written:
    """What a transformation has made of the messages of a table."""

    #: The messages that have rows, by topic and minute.
    left: Counter[tuple[str, int]] = field(default_factory=Counter)
    #: Those for which it fails (``transform.key_of``), with the reason of each.
    refused: dict[str, str] = field(default_factory=dict)


class BatchWriter:
    """A function for ``foreachBatch``.

    :param depth: returns how many messages wait in nsqd now, or None if that is not known
    :param on_written: called after each batch, in a thread of Spark
    :param owner: whose tables must be; None for anybody's
    """

    def __init__(
        self,
        pipeline: Pipeline,
        depth: Callable[[], int | None],
        on_written: Callable[[WrittenBatch], None],
        owner: Owner | None = None,
    ) -> None:
        self._owner = owner
        self._pipeline = pipeline
        self._targets = Targets(pipeline)
        #: By the topic; None for all.
        self._tables: dict[str | None, TableWriter] = {}
        self._depth = depth
        self._on_written = on_written
        self._query_id = ""
        self._is_named = threading.Event()
        #: The error of the last batch; Spark only keeps its text.
        self.failure: Exception | None = None

    def check(self, spark: SparkSession) -> None:
        """Raise InvalidOption if readers could not read one of the tables once it has new rows."""
        for target in self._targets.known():
            self._table(target, spark).check(spark)
        # Also for topics that are not known yet.
        schema = self._targets.readings[-1].schema
        if self._pipeline.transform:
            Transform(self._pipeline.transform).check(spark, schema, KEPT)

    def belongs_to(self, query_id: str) -> None:
        """Set the query of the batches; its id stays the same as long as its checkpoint exists."""
        self._query_id = query_id
        self._is_named.set()

    def __call__(self, rows: DataFrame, number: int) -> None:
        try:
            if not self._is_named.wait(_PATIENCE):
                raise PipelineFailed("Spark has not started the query of a batch")
            self._write(rows, number)
        except Exception as exc:
            self.failure = exc
            # Not the whole text: when Spark stops a query, it searches the error with a regular expression, which
            # overflows Java's stack for long texts from py4j.
            raise PipelineFailed(sentence(exc, self._pipeline.location)) from None

    def _write(self, rows: DataFrame, number: int) -> None:
        spark = rows.sparkSession
        paths.settle(spark)
        parsed = batch = self._targets.parse(rows).persist(StorageLevel.DISK_ONLY)
        try:
            seen_at, groups = count(batch)
            if seen_at is None:
                return
            shares = self._shares(groups)
            for target, (messages, rejected) in shares:
                self._judge(batch, target, messages, rejected)
            if self._pipeline.archive:
                paths.write_parquet(batch.select("body", *KEPT), self._path("archive", seen_at, number))
            left: Counter[tuple[str, int]] = Counter()
            refused: dict[str, str] = {}
            for target, (messages, rejected) in shares:
                found = self._write_table(batch, target, number, seen_at, messages - rejected)
                left += found.left
                refused |= found.refused
            if refused:
                reasons = F.create_map(*[F.lit(each) for item in refused.items() for each in item])
                batch = batch.withColumn(WHY, F.coalesce(WHY, reasons[key_of()]))
                _, groups = count(batch)
            self._write_rejected(batch, number, seen_at, sum(each.messages for each in groups if not each.fits))
            made = metrics.fold(
                groups,
                batch_number=number,
                seen_at=seen_at,
                written_at=datetime.now(UTC),
                depth=self._depth(),
                filtered=self._filtered(groups, left),
            )
            table = spark.createDataFrame([metrics.row_of(row) for row in made], metrics.DDL)
            paths.write_parquet(table.coalesce(1), self._path("metrics", seen_at, number))
        finally:
            parsed.unpersist()
        self._on_written(WrittenBatch(number, made))

    def _path(self, table: str, seen_at: datetime, number: int) -> str:
        return paths.batch_path(self._pipeline.place(table), seen_at, paths.batch_name(self._query_id, number))

    def _table(self, target: Target, spark: SparkSession) -> TableWriter:
        """The writer of a target's table. Raises InvalidOption if its transformation cannot be used."""
        if target.topic not in self._tables:
            schema = target.reading.schema
            if target.transform is not None:
                schema = target.transform.check(spark, schema, KEPT)
            self._tables[target.topic] = TableWriter(target.pipeline, schema, self._owner)
        return self._tables[target.topic]

    def _write_table(self, batch: DataFrame, target: Target, number: int, seen_at: datetime, count: int) -> _Written:
        """Write what fits."""
        writer = self._table(target, batch.sparkSession)
        fitting = batch.where(F.col(WHY).isNull() & target.rows)
        rows = fitting.select(F.col(target.reading.column).alias("body"), *KEPT)
        if target.transform is None:
            writer.write(rows, self._query_id, number, seen_at, count)
            return _Written()
        made, done = self._transformed(rows, target, target.transform)
        try:
            writer.write(made, self._query_id, number, seen_at, done.left.total())
        finally:
            made.unpersist()
        return done

    def _transformed(self, rows: DataFrame, target: Target, transform: Transform) -> tuple[DataFrame, _Written]:
        """The rows that the transformation makes, kept by Spark, without the messages for which it fails."""

        def made_of(rows: DataFrame) -> DataFrame:
            return transform.apply(rows, target.reading.schema, KEPT)

        refused: dict[str, str] = {}
        while True:
            made = made_of(rows).persist(StorageLevel.DISK_ONLY)
            try:
                of_messages = made.where(F.col(PART) == 0).groupBy("topic", _minute().alias("minute"))
                left = Counter({(row["topic"], row["minute"]): row["count"] for row in of_messages.count().collect()})
            except Exception as exc:
                made.unpersist()
                if refused or not is_of_data(exc):
                    raise
                refused = transform.refused(rows, made_of, exc)
                rows = rows.where(~key_of().isin(*refused))
            else:
                return made, _Written(left, refused)

    def _filtered(self, groups: list[Group], left: Counter[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The messages of which a transformation left nothing, by topic and minute."""
        filtered: Counter[tuple[str, int]] = Counter()
        for group in groups:
            if group.fits and self._targets.of(group.topic).transform is not None:
                filtered[group.topic, group.minute] += group.messages
        return {key: messages - left[key] for key, messages in filtered.items()}

    def _shares(self, groups: list[Group]) -> list[tuple[Target, tuple[int, int]]]:
        """The targets of the batch's topics, each with the number of its messages, and of rejected ones."""
        shares: dict[str | None, tuple[Target, tuple[int, int]]] = {}
        for group in sorted(groups, key=lambda group: group.topic):
            target = self._targets.of(group.topic)
            _, (messages, rejected) = shares.get(target.topic, (target, (0, 0)))
            rejected += 0 if group.fits else group.messages
            shares[target.topic] = (target, (messages + group.messages, rejected))
        return list(shares.values())

    def _judge(self, batch: DataFrame, target: Target, messages: int, rejected: int) -> None:
        """Raise PipelineFailed if so many messages are rejected that the schema must be wrong."""
        if messages < LEAST_TO_JUDGE or rejected <= target.pipeline.limit_options.stop_above * messages:
            return
        described = self._described(batch.where(F.col(WHY).isNotNull() & target.rows).limit(1000), target.reading)
        why, _ = max(
            ((row["reason"], row["count"]) for row in described.groupBy("reason").count().collect()),
            key=lambda each: each[1],
        )
        is_named = target.topic in self._pipeline.topics
        schema, limit = (f"topics.{target.topic}",) * 2 if is_named else ("parse", "limits")
        which = "a batch" if target.topic is None else f"topic {target.topic} in a batch"
        raise PipelineFailed(
            f"the schema must be wrong: {rejected} of {messages} messages of {which} do not fit it, mostly because "
            f"{why}. Nothing of the batch was written: correct {schema}.schema and start again, or raise "
            f"{limit}.stop_above to reject them"
        )

    def _write_rejected(self, batch: DataFrame, number: int, seen_at: datetime, count: int) -> None:
        path = self._path("rejected", seen_at, number)
        if not count:
            # An earlier attempt may have written there, with another schema.
            paths.remove(batch.sparkSession, path)
            return
        rejected = [
            self._described(batch.where(F.col(WHY).isNotNull() & each.rows), each) for each in self._targets.readings
        ]
        described = reduce(lambda one, other: one.unionByName(other), rejected)
        paths.write_parquet(described.drop("letter"), path)
        options = self._pipeline.sink_options
        if options is not None:
            check_sink(options)  # Spark's tasks would try for minutes
            run_in_tasks(described.select(F.col("letter").alias("body")), lambda schema: Publishing(options))

    def _described(self, rows: DataFrame, reading: Reading) -> DataFrame:
        """Rejected rows with the reason and the dead letter of each."""
        options = self._pipeline.sink_options
        most = options.longest_body if options is not None else 2**31
        describing = DescribeRejected(reading.schema, most, self._pipeline.place("rejected"))
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
            WHY,
        )
        return rows.select("body", *KEPT, described.alias("described")).select("body", *KEPT, "described.*")


def count(batch: DataFrame) -> tuple[datetime | None, list[Group]]:
    """When the batch began (None if it is empty), and its messages in groups."""
    # In microseconds, since the type of a timestamp difference depends on settings.
    published, seen = F.unix_micros("timestamp"), F.unix_micros("seen_at")
    latency = seen - published
    keys = {
        "minute": _minute(),
        "attempts": F.least(F.col("attempts"), F.lit(MOST_ATTEMPTS)),
        "latency_class": _class_of(latency),
        "fits": F.col(WHY).isNull(),
        "topic": F.col("topic"),
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


def _minute() -> Column:
    """The minute of a message's publish, as seconds since the epoch."""
    return F.floor(F.unix_micros("timestamp") / 60_000_000) * 60


def _class_of(latency_us: Column) -> Column:
    """``metrics.CLASSES.index`` in Spark."""
    steps = F.log(latency_us / (SHORTEST * 1e6)) / F.log(F.lit(GROWTH))
    return F.when(latency_us < SHORTEST * 1e6, 0).otherwise(1 + F.floor(steps)).cast("int")
