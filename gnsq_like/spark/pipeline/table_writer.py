"""Adding the files of a batch to a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType

from gnsq_like.spark.pipeline import kept_schema, paths
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.destinations import check_table, table_of
from gnsq_like.spark.pipeline.owners import Owner
from gnsq_like.spark.pipeline.transform import KEPT
from gnsq_like.spark.tables import data_file
from gnsq_like.spark.tables.committed_table import append
from gnsq_like.spark.tables.data_file import DataFile, TableError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_TYPES = {"timestamp": TimestampType(), "seen_at": TimestampType(), "attempts": IntegerType()}


class TableWriter:
    """Writes into the table of a pipeline of one table.

    :param body: the type of the column ``body``
    :param owner: None for tables that take what is written once
    """

    def __init__(self, pipeline: Pipeline, body: DataType, owner: Owner | None = None) -> None:
        self._owner = owner
        self._pipeline = pipeline
        self._body = body
        self._place = pipeline.place("data")
        self._table = table_of(pipeline)
        #: Whether the table can be written with this schema, and whether it has it beside it.
        self._is_checked = self._is_schema_kept = False

    def check(self) -> None:
        """Raise InvalidOption if readers could not read the table with these rows, NotBegun if it is not ours."""
        if self._is_checked:
            return
        check_table(self._pipeline, self._body)
        if self._table is None:
            kept_schema.check_kept(self._place, self._body, self._pipeline.schema)
        if self._owner is not None:
            self._owner.check(self._place, exists=self._exists())
        self._is_checked = True

    def _exists(self) -> bool:
        if self._table is not None:
            return self._table.columns() is not None
        return any(name.startswith("date=") for name in data_file.list_names(self._place))

    def write(self, files: Sequence[DataFile], query_id: str, number: int, seen_at: datetime) -> None:
        """Add a batch, in place of what an earlier attempt has added of it, or not again if it is committed.

        :param query_id: the id of the query, whose batches are numbered
        """
        if files:
            self.check()
            if self._owner is not None:
                self._owner.take(self._place, query_id)
        if self._table is None:
            if files and not self._is_schema_kept:
                kept_schema.keep(self._place, self._body)
                self._is_schema_kept = True
            place(self._place, files, paths.batch_directory(seen_at, paths.batch_name(query_id, number)))
        elif files:
            # The columns that readers look for come first: only so many have statistics.
            columns = [StructField(name, _TYPES.get(name, StringType())) for name in KEPT]
            schema = StructType([*columns, StructField(kept_schema.BODY, self._body)])
            append(self._table, schema, files, f"{query_id}/data", number)


def place(table: str, files: Sequence[DataFile], directory: str) -> None:
    """Make hidden files the content of a batch's directory in a table of plain files; raises TableError.

    Not atomic: a reader may see a part of the batch, and a batch that is killed here is repeated.
    """
    data_file.check_files(table, files)
    try:
        data_file.place(table, directory, files)
    except OSError as exc:
        raise TableError(f"{table}/{directory} cannot be written: {exc}") from exc
