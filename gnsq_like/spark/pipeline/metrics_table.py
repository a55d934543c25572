"""The table of metrics, read by pyarrow: it needs no Spark and no Java."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.faults import PipelineFailed
from gnsq_like.spark.pipeline.metrics import COLUMNS, MinuteMetrics

if TYPE_CHECKING:
    import pyarrow as pa


def read_metrics(pipeline: Pipeline, *, last: float | None = None) -> list[MinuteMetrics]:
    """The metrics table's rows, by arrival; empty if there is no table. Raises PipelineFailed.

    :param last: seconds before the last batch that are read; None for everything
    """
    place = pipeline.place("metrics")
    since = None
    if last is not None:
        newest = newest_batch(pipeline)
        if newest is not None:
            since = newest - timedelta(seconds=last)
    rows = [_metrics_of(row) for row in _read(place, list(COLUMNS), since).to_pylist()]
    return sorted(
        (row for row in rows if since is None or row.seen_at >= since), key=lambda row: (row.seen_at, row.minute)
    )


def newest_batch(pipeline: Pipeline) -> datetime | None:
    """When the last batch began; None if there is none. Raises PipelineFailed."""
    # It is one of the last day's.
    found = _read(pipeline.place("metrics"), ["seen_at"], since=datetime.max.replace(tzinfo=UTC))
    newest: datetime | None = max(found["seen_at"].to_pylist(), default=None)
    return newest


def _metrics_of(row: dict[str, Any]) -> MinuteMetrics:
    return MinuteMetrics(**{**row, "attempts": dict(row["attempts"]), "latencies": dict(row["latencies"])})


def _days_since(files: Sequence[str], since: datetime | None) -> list[str]:
    """The files of the days that may have rows since then; of the last day at least."""
    days = {file: found[1] for file in files if (found := re.search(r"/date=(\d{4}-\d\d-\d\d)/", file))}
    if since is None or not days:
        return list(files)
    first = min(f"{since.astimezone(UTC):%Y-%m-%d}", max(days.values()))
    return [file for file, day in days.items() if day >= first]


def _read(place: str, columns: list[str], since: datetime | None = None) -> pa.Table:
    """These columns of the days since then; no rows if there is no table. Raises PipelineFailed."""
    import pyarrow as pa
    from pyarrow import dataset, fs

    from gnsq_like.spark.tables.data_file import file_system

    try:
        system, path = file_system(place)
        listed = system.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=True))
        files = [each.path for each in listed if each.path.endswith(".parquet")]
        # Hidden files belong to a batch that was not finished, whose day may be later than all others.
        files = _days_since([each for each in files if not re.search(r"/[._]", each.removeprefix(path))], since)
        if not files:
            return pa.table({name: [] for name in columns})
        found = dataset.dataset(files, filesystem=system, format="parquet", partitioning=None)
        table = found.to_table(columns=columns)
        # Times in Spark's own default, INT96, lack their zone and their unit.
        kinds = [pa.timestamp("us", "UTC") if pa.types.is_timestamp(each.type) else each.type for each in table.schema]
        return table.cast(pa.schema(zip(columns, kinds, strict=True)))
    except (OSError, pa.ArrowException) as exc:
        raise PipelineFailed(f"{place} cannot be read: {exc}") from exc
