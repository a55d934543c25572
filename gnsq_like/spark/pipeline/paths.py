"""The directories of a batch, which belong to it alone and which it overwrites.

::

    <table>/date=2026-11-21/hour=13/batch=<query>-000042/part-….parquet

Date and hour are those of ``seen_at``, in UTC: when the pipeline received the messages, not when they were published.
So a batch has one directory, an hour that is over never changes, and no message is too late. The query's id is in the
name because a query with a new checkpoint counts its batches from 0 again.

Files are accessed through Spark's own file systems, so a table can be wherever Spark can write.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from gnsq_like.spark.tables.data_file import hour_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: How times are written: by default as INT96, which other readers take without the time zone, or not at all.
_TIMES = "spark.sql.parquet.outputTimestampType"
#: Of a key that a map has twice, the last one counts: by default, it is an error, and would end the run.
_KEYS = "spark.sql.mapKeyDedupPolicy"

#: How many characters of the query's id are in a batch's name.
_ID_LENGTH = 12


def batch_name(query_id: str, number: int) -> str:
    """The name of a batch in all tables."""
    return f"{query_id.replace('-', '')[:_ID_LENGTH]}-{number:06d}"


def batch_path(table: str, seen_at: datetime, batch: str) -> str:
    """The directory of a batch in a table."""
    return f"{table}/{hour_directory(seen_at)}/batch={batch}"


def settle(spark: SparkSession) -> None:
    """Change the settings of the session of a query, which is a copy of its user's, to what batches need."""
    if spark.conf.get(_TIMES) == "INT96":
        spark.conf.set(_TIMES, "TIMESTAMP_MICROS")
    spark.conf.set(_KEYS, "LAST_WIN")


def write_parquet(rows: DataFrame, directory: str) -> None:
    """Replace the content of a directory by these rows."""
    settle(rows.sparkSession)
    rows.write.mode("overwrite").option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(directory)


def remove(spark: SparkSession, directory: str) -> None:
    """Remove a directory if it exists."""
    system, path = _system(spark, directory)
    system.delete(path, True)


def list_names(spark: SparkSession, directory: str) -> list[str]:
    """The names in a directory; empty if there is no such directory."""
    system, path = _system(spark, directory)
    if not system.exists(path):
        return []
    return [status.getPath().getName() for status in system.listStatus(path)]


def read_text(spark: SparkSession, file: str) -> str:
    """The text of a small file."""
    system, path = _system(spark, file)
    stream = system.open(path)
    try:
        jvm: Any = spark.sparkContext._jvm
        text: str = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        return text
    finally:
        stream.close()


def write_text(spark: SparkSession, file: str, text: str) -> None:
    """Write a small file, with its directory; an existing one is an error."""
    system, path = _system(spark, file)
    stream = system.create(path, False)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def _system(spark: SparkSession, name: str) -> tuple[Any, Any]:
    """Hadoop's file system for a name, and the name as its path."""
    jvm: Any = spark.sparkContext._jvm
    java: Any = spark.sparkContext._jsc
    path = jvm.org.apache.hadoop.fs.Path(name)
    return path.getFileSystem(java.hadoopConfiguration()), path
