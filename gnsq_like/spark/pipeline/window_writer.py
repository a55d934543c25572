"""Writing the partial sums of a batch, each batch once.

A table of windows is written as ``data`` is: a batch has its own directory of plain files, which it overwrites, or its
number is in the commit. So the place and the format are those of a pipeline whose ``data`` is this table
(``Pipeline.for_window``).

Beside the table is its definition, ``_window/000001.json``. By it, a run refuses a changed length or expression, whose
rows could not be added to those in the table, and ``maintain``, which has no Spark, knows how to add up each column.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.pipeline import paths
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.destinations import check_format, table_of
from gnsq_like.spark.pipeline.kept_schema import change
from gnsq_like.spark.pipeline.windows import START, WindowSums, WindowTable
from gnsq_like.spark.tables import parquet_files
from gnsq_like.spark.tables.committed_table import append
from gnsq_like.spark.tables.folding import DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class WindowWriter:
    """Writes into one table of windows.

    :param pipeline: that of the rows
    :param name: the window's
    :param schema: of the column ``body`` of the rows; None for bodies as they are
    :param kept: the columns beside it
    """

    def __init__(self, pipeline: Pipeline, name: str, schema: StructType | None, kept: Sequence[str]) -> None:
        own = pipeline.for_window(name)
        self._name = name
        self._sums = WindowSums(WindowTable.read(pipeline.windows[name], f"windows.{name}"))
        self._schema, self._kept = schema, kept
        self._pipeline = own
        self._place = own.place("data")
        self._table = table_of(own)
        self._columns: StructType | None = None
        self._is_kept = False

    def check(self, spark: SparkSession) -> None:
        """Raise InvalidOption if the sums cannot be made, or not be added to those in the table."""
        if self._columns is not None:
            return
        check_format(self._pipeline)
        found = self._sums.check(spark, self._schema, self._kept)
        old = self._last(spark)
        if old is not None:
            self._check_same(old, found)
        self._check_is_ours(spark, old is not None)
        if self._table is not None:
            parquet_files.prepare(spark)
        self._columns = found

    def write(self, rows: DataFrame, query_id: str, number: int, seen_at: datetime) -> None:
        """Write the sums of a batch, in place of what an earlier attempt has written, or not again if committed.

        :param rows: those of the batch in the table ``data``
        """
        spark = rows.sparkSession
        self.check(spark)
        self._keep(spark)
        sums = self._sums.apply(rows, self._schema, self._kept, seen_at)
        if self._table is not None:
            append(self._table, sums, f"{query_id}/windows/{self._name}", number, seen_at)
        else:
            paths.write_parquet(sums, paths.batch_path(self._place, seen_at, paths.batch_name(query_id, number)))

    def remove(self, spark: SparkSession, query_id: str, number: int, seen_at: datetime) -> None:
        """Remove what an earlier attempt has written of a batch that has no rows now."""
        if self._table is None:
            paths.remove(spark, paths.batch_path(self._place, seen_at, paths.batch_name(query_id, number)))

    # -- the definition ------------------------------------------------------------------------------------

    def _check_same(self, old: dict[str, Any], found: StructType) -> None:
        from pyspark.sql.types import StructType

        table = self._sums.table
        new = table.definition
        wrong = next((key for key in ("length", "time", "where", "by") if old[key] != new[key]), None)
        if wrong is None:
            changed = [name for name, text in old["columns"].items() if new["columns"].get(name) != text]
            wrong = f"columns.{changed[0]}" if changed else None
        said = f"{wrong} differs from the table's" if wrong else None
        said = said or change(StructType.fromJson(old["schema"]), found)
        if said is not None:
            raise InvalidOption(
                table.option,
                new,
                f"{said}, so the sums in {self._place} and new ones could not be added: give the window another name",
            )

    def _check_is_ours(self, spark: SparkSession, has_definition: bool) -> None:
        """Raise InvalidOption if there is another kind of table."""
        if self._table is None:
            is_other = not has_definition and any(
                name.startswith("date=") for name in paths.list_names(spark, self._place)
            )
        else:
            columns = self._table.columns()
            is_other = columns is not None and not (has_definition and START in columns.names)
        if is_other:
            option = f"{self._sums.table.option}.place"
            raise InvalidOption(option, self._place, "the table there has no sums by window: give them another place")

    def _keep(self, spark: SparkSession) -> None:
        if self._is_kept or self._columns is None:
            return
        table = self._sums.table
        content = {"format": 1, **table.definition, "added": table.added, "schema": self._columns.jsonValue()}
        if self._last(spark) != content:
            number = max(self._numbers(spark), default=0) + 1
            paths.write_text(spark, f"{self._place}/{DEFINITIONS}/{number:06d}.json", json.dumps(content, indent=2))
        self._is_kept = True

    def _numbers(self, spark: SparkSession) -> list[int]:
        names = paths.list_names(spark, f"{self._place}/{DEFINITIONS}")
        return sorted(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdecimal())

    def _last(self, spark: SparkSession) -> dict[str, Any] | None:
        for number in reversed(self._numbers(spark)):
            try:
                found: dict[str, Any] = json.loads(
                    paths.read_text(spark, f"{self._place}/{DEFINITIONS}/{number:06d}.json")
                )
            except ValueError:
                continue  # a process was killed while it wrote
            return found
        return None
