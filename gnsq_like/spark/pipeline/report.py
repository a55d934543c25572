"""The report: one HTML file, from the metrics table alone; it needs no Spark and no Java.

Reads the Parquet of ``metrics`` and ``rejected`` with pyarrow, adds it up over time (``spans``), and draws it
(``charts``). The page, ``report.html``, needs nothing beside itself.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gnsq_like.errors import NSQError
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.faults import NotBegun, PipelineFailed
from gnsq_like.spark.pipeline.metrics import ADDED, COLUMNS, MinuteMetrics, percentile
from gnsq_like.spark.pipeline.spans import added, spans_of

if TYPE_CHECKING:
    import pyarrow as pa

#: How many reasons and batches are listed.
_LISTED = 10


class NothingToReport(PipelineFailed):
    """The pipeline has written no batch yet."""


def write_report(pipeline: Pipeline, path: str | Path, *, last: float | None = None) -> Path:
    """Write the report and return where it is.

    :param last: seconds before the last batch that it covers; None for everything
    :raises PipelineFailed: there are no metrics yet, they cannot be read, or a package is missing
    """
    _check_installed(PipelineFailed)
    rows = read_metrics(pipeline, last=last)
    if not rows:
        raise NothingToReport(f"there are no metrics at {pipeline.place('metrics')} yet: has the pipeline run?")
    since = None if last is None else rows[-1].seen_at - timedelta(seconds=last)
    target = Path(path)
    text = _page(pipeline.title, rows, _reasons(pipeline, since))
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise PipelineFailed(f"the report cannot be written: {target}: {exc.strerror or exc}") from exc
    return target


def check_report(path: str | Path) -> None:
    """Raise NotBegun if a report could not be made here. For before a run that is to end with one."""
    _check_installed(NotBegun)
    target = Path(path)
    if target.is_dir() or not os.access(target if target.exists() else target.absolute().parent, os.W_OK):
        raise NotBegun(f"the report cannot be written: {target}: it is no file in a directory that can be written")


def _check_installed(error: type[NSQError]) -> None:
    for name in ("jinja2", "matplotlib", "pyarrow"):
        if find_spec(name) is None:
            raise error(f'{name} is not installed; the report needs it: pip install "gnsq-like[pipeline]"')


# -- reading --------------------------------------------------------------------------------------------


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


def last_batches(pipeline: Pipeline) -> list[str]:
    """The places of the metrics of the last two hours that have batches. Raises PipelineFailed."""
    from pyarrow import ArrowException

    from gnsq_like.spark.tables.data_file import directories

    place = pipeline.place("metrics")
    try:
        days = sorted(name for name in directories(place) if name.startswith("date="))[-2:]
        hours = [f"{place}/{day}/{hour}" for day in days for hour in sorted(directories(f"{place}/{day}"), key=_hour)]
        return [f"{hour}/{batch}" for hour in hours[-2:] for batch in directories(hour) if batch.startswith("batch=")]
    except (OSError, ArrowException) as exc:
        raise PipelineFailed(f"{place} cannot be read: {exc}") from exc


def _hour(name: str) -> int:
    number = name.removeprefix("hour=")
    return int(number) if number.isdigit() else -1


def read_batch(place: str) -> list[MinuteMetrics]:
    """The metrics of one batch, by minute; empty while they are being written. Raises PipelineFailed."""
    rows = [_metrics_of(row) for row in _read(place, list(COLUMNS)).to_pylist()]
    return sorted(rows, key=lambda row: (row.topic, row.minute))


def _metrics_of(row: dict[str, Any]) -> MinuteMetrics:
    added = {name: default for name, default in ADDED.items() if row[name] is None}
    return MinuteMetrics(**{**row, **added, "attempts": dict(row["attempts"]), "latencies": dict(row["latencies"])})


def _reasons(pipeline: Pipeline, since: datetime | None) -> Counter[str]:
    """How many messages were rejected for each reason. Raises PipelineFailed."""
    import pyarrow.compute as pc

    rows = _read(pipeline.place("rejected"), ["reason", "seen_at"], since)
    if since is not None and rows.num_rows:
        rows = rows.filter(pc.greater_equal(rows["seen_at"], since))
    counted = rows.group_by("reason").aggregate([([], "count_all")]).to_pylist()
    return Counter({row["reason"]: row["count_all"] for row in counted})


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

    url = place.replace("s3a://", "s3://", 1)
    try:
        if urlsplit(url).scheme == "file":
            # Not from_uri: Spark does not decode the characters of a path.
            system, path = fs.LocalFileSystem(), url.removeprefix("file://")
        else:
            system, path = fs.FileSystem.from_uri(url)
        listed = system.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=True))
        files = [each.path for each in listed if each.path.endswith(".parquet")]
        # Hidden files belong to a batch that was not finished, whose day may be later than all others.
        files = _days_since([each for each in files if not re.search(r"/[._]", each.removeprefix(path))], since)
        if not files:
            return pa.table({name: [] for name in columns})
        found = dataset.dataset(files, filesystem=system, format="parquet", partitioning=None)
        # The first file may be one of an earlier version, without some columns.
        absent = [
            pa.field(name, pa.string() if ADDED[name] == "" else pa.int64())
            for name in columns
            if name not in found.schema.names
        ]
        table = found.replace_schema(pa.schema([*found.schema, *absent])).to_table(columns=columns)
        # Times in Spark's own default, INT96, lack their zone and their unit.
        kinds = [pa.timestamp("us", "UTC") if pa.types.is_timestamp(each.type) else each.type for each in table.schema]
        return table.cast(pa.schema(zip(columns, kinds, strict=True)))
    except (OSError, pa.ArrowException) as exc:
        raise PipelineFailed(f"{place} cannot be read: {exc}") from exc


# -- the page -------------------------------------------------------------------------------------------


def _page(title: str, rows: Sequence[MinuteMetrics], rejected_for: Counter[str]) -> str:
    """The report as HTML."""
    from jinja2 import Environment, StrictUndefined

    from gnsq_like.spark.pipeline import charts

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string(files(__package__).joinpath("report.html").read_text("utf-8"))
    spans = spans_of(rows)
    return template.render(
        title=title,
        subtitle=_subtitle(rows),
        tiles=_tiles(rows),
        rate=charts.rate(spans),
        latency=charts.latency(spans),
        attempts=charts.attempts(added(row.attempts for row in rows)),
        depth=charts.depth(spans),
        reasons=[(reason, f"{count:,}") for reason, count in rejected_for.most_common(_LISTED)],
        batches=_last_batches(rows),
    )


def _subtitle(rows: Sequence[MinuteMetrics]) -> str:
    first, last = min(row.seen_at for row in rows), max(row.seen_at for row in rows)
    batches = len({(row.seen_at, row.batch_number) for row in rows})
    until = f" to {last:%Y-%m-%d %H:%M:%S}" if last > first else ""
    return f"{first:%Y-%m-%d %H:%M:%S}{until} UTC, {batches:,} {'batch' if batches == 1 else 'batches'}"


def _tiles(rows: Sequence[MinuteMetrics]) -> list[tuple[str, str]]:
    messages = sum(row.messages for row in rows)
    rejected = sum(row.rejected for row in rows)
    took = (max(row.written_at for row in rows) - min(row.seen_at for row in rows)).total_seconds()
    longest = max(row.latency_max for row in rows)
    latencies = added(row.latencies for row in rows)
    points = [min(percentile(latencies, share), longest) for share in (0.5, 0.95, 0.99)]
    return [
        ("messages", f"{messages:,}"),
        ("rejected", f"{rejected:,}"),
        ("bodies", size_text(sum(row.bytes for row in rows))),
        ("per second", f"{messages / took:,.0f}" if took > 0 else "–"),
        *[(f"latency p{name}", time_text(point)) for name, point in zip((50, 95, 99), points, strict=True)],
        ("longest latency", time_text(longest)),
    ]


def _last_batches(rows: Sequence[MinuteMetrics]) -> list[tuple[str, ...]]:
    by_batch: dict[tuple[datetime, int], list[MinuteMetrics]] = {}
    for row in rows:
        by_batch.setdefault((row.seen_at, row.batch_number), []).append(row)
    lines: list[tuple[str, ...]] = []
    chosen = sorted(by_batch.items(), reverse=True)[:_LISTED]
    days = {seen_at.date() for (seen_at, _), _ in chosen}
    for (seen_at, number), batch in chosen:
        latencies = added(row.latencies for row in batch)
        longest = max(row.latency_max for row in batch)
        lines.append(
            (
                f"{number}",
                f"{seen_at:%H:%M:%S}" if len(days) == 1 else f"{seen_at:%m-%d %H:%M:%S}",
                f"{sum(row.messages for row in batch):,}",
                f"{sum(row.rejected for row in batch):,}",
                time_text(min(percentile(latencies, 0.5), longest)),
                time_text(longest),
                time_text((batch[0].written_at - seen_at).total_seconds()),
            )
        )
    return lines


def time_text(seconds: float) -> str:
    """A duration for people: "12 ms", "3.4 s", "31 min", "1.2 h"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, length, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48), ("d", 86400, float("inf"))):
        amount = seconds / length
        if amount < most:
            return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
    raise AssertionError("a duration is below infinity")


def size_text(count: int) -> str:
    """Bytes for people: "12.5 MB"."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:,.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} TB"
