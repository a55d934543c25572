"""Care of a Delta table: compaction, retention, and removal of files that nobody needs any more.

Commits of compactions and deletions fail where they would touch what another one has changed, and are then left for the
next time. Files that the table has dropped stay as long as readers of older versions may need them (``vacuum``).
``vacuum(full=True)`` would remove files that are about to be committed, so ``cleaning`` does that. (docs/internals S10)
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from gnsq_like.spark.tables.cleaning import clean
from gnsq_like.spark.tables.delta import DeltaLakeTable
from gnsq_like.spark.tables.errors import TableError

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
