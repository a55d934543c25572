"""The places of a batch: directories that belong to it alone, and that it writes over.

::

    <table>/date=2026-11-21/hour=13/batch=<query>-000042/part-….parquet

Date and hour are those of ``seen_at``, in UTC: when the pipeline got the messages, not when they were published. So
a batch is in one place, an hour that is over never changes, and nothing is too late for it. The query's id is in
the name because a query with a new checkpoint counts its batches from 0 again.

Files go through Spark's own file systems, so that a table can be wherever Spark can write.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Letters of the query's id in a batch's name.
_ID_LENGTH = 12


def batch_name(query_id: str, number: int) -> str:
    """What a batch is called in all tables."""
    return f"{query_id.replace('-', '')[:_ID_LENGTH]}-{number:06d}"


def place_of(table: str, seen_at: datetime, batch: str) -> str:
    """Where a batch's part of a table is."""
    at = seen_at.astimezone(UTC)
    return f"{table}/date={at:%Y-%m-%d}/hour={at.hour}/batch={batch}"


def write_parquet(rows: DataFrame, place: str) -> None:
    """Make the place hold these rows, whatever it held."""
    rows.write.mode("overwrite").option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(place)


def remove(spark: SparkSession, place: str) -> None:
    """Make sure that the place is not there."""
    system, path = _system(spark, place)
    system.delete(path, True)


def names(spark: SparkSession, place: str) -> list[str]:
    """What is in a directory; empty where there is none."""
    system, path = _system(spark, place)
    if not system.exists(path):
        return []
    return [status.getPath().getName() for status in system.listStatus(path)]


def read(spark: SparkSession, place: str) -> str:
    """The text of a small file."""
    system, path = _system(spark, place)
    stream = system.open(path)
    try:
        jvm: Any = spark.sparkContext._jvm
        text: str = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        return text
    finally:
        stream.close()


def make(spark: SparkSession, place: str) -> None:
    """Make the directory; fine if it is there."""
    system, path = _system(spark, place)
    system.mkdirs(path)


def _system(spark: SparkSession, place: str) -> tuple[Any, Any]:
    jvm: Any = spark.sparkContext._jvm
    java: Any = spark.sparkContext._jsc
    path = jvm.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(java.hadoopConfiguration()), path
