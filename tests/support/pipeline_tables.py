"""Tables of a pipeline, written without Spark, for tests of its metrics and maintenance."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.metrics import CLASSES, Group, MinuteMetrics, as_rows, fold
from gnsq_like.spark.tables.data_file import batch_directory, batch_name

START = datetime(2026, 11, 21, 13, 59, 50, tzinfo=UTC)


def batch(number: int, messages: int = 100, latency: float = 0.5, rejected: int = 0) -> list[MinuteMetrics]:
    """The metrics of a batch; one begins each 10 seconds."""
    seen_at = START + timedelta(seconds=10 * number)
    minute = int((seen_at.timestamp() - latency) // 60 * 60)
    us = int(latency * 1e6)
    groups = [Group(minute, 1, CLASSES.index(latency), True, messages - rejected, 200 * messages, us, us)]
    if rejected:
        groups.append(Group(minute, 3, CLASSES.index(latency), False, rejected, rejected, us, us))
    written_at = seen_at + timedelta(seconds=1)
    return fold(groups, batch_number=number, seen_at=seen_at, written_at=written_at, depth=number)


def written(directory: Path, *batches: list[MinuteMetrics]) -> Pipeline:
    """A pipeline whose table of metrics has these batches."""
    source = {"topic": "clicks", "channel": "c", "lookupd_http_addresses": "127.0.0.1:1"}
    pipeline = Pipeline(location=str(directory / "a place with 100% #"), source=source, name="a<b")
    for rows in batches:
        name = batch_name("0123-4567-89ab-cdef", rows[0].batch_number)
        place = Path(pipeline.place("metrics").removeprefix("file://"), batch_directory(rows[0].seen_at, name))
        place.mkdir(parents=True)
        parquet.write_table(pa.Table.from_batches([as_rows(rows)]), place / "part-0.parquet")
    return pipeline


def read_metrics(pipeline: Pipeline) -> list[MinuteMetrics]:
    """The rows of the table of metrics, by arrival."""
    parts = Path(pipeline.place("metrics").removeprefix("file://")).glob("date=*/hour=*/*/*.parquet")
    rows = [row for part in parts for row in parquet.read_table(part, partitioning=None).to_pylist()]
    made = [MinuteMetrics(**{**row, **{name: dict(row[name]) for name in ("attempts", "latencies")}}) for row in rows]
    return sorted(made, key=lambda row: (row.seen_at, row.minute))
