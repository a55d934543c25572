"""Batches of the tables of plain files: of the archive, which has every message as it came, and of rejected messages.

What a schema or a transformation has lost can be had again from the archive (``replaying``). A batch of the archive is
written before anything else of that batch, so whatever is in a table is in the archive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from gnsq_like.spark.pipeline import paths
from gnsq_like.spark.pipeline.config import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A batch of this age is complete; the metrics show whether a newer one is. Older metrics may have been removed.
_SURELY_DONE = timedelta(days=1)
_HOUR = timedelta(hours=1)
_BATCH = re.compile(r"batch=(\w+)-(\d+)")


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """A batch in a table of plain files."""

    directory: str
    #: The beginning of the id of its query.
    query_id: str
    number: int


def complete_batches(
    pipeline: Pipeline, spark: SparkSession, what: str, start: datetime | None = None, end: datetime | None = None
) -> Iterator[BatchPlace]:
    """The batches of "archive" or "rejected" in the hours from ``start`` to before ``end``, in the order of arrival.

    Without a batch that is being written.
    """
    now = datetime.now(UTC)
    for at, hour in _hours(spark, pipeline.place(what)):
        if (end is not None and at >= end) or (start is not None and at + _HOUR <= start):
            continue
        names = _names(spark, f"{pipeline.place(what)}/{hour}", "batch=")
        if at > now - _SURELY_DONE:
            names &= _names(spark, f"{pipeline.place('metrics')}/{hour}", "batch=")
        found = [(match[1], int(match[2]), name) for name in names if (match := _BATCH.fullmatch(name))]
        for query_id, number, name in sorted(found):
            yield BatchPlace(f"{pipeline.place(what)}/{hour}/{name}", query_id, number)


def _hours(spark: SparkSession, table: str) -> list[tuple[datetime, str]]:
    """The hours of a table, with their directories."""
    hours = []
    for date in _names(spark, table, "date="):
        for hour in _names(spark, f"{table}/{date}", "hour="):
            day = datetime.fromisoformat(date.removeprefix("date=")).replace(tzinfo=UTC)
            hours.append((day + timedelta(hours=int(hour.removeprefix("hour="))), f"{date}/{hour}"))
    return sorted(hours)


def _names(spark: SparkSession, directory: str, prefix: str) -> set[str]:
    return {name for name in paths.list_names(spark, directory) if name.startswith(prefix)}
