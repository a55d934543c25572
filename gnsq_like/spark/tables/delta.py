"""Delta Lake by the package deltalake.

The batch's number is the version of an application transaction. deltalake does not refuse a version that is committed
already: it only notices two commits of one application that are based on the same state. So the number is read from
the object that commits. (docs/internals S10)
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from deltalake import CommitProperties, DeltaTable, Schema, TableFeatures, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction
from pyspark.sql.types import DateType, IntegerType, StructField, StructType

from gnsq_like.spark.tables.columns import lacks, storable
from gnsq_like.spark.tables.committed_table import is_committed, keep_trying
from gnsq_like.spark.tables.data_file import DataFile
from gnsq_like.spark.tables.errors import TableError

#: The columns by which the table is partitioned; they are not in the files.
PARTITION = StructType([StructField("date", DateType()), StructField("hour", IntegerType())])


class DeltaLakeTable:
    """A Delta table.

    :param url: the directory, as Spark names it
    :param options: options of the object store
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.url = url
        self._options = dict(options)
        #: The columns that the table is known to have.
        self._prepared: StructType | None = None
        self._uri = url.removeprefix("file://") if urlsplit(url).scheme == "file" else url

    def load(self) -> DeltaTable | None:
        """The table's present state; None if there is no table. Raises TableError."""
        try:
            return DeltaTable(self._uri, storage_options=self._options or None)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as exc:
            raise TableError(f"the Delta table {self.url} cannot be read: {exc}") from exc

    def loaded(self) -> DeltaTable:
        """The table's present state; raises TableError also if there is none."""
        table = self.load()
        if table is None:
            raise TableError(f"the Delta table {self.url} is gone: it was deleted while it was in use")
        return table

    def columns(self) -> StructType | None:
        table = self.load()
        if table is None:
            return None
        found = StructType.fromJson(json.loads(table.schema().to_json()))
        return StructType([each for each in found.fields if each.name not in PARTITION.names])

    def stored(self, columns: StructType) -> StructType:
        found = storable(columns)
        assert isinstance(found, StructType)
        return found

    def prepare(self, columns: StructType) -> None:
        wanted = self.stored(columns)
        if self._prepared == wanted:
            return
        if self.columns() is None:
            self._create(wanted)
        found = self.columns()
        if found is not None and lacks(found, wanted):
            self._add(wanted)
        self._prepared = wanted

    def _add(self, columns: StructType) -> None:

        def add() -> bool:
            table = self.loaded()
            features = table.protocol().reader_features or []
            if "timestamp_ntz" in columns.json() and "timestampNtz" not in features:
                table.alter.add_feature(TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True)
            table.alter.add_columns(Schema.from_json(columns.json()).fields)
            return True

        try:
            keep_trying(add, (CommitFailedError,), self.url)
        except DeltaError as exc:
            raise TableError(f"the Delta table {self.url} takes no new columns: {exc}") from exc

    def _create(self, columns: StructType) -> None:
        schema = Schema.from_json(StructType([*columns.fields, *PARTITION.fields]).json())
        try:
            DeltaTable.create(
                self._uri,
                schema,
                mode="ignore",  # another process may do the same
                partition_by=PARTITION.names,
                storage_options=self._options or None,
            )
        except (DeltaError, OSError) as exc:
            raise TableError(f"the Delta table {self.url} cannot be created: {exc}") from exc

    def last_batch(self, application: str) -> int | None:
        table = self.load()
        return None if table is None else table.transaction_version(application)

    def commit(self, application: str, number: int, files: Sequence[DataFile]) -> bool:
        now = int(time.time() * 1000)
        actions: list[Any] = [
            AddAction(each.path, each.size, each.partition, now, True, json.dumps(dict(each.stats))) for each in files
        ]
        properties = CommitProperties(app_transactions=[Transaction(application, number, now)])

        def attempt() -> bool:
            table = self.loaded()
            if is_committed(self.url, table.transaction_version(application), number):
                return False
            table.create_write_transaction(
                actions, "append", table.schema(), partition_by=PARTITION.names, commit_properties=properties
            )
            return True

        try:
            return keep_trying(attempt, (CommitFailedError,), self.url)
        except (DeltaError, OSError) as exc:
            raise TableError(f"the Delta table {self.url} cannot be written: {exc}") from exc
