"""Writing the rows of batches into one table, each batch once.

A pipeline of several topics has one writer for each of their tables. A batch is written to one after the other; each of
them knows by itself which batches it has.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from gnsq_like.spark.pipeline import kept_schema, paths
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.destinations import check_table, table_of
from gnsq_like.spark.pipeline.owners import Owner
from gnsq_like.spark.tables import parquet_files
from gnsq_like.spark.tables.committed_table import append

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


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
            parquet_files.prepare(spark)
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
