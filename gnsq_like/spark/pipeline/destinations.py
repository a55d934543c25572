"""The table of a pipeline: the checks before a run writes to it, and how a batch gets into it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.pipeline.config import FORMATS, Pipeline, url_of
from gnsq_like.spark.pipeline.owners import Owner
from gnsq_like.spark.pipeline.transform import BODY
from gnsq_like.spark.pipeline.writing import KEPT_TYPES
from gnsq_like.spark.tables import data_file
from gnsq_like.spark.tables.columns import added_in_map, change, keep, kept
from gnsq_like.spark.tables.committed_table import CommittedTable
from gnsq_like.spark.tables.data_file import DataFile

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


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
                keep(self._place, self._body)
                self._is_schema_kept = True
            directory = data_file.batch_directory(seen_at, data_file.batch_name(query_id, number))
            data_file.place(self._place, directory, files)
        elif files:
            schema = StructType([*from_arrow_schema(KEPT_TYPES).fields, StructField(BODY, self._body)])
            data_file.check_files(self._place, files)
            self._table.prepare(schema)
            self._table.commit(f"{query_id}/data", number, files)


# -- which table it is, and whether it fits ---------------------------------------------------------------


def table_of(pipeline: Pipeline) -> CommittedTable | None:
    """The pipeline's table, which need not exist; None for one of plain Parquet files.

    :raises InvalidOption: a package is missing, or an option is wrong
    """
    try:
        if pipeline.format == "delta":
            from gnsq_like.spark.tables.delta import DeltaLakeTable

            return DeltaLakeTable(pipeline.place("data"), pipeline.format_options)
        if pipeline.format == "iceberg":
            from gnsq_like.spark.tables.iceberg import IcebergTable

            return IcebergTable(pipeline.place("data"), url_of(pipeline.location), pipeline.format_options)
    except ModuleNotFoundError as exc:
        reason = f"{exc.name} is not installed; the format needs it: install the extra [{pipeline.format}]"
        raise InvalidOption("format", pipeline.format, reason) from exc
    return None


def check_table(pipeline: Pipeline, body: DataType) -> None:
    """Raise InvalidOption if the table has another format, or readers could not read it with bodies of this type.

    :raises TableError: it cannot be read
    """
    check_format(pipeline)
    place, table = pipeline.place("data"), table_of(pipeline)
    columns = table.columns() if table is not None else None
    if columns is not None and BODY not in columns.names:
        raise InvalidOption("data", place, "the table there was not made by a pipeline")
    old = kept(place) if table is None else columns[BODY].dataType if columns is not None else None
    if old is None:
        return
    problem, remedy = change(old, body, widens=pipeline.format == "iceberg"), "Correct the schema"
    if problem is None and pipeline.format == "delta" and (added := added_in_map(old, body)) is not None:
        # Readers by deltalake.
        problem, remedy = f"a field is added to the values of the MAP {added.removesuffix('{}')}", "Add it elsewhere"
    if problem is not None:
        reason = f"{problem}, and readers of {place} could not read its older rows beside the new ones. {remedy}"
        raise InvalidOption("parse.schema", pipeline.schema, f"{reason}, or begin a new table: give data another place")


def check_format(pipeline: Pipeline) -> None:
    """Raise InvalidOption if the place of the table has one of another format."""
    place = pipeline.place("data")
    if not place.startswith("file://"):
        return
    directory = Path(place.removeprefix("file://"))
    for kind, sign in FORMATS.items():
        if kind != pipeline.format and next(directory.glob(sign), None) is not None:
            raise InvalidOption(
                "format", pipeline.format, f"{directory} holds a table of the format {kind}: give data another place"
            )
