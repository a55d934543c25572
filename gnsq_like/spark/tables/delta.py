"""Delta Lake by the package deltalake.

The batch's number is the version of an application transaction. deltalake does not refuse a version that is committed
already: it only notices two commits of one application that are based on the same state. So the number is read from
the object that commits. (docs/internals S10)

Compactions and deletions fail where they would touch what another commit has changed, and are then left for the next
time. Files that the table has dropped stay as long as readers of older versions may need them (``vacuum``).
``vacuum(full=True)`` would remove files that are about to be committed, so ``data_file.clean`` does that.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, TableFeatures, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction
from pyspark.sql.types import DateType, IntegerType, StructField, StructType

from gnsq_like.spark.tables.columns import lacks, storable
from gnsq_like.spark.tables.committed_table import Care, is_committed, keep_trying
from gnsq_like.spark.tables.data_file import DataFile, TableError, clean

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

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Raise TableError for deltalake's errors."""
        try:
            yield
        except (DeltaError, OSError) as exc:
            raise TableError(f"the Delta table {self.url} cannot be used: {exc}") from exc

    def load(self) -> DeltaTable | None:
        """The table's present state; None if there is no table. Raises TableError."""
        with self._named_errors(), suppress(TableNotFoundError):
            return DeltaTable(self._uri, storage_options=self._options or None)
        return None

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

    def prepare(self, columns: StructType) -> None:
        wanted = storable(columns)
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

        with self._named_errors():
            keep_trying(add, (CommitFailedError,), self.url)

    def _create(self, columns: StructType) -> None:
        schema = Schema.from_json(StructType([*columns.fields, *PARTITION.fields]).json())
        with self._named_errors():
            DeltaTable.create(
                self._uri,
                schema,
                mode="ignore",  # another process may do the same
                partition_by=PARTITION.names,
                storage_options=self._options or None,
            )

    def commit(self, application: str, number: int, files: Sequence[DataFile]) -> bool:
        now = int(time.time() * 1000)
        actions: list[Any] = [
            AddAction(each.path, each.size, each.partition, now, True, json.dumps({"numRecords": each.rows}))
            for each in files
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

        with self._named_errors():
            return keep_trying(attempt, (CommitFailedError,), self.url)

    def maintain(self, care: Care) -> Iterator[str]:
        steps: list[Callable[[DeltaTable, Care], Iterator[str]]] = [_drop, _compact, _vacuum]
        for step in steps:
            if care.stop():
                return
            loaded = self.load()
            if loaded is None:
                return
            with self._named_errors():
                try:
                    yield from step(loaded, care)
                except CommitFailedError:
                    yield "something was left for the next time, because the table was changed meanwhile"
        removed = clean(self.url, lambda path: _FILE.fullmatch(path) is not None, lambda: _tracked(self), care.now)
        if removed:
            yield f"{len(removed)} files removed that were never committed"


# -- care -----------------------------------------------------------------------------------------------


#: Files smaller than this share of the target are compacted, if there are several.
_SMALL = 0.75
_KEEP_VERSIONS = timedelta(days=7)
#: Data files of ours, and of those who compact.
_FILE = re.compile(r"date=[^/]+/hour=[^/]+/[^/]+\.parquet")


def _drop(loaded: DeltaTable, care: Care) -> Iterator[str]:
    """Delete earlier hours. Their files are dropped as they are, because both columns are the table's partition."""
    if care.keep_from is None:
        return
    utc = care.keep_from.astimezone(UTC)
    day = f"'{utc:%Y-%m-%d}'"
    found = loaded.delete(f"date < {day} OR (date = {day} AND hour < {utc.hour})")
    if found.get("num_removed_files"):
        yield f"{found['num_removed_files']} files before {utc:%Y-%m-%d %H}:00 dropped"


def _compact(loaded: DeltaTable, care: Care) -> Iterator[str]:
    small: dict[tuple[date, int], list[int]] = defaultdict(list)
    for each in _files(loaded):
        if each["size_bytes"] < _SMALL * care.target_size:
            small[each["partition.date"], each["partition.hour"]].append(each["size_bytes"])
    for (day, hour), sizes in sorted(small.items()):
        end = datetime(day.year, day.month, day.day, hour, tzinfo=UTC) + timedelta(hours=1)
        if len(sizes) < 2 or end > care.compact_before:
            continue
        if care.stop():
            return
        filters = [("date", "=", day.isoformat()), ("hour", "=", str(hour))]
        done = loaded.optimize.compact(partition_filters=filters, target_size=care.target_size)
        if done["numFilesRemoved"]:
            yield f"{day} {hour:02d}:00: {done['numFilesRemoved']} files compacted into {done['numFilesAdded']}"


def _files(loaded: DeltaTable) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        pa.table(loaded.get_add_actions(flatten=True))
        .select(["path", "size_bytes", "partition.date", "partition.hour"])
        .to_pylist()
    )
    return rows


def _vacuum(loaded: DeltaTable, care: Care) -> Iterator[str]:
    keep = _KEEP_VERSIONS if care.keep_versions is None else care.keep_versions
    removed = _dropped(loaded, keep, dry_run=False)
    if removed:
        yield f"{len(removed)} files removed that the table had dropped"


def _dropped(loaded: DeltaTable, keep: timedelta, *, dry_run: bool) -> list[str]:
    hours = max(0, int(keep / timedelta(hours=1)))
    found: list[str] = loaded.vacuum(hours, dry_run=dry_run, enforce_retention_duration=False)
    return found


def _tracked(table: DeltaLakeTable) -> set[str]:
    """The files of the present version, and those of older ones that are in the log."""
    loaded = table.load()
    if loaded is None:
        return set()
    return {each["path"] for each in _files(loaded)} | set(_dropped(loaded, timedelta(0), dry_run=True))
