"""What becomes of each topic's messages: how bodies are read, and which table gets them.

A batch is read once, whatever topics it holds. Topics with the same schema are parsed alike, as one *reading*; each
reading makes a column of its own, which is null for other topics. So the batch stays one DataFrame, which Spark keeps
while the tables are written one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.ddl import schema_of
from gnsq_like.spark.pipeline.parse import PARSED, WHY, parse
from gnsq_like.spark.pipeline.transform import Transform

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
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
