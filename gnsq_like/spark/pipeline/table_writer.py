"""Writing the rows of batches into one table, each batch once.

A pipeline of several topics has one writer for each of their tables. A batch is written to one after the other; each of
them knows by itself which batches it has.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from gnsq_like.spark.pipeline import kept_schema, paths
from gnsq_like.spark.pipeline.config import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class TableWriter:
    """Writes into the table of a pipeline of one table.

    :param schema: of the column ``body``; None for bodies as they are
    """

    def __init__(self, pipeline: Pipeline, schema: StructType | None) -> None:
        self._pipeline = pipeline
        self._schema = schema
        self._place = pipeline.place("data")
        #: Whether the table can be written with this schema, and whether it has it beside it.
        self._is_checked = self._is_schema_kept = False

    def check(self, spark: SparkSession) -> None:
        """Raise InvalidOption if readers could not read the table once it has these rows."""
        if not self._is_checked and self._pipeline.format == "parquet":
            kept_schema.check_kept(spark, self._place, self._schema, self._pipeline.schema)
        self._is_checked = True

    def write(self, rows: DataFrame, query_id: str, number: int, seen_at: datetime, count: int) -> None:
        """Write a batch, in place of what an earlier attempt has written of it.

        :param query_id: the id of the query, whose batches are numbered
        :param count: the number of rows
        """
        if count:
            self.check(rows.sparkSession)
        if self._pipeline.format == "delta":
            self._append_delta(rows, query_id, number, seen_at)
            return
        path = paths.batch_path(self._place, seen_at, paths.batch_name(query_id, number))
        if not count:
            paths.remove(rows.sparkSession, path)
            return
        if not self._is_schema_kept:
            kept_schema.keep(rows.sparkSession, self._place, self._schema)
            self._is_schema_kept = True
        paths.write_parquet(rows, path)

    def _append_delta(self, table: DataFrame, query_id: str, number: int, seen_at: datetime) -> None:
        at = seen_at.astimezone(UTC)
        dated = table.withColumn("date", F.lit(at.date())).withColumn("hour", F.lit(at.hour))
        # Delta remembers the numbers that each application has written, and leaves out a repeated one.
        writer = dated.write.format("delta").mode("append").partitionBy("date", "hour")
        writer.option("txnAppId", query_id).option("txnVersion", number).save(self._place)


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
