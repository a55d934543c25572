"""Care of a Delta table: compaction, retention, and removal of files that nobody needs any more.

Commits of compactions and deletions fail where they would touch what another one has changed, and are then left for the
next time. Files that the table has dropped stay as long as readers of older versions may need them (``vacuum``).
``vacuum(full=True)`` would remove files that are about to be committed, so ``cleaning`` does that. (docs/internals S10)
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction
from pyarrow import parquet
from pyspark.sql.pandas.types import to_arrow_schema

from gnsq_like.spark.tables.cleaning import clean
from gnsq_like.spark.tables.data_file import file_system
from gnsq_like.spark.tables.delta import PARTITION, DeltaLakeTable
from gnsq_like.spark.tables.errors import TableError
from gnsq_like.spark.tables.folding import SEEN, Folding, Unit, units_of
from gnsq_like.spark.tables.hours import fitted
from gnsq_like.spark.tables.parquet_files import write_file

#: Files smaller than this share of the target are compacted, if there are several.
_SMALL = 0.75
#: Data files of ours, and of those who compact.
_FILE = re.compile(r"date=[^/]+/hour=[^/]+/[^/]+\.parquet")


def care(
    table: DeltaLakeTable,
    now: datetime,
    *,
    target: int,
    compact_before: datetime,
    keep_from: datetime | None,
    keep_versions: timedelta,
    stop: Callable[[], bool],
) -> Iterator[str]:
    """Do what is to be done, and say each in a few words. Raises TableError.

    :param target: bytes of a file
    :param compact_before: hours that end later are left alone
    :param keep_from: earlier hours are deleted
    :param keep_versions: how long readers may use an older version of the table
    :param stop: asked between two steps
    """
    steps: list[Callable[[DeltaTable], Iterator[str]]] = [
        lambda loaded: _compact(loaded, target, compact_before, stop),
        lambda loaded: _vacuum(loaded, keep_versions),
    ]
    if keep_from is not None:
        first = keep_from
        steps.insert(0, lambda loaded: _drop(loaded, first))
    for step in steps:
        if stop():
            return
        loaded = table.load()
        if loaded is None:
            return
        try:
            yield from step(loaded)
        except CommitFailedError:
            yield "something was left for the next time, because the table was changed meanwhile"
        except (DeltaError, OSError) as exc:
            raise TableError(f"the Delta table {table.url} cannot be maintained: {exc}") from exc
    removed = clean(table.url, lambda path: _FILE.fullmatch(path) is not None, lambda: _tracked(table), now)
    if removed:
        yield f"{len(removed)} files removed that were never committed"


def _drop(loaded: DeltaTable, first: datetime) -> Iterator[str]:
    """Delete earlier hours. Their files are dropped as they are, because both columns are the table's partition."""
    utc = first.astimezone(UTC)
    day = f"'{utc:%Y-%m-%d}'"
    found = loaded.delete(f"date < {day} OR (date = {day} AND hour < {utc.hour})")
    if found.get("num_removed_files"):
        yield f"{found['num_removed_files']} files before {utc:%Y-%m-%d %H}:00 dropped"


def _compact(loaded: DeltaTable, target: int, before: datetime, stop: Callable[[], bool]) -> Iterator[str]:
    small: dict[tuple[date, int], list[int]] = defaultdict(list)
    for each in _files(loaded):
        if each["size_bytes"] < _SMALL * target:
            small[each["partition.date"], each["partition.hour"]].append(each["size_bytes"])
    for (day, hour), sizes in sorted(small.items()):
        end = datetime(day.year, day.month, day.day, hour, tzinfo=UTC) + timedelta(hours=1)
        if len(sizes) < 2 or end > before:
            continue
        if stop():
            return
        filters = [("date", "=", day.isoformat()), ("hour", "=", str(hour))]
        done = loaded.optimize.compact(partition_filters=filters, target_size=target)
        if done["numFilesRemoved"]:
            yield f"{day} {hour:02d}:00: {done['numFilesRemoved']} files compacted into {done['numFilesAdded']}"


def fold(table: DeltaLakeTable, folding: Folding, before: datetime, stop: Callable[[], bool]) -> Iterator[str]:
    """Fold the days and hours of a table of partial sums, each in a commit. Raises TableError.

    :param before: what ends later is left alone
    """
    loaded = table.load()
    if loaded is None:
        return
    for unit in units_of([_hour_of(each) for each in _files(loaded)], before):
        if stop():
            return
        try:
            done = _fold(table, unit, folding)
        except CommitFailedError:
            yield f"{unit} was left for the next time, because the table was changed meanwhile"
            continue
        except (DeltaError, OSError, pa.ArrowException) as exc:
            raise TableError(f"the Delta table {table.url} cannot be folded: {exc}") from exc
        yield f"{unit}: {done[0]} rows folded into {done[1]}"


def _fold(table: DeltaLakeTable, unit: Unit, folding: Folding) -> tuple[int, int]:
    loaded, columns = table.loaded(), table.columns()
    assert columns is not None
    system, root = file_system(table.url)
    inside = [each["path"] for each in _files(loaded) if unit.start <= _hour_of(each) < unit.end]
    schema = to_arrow_schema(table.stored(columns), timezone="UTC")
    rows = [fitted(parquet.ParquetFile(f"{root}/{each}", filesystem=system).read(), schema) for each in inside]
    made = folding.fold(rows)
    file = write_file(iter(made.to_batches()), table.url, made[SEEN][0].as_py())
    assert file is not None
    now = int(time.time() * 1000)
    filters = [("date", "=", f"{unit.start:%Y-%m-%d}")]
    if not unit.is_day:
        filters.append(("hour", "=", str(unit.start.hour)))
    loaded.create_write_transaction(
        [AddAction(file.path, file.size, file.partition, now, True, json.dumps(dict(file.stats)))],
        "overwrite",
        loaded.schema(),
        partition_by=PARTITION.names,
        partition_filters=filters,
    )
    return sum(map(len, rows)), len(made)


def _hour_of(file: dict[str, Any]) -> datetime:
    day = file["partition.date"]
    return datetime(day.year, day.month, day.day, file["partition.hour"], tzinfo=UTC)


def _files(loaded: DeltaTable) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        pa.table(loaded.get_add_actions(flatten=True))
        .select(["path", "size_bytes", "partition.date", "partition.hour"])
        .to_pylist()
    )
    return rows


def _vacuum(loaded: DeltaTable, keep: timedelta) -> Iterator[str]:
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
