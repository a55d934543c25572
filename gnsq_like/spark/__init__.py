"""NSQ as a source and a sink on Spark: the Python Data Source ``nsq`` (extra ``[spark]``).

``register(spark)`` makes the format known to a session; if gnsq_like is installed for Spark's Python,
``format("nsq")`` works without it. ``py_files(path)`` writes a file for ``--py-files``, for executors that lack
gnsq_like. ``java`` finds a Java for Spark. Importing this package does not import pyspark.

The way of a batch, from nsqd into the table of a pipeline::

    driver     source.driver     how much waits in each nsqd? A plan, written into the stage
    Spark                        writes the plan into its checkpoint: the batch exists
    tasks      source.executor   for each part of the plan: receive, write a segment into the stage, FIN, ..., END
                                 rows come from segments alone, so a part gives the same rows whenever it is read
    tasks      source.by_columns bodies become columns, or a reason for which they are rejected
    tasks      pipeline.writing  files that belong to no table yet, and a report of them
    driver     pipeline.batches  the table, then rejected messages and dead letters, then metrics:
    driver     tables              one commit, with the batch's number; a directory of the batch for plain Parquet
    Spark                        notes in its checkpoint that the batch is done
    driver     source.driver     with the next batch: removes this one from the stage

Whichever process is killed, at any point: Spark repeats a batch that it has not noted as done, from the same plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["py_files", "register"]


def register(spark: SparkSession) -> None:
    """Make the format ``nsq`` known to a session. Calling it again does no harm."""
    from gnsq_like.spark.source.data_source import NsqDataSource

    spark.dataSource.register(NsqDataSource)


def py_files(path: str | Path) -> str:
    """Write gnsq_like into a zip file, for ``--py-files`` or ``SparkContext.addPyFile``, and return its path.

    The file holds gnsq_like only: executors must have gevent, requests, python-snappy, pyarrow and msgspec. Give
    it to Spark before the first use of the format.

    :param path: the file to write; it ends in .zip
    """
    from zipfile import ZIP_DEFLATED, ZipFile

    package = Path(__file__).parents[1]
    with ZipFile(path, "w", ZIP_DEFLATED) as file:
        for source in sorted(each for each in package.rglob("*") if each.suffix == ".py"):
            file.write(source, source.relative_to(package.parent))
    return str(path)
