"""Care of an Iceberg table: retention, expiry of snapshots, and removal of files that no snapshot has.

pyiceberg expires snapshots, but does not delete files. Compaction is left to the user's engine (docs/pipeline.rst).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from gnsq_like.spark.tables.cleaning import clean
from gnsq_like.spark.tables.committed_table import keep_trying
from gnsq_like.spark.tables.data_file import is_data_file
from gnsq_like.spark.tables.errors import TableError
from gnsq_like.spark.tables.iceberg import PARTITION, IcebergTable, conflicts

#: Manifests and their lists.
_MANIFEST = re.compile(r"metadata/[^/]+\.avro")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def care(
    table: IcebergTable,
    now: datetime,
    *,
    keep_from: datetime | None,
    keep_versions: timedelta,
    stop: Callable[[], bool],
) -> Iterator[str]:
    """Do what is to be done, and say each in a few words. Raises TableError.

    :param keep_from: earlier rows are deleted; a full hour
    :param keep_versions: how long readers may use an older snapshot
    :param stop: asked between two steps
    """
    if table.load() is None or stop():
        return
    try:
        if keep_from is not None:
            yield from _drop(table, keep_from)
        if not stop():
            yield from _expire(table, now - keep_versions)
    except TableError:
        raise
    except Exception as exc:
        raise TableError(f"the Iceberg table {table.identifier} cannot be maintained: {exc}") from exc
    if stop():
        return
    removed = clean(table.url, _is_ours, lambda: _tracked(table), now)
    if removed:
        yield f"{len(removed)} files removed that no snapshot has"


def _is_ours(path: str) -> bool:
    return is_data_file(path) or _MANIFEST.fullmatch(path) is not None


def _drop(table: IcebergTable, first: datetime) -> Iterator[str]:
    """Delete earlier rows: whole files, since each has one hour."""
    utc = first.astimezone(UTC)
    earlier = f"{PARTITION} < '{utc.isoformat()}'"

    def delete() -> bool:
        loaded = table.loaded()
        if next(iter(loaded.scan(row_filter=earlier).plan_files()), None) is None:
            return False
        loaded.delete(earlier)
        return True

    if keep_trying(delete, conflicts(), table.url):
        yield f"rows before {utc:%Y-%m-%d %H}:00 dropped"


def _expire(table: IcebergTable, before: datetime) -> Iterator[str]:
    count = 0

    def expire() -> bool:
        nonlocal count
        loaded = table.loaded()
        current = loaded.current_snapshot()
        limit = before.timestamp() * 1000
        old = [
            each for each in loaded.snapshots() if each.timestamp_ms < limit and current is not None and each != current
        ]
        count = len(old)
        if old:
            loaded.maintenance.expire_snapshots().older_than(before.astimezone(UTC).replace(tzinfo=None)).commit()
        return bool(old)

    if keep_trying(expire, conflicts(), table.url):
        yield f"{count} snapshots expired"


def _tracked(table: IcebergTable) -> set[str]:
    """The files of all snapshots: their data, manifests, and lists of manifests."""
    loaded = table.loaded()
    found: set[str] = set()
    seen: set[str] = set()
    for snapshot in loaded.snapshots():
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(loaded.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(loaded.io, discard_deleted=True)
            found.update(each.data_file.file_path for each in entries)
    return {path.removeprefix(f"{table.url}/") for path in found | seen}
