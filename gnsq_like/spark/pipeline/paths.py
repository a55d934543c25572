"""The directories of a batch, which belong to it alone, and Spark's file systems.

::

    <table>/date=2026-11-21/hour=13/batch=<query>-000042/part-….parquet

Date and hour are those of ``seen_at``, in UTC: when the pipeline received the messages, not when they were published.
So a batch has one directory, an hour that is over never changes, and no message is too late. The query's id is in the
name because a query with a new checkpoint counts its batches from 0 again.

What belongs to the checkpoint, and small notes beside tables, are accessed through Spark's own file systems.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from gnsq_like.spark.tables.data_file import hour_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How many characters of the query's id are in a batch's name.
_ID_LENGTH = 12


def batch_name(query_id: str, number: int) -> str:
    """The name of a batch in all tables."""
    return f"{query_id.replace('-', '')[:_ID_LENGTH]}-{number:06d}"


def batch_directory(seen_at: datetime, batch: str) -> str:
    """The directory of a batch, relative to a table."""
    return f"{hour_directory(seen_at)}/batch={batch}"


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
