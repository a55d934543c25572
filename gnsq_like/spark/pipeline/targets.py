"""What becomes of each topic's messages: how bodies are read, and which table gets them.

A batch is read once, whatever topics it holds. Topics with the same schema are parsed alike, as one *reading*; each
reading makes a column of its own, which is null for other topics. So the batch stays one DataFrame, which Spark keeps
while the tables are written one after the other; each of them knows by itself which batches it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gnsq_like.spark.pipeline import kept_schema, paths
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.ddl import schema_of
from gnsq_like.spark.pipeline.destinations import check_table, table_of
from gnsq_like.spark.pipeline.owners import Owner
from gnsq_like.spark.pipeline.parse import PARSED, WHY, parse
from gnsq_like.spark.pipeline.transform import Transform
from gnsq_like.spark.tables.committed_table import append

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Reading:
    """How the bodies of some topics are read."""

    #: The fields of the JSON objects; None keeps bodies as they are.
    schema: StructType | None
    #: The unit of a TIMESTAMP that is a number.
    unit: str
    #: The column of the parsed bodies.
    column: str
    #: The topics; None for all that no other reading has.
    topics: tuple[str, ...] | None
    #: All topics of other readings.
    others: tuple[str, ...] = ()

    @property
    def rows(self) -> Column:
        """Whether a row is one of these topics'."""
        topic = F.col("topic")
        if self.topics is not None:
            return topic.isin(*self.topics)
        return ~topic.isin(*self.others) if self.others else F.lit(True)


@dataclass(frozen=True)
class Target:
    """What becomes of the messages of one topic, or of all."""

    #: The pipeline of this topic alone.
    pipeline: Pipeline
    reading: Reading
    #: The topic; None for all.
    topic: str | None
    transform: Transform | None = None

    @property
    def rows(self) -> Column:
        """Whether a row is one of this topic's."""
        return F.lit(True) if self.topic is None else F.col("topic") == self.topic


class Targets:
    """The targets of a pipeline; those of new topics are made when they come."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.readings = _readings(pipeline)
        self._made: dict[str | None, Target] = {}

    def known(self) -> list[Target]:
        """The targets of which the configuration knows."""
        if not self._pipeline.is_by_topic:
            return [self.of("")]
        return [self.of(each.topic) for each in self._pipeline.source_options.named]

    def of(self, topic: str) -> Target:
        """The target of a topic."""
        key = topic if self._pipeline.is_by_topic else None
        if key not in self._made:
            found = next((each for each in self.readings if topic in (each.topics or ())), self.readings[-1])
            own = self._pipeline.for_topic(topic)
            self._made[key] = Target(own, found, key, self._transform(own, topic))
        return self._made[key]

    def _transform(self, own: Pipeline, topic: str) -> Transform | None:
        if not own.transform:
            return None
        is_own = "transform" in self._pipeline.topics.get(topic, {})
        return Transform(own.transform, f"topics.{topic}.transform" if is_own else "transform")

    def parse(self, rows: DataFrame) -> DataFrame:
        """Add a column of parsed bodies for each reading, and ``why`` a message does not fit."""
        if len(self.readings) == 1:
            [only] = self.readings
            return parse(rows, only.schema, only.unit)
        for each in self.readings:
            rows = parse(rows, each.schema, each.unit, only=each.rows, parsed=each.column, why=f"{WHY}_{each.column}")
        found = [f"{WHY}_{each.column}" for each in self.readings]
        return rows.withColumn(WHY, F.coalesce(*map(F.col, found))).drop(*found)


def _readings(pipeline: Pipeline) -> list[Reading]:
    """The readings of a pipeline; the last one is that of topics without settings of their own."""
    alike: dict[tuple[str, str], list[str]] = {}
    for topic in pipeline.topics:
        own = pipeline.for_topic(topic)
        alike.setdefault((own.schema, own.timestamp_unit), []).append(topic)
    default = (pipeline.schema, pipeline.timestamp_unit)
    alike.pop(default, None)
    named = [topic for topics in alike.values() for topic in topics]
    found = [
        Reading(schema_of(ddl) if ddl else None, unit, f"{PARSED}_{number}", tuple(topics))
        for number, ((ddl, unit), topics) in enumerate(alike.items())
    ]
    schema = schema_of(pipeline.schema) if pipeline.schema else None
    rest = Reading(schema, pipeline.timestamp_unit, f"{PARSED}_rest" if found else PARSED, None, tuple(named))
    return [*found, rest]


class TableWriter:
    """Writes into the table of a pipeline of one table.

    :param schema: of the column ``body``; None for bodies as they are
    :param owner: None for tables that take what is written once
    """

    def __init__(self, pipeline: Pipeline, schema: StructType | None, owner: Owner | None = None) -> None:
        self._owner = owner
        self._pipeline = pipeline
        self._schema = schema
        self._place = pipeline.place("data")
        self._table = table_of(pipeline)
        #: Whether the table can be written with this schema, and whether it has it beside it.
        self._is_checked = self._is_schema_kept = False

    def check(self, spark: SparkSession) -> None:
        """Raise InvalidOption if readers could not read the table with these rows, NotBegun if it is not ours."""
        if self._is_checked:
            return
        if self._table is None:
            kept_schema.check_kept(spark, self._place, self._schema, self._pipeline.schema)
        else:
            check_table(self._pipeline, self._schema)
        if self._owner is not None:
            self._owner.check(spark, self._place, exists=self._exists(spark))
        self._is_checked = True

    def _exists(self, spark: SparkSession) -> bool:
        if self._table is not None:
            return self._table.columns() is not None
        return any(name.startswith("date=") for name in paths.list_names(spark, self._place))

    def write(self, rows: DataFrame, query_id: str, number: int, seen_at: datetime, count: int) -> None:
        """Write a batch, in place of what an earlier attempt has written of it, or not again if it is committed.

        :param query_id: the id of the query, whose batches are numbered
        :param count: the number of rows
        """
        if count:
            self.check(rows.sparkSession)
            if self._owner is not None:
                self._owner.take(rows.sparkSession, self._place, query_id)
        if self._table is not None:
            if count:
                # The columns that readers look for come first: only so many have statistics.
                columns = [name for name in rows.columns if name != kept_schema.BODY]
                append(self._table, rows.select(*columns, kept_schema.BODY), f"{query_id}/data", number, seen_at)
            return
        path = paths.batch_path(self._place, seen_at, paths.batch_name(query_id, number))
        if not count:
            paths.remove(rows.sparkSession, path)
            return
        if not self._is_schema_kept:
            kept_schema.keep(rows.sparkSession, self._place, self._schema)
            self._is_schema_kept = True
        paths.write_parquet(rows, path)
