"""The report: one HTML file, from the metrics table alone; it needs no Spark and no Java.

Reads the Parquet of ``metrics`` and ``rejected`` with pyarrow, adds it up over time, in spans of equal length, and
writes the page that a run serves (``watch.page``), with all that it needs in it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from gnsq_like.errors import NSQError
from gnsq_like.spark.pipeline.config import LimitOptions, Pipeline
from gnsq_like.spark.pipeline.faults import NotBegun, PipelineFailed
from gnsq_like.spark.pipeline.metrics import COLUMNS, MinuteMetrics, percentile
from gnsq_like.spark.watch.page import render, time_text
from gnsq_like.spark.watch.run_status import RunStatus

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
    for name in ("jinja2", "pyarrow"):
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


def _metrics_of(row: dict[str, Any]) -> MinuteMetrics:
    return MinuteMetrics(**{**row, "attempts": dict(row["attempts"]), "latencies": dict(row["latencies"])})


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


# -- the page -------------------------------------------------------------------------------------------


def _page(title: str, rows: Sequence[MinuteMetrics], rejected_for: Counter[str]) -> str:
    """The report as HTML: the page of a run, of all batches of the table."""
    reasons = [(reason, f"{count:,}") for reason, count in rejected_for.most_common(_LISTED)]
    heads = ("Batch", "Began", "Messages", "Rejected", "Latency, half below", "Longest", "Took")
    return render(
        _status(title, rows),
        covers=_subtitle(rows),
        tables=[
            ("Why messages were rejected", ("Reason", "Messages"), reasons),
            ("Last batches, newest first", heads, _last_batches(rows)),
        ],
    )


def _status(title: str, rows: Sequence[MinuteMetrics]) -> Mapping[str, Any]:
    """The status of a run that has written these batches, with graphs over all of its time."""
    first, last = rows[0].seen_at.timestamp(), max(row.written_at.timestamp() for row in rows)
    now = first
    status = RunStatus(title, LimitOptions(window=float("inf")), (), clock=lambda: now)
    status.is_ready(0.0)
    for batch in _by_batch(rows):
        status.wrote(batch)
    now = last
    status.end()
    spans = spans_of(rows)
    total = sum(row.messages for row in rows)
    return {
        **status.current,
        "rate": total / (last - first) if last > first else None,
        "lag": rows[-1].lag,
        "depth": rows[-1].depth,
        "history": {
            "rate": [span.rate for span in spans],
            "lag": [span.lag for span in spans],
            "depth": [span.depth for span in spans],
        },
    }


def _by_batch(rows: Sequence[MinuteMetrics]) -> list[list[MinuteMetrics]]:
    found: dict[tuple[datetime, int], list[MinuteMetrics]] = {}
    for row in rows:
        found.setdefault((row.seen_at, row.batch_number), []).append(row)
    return [found[key] for key in sorted(found)]


def _subtitle(rows: Sequence[MinuteMetrics]) -> str:
    first, last = min(row.seen_at for row in rows), max(row.seen_at for row in rows)
    batches = len({(row.seen_at, row.batch_number) for row in rows})
    until = f" to {last:%Y-%m-%d %H:%M:%S}" if last > first else ""
    return f"{first:%Y-%m-%d %H:%M:%S}{until} UTC, {batches:,} {'batch' if batches == 1 else 'batches'}"


def _last_batches(rows: Sequence[MinuteMetrics]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    chosen = _by_batch(rows)[: -_LISTED - 1 : -1]
    days = {batch[0].seen_at.date() for batch in chosen}
    for batch in chosen:
        seen_at, number = batch[0].seen_at, batch[0].batch_number
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


# -- over time ------------------------------------------------------------------------------------------


#: Seconds that a span may have. The shortest is taken that gives at most so many spans and is no shorter than a batch
#: usually is: in shorter spans, the messages of a batch would look like a higher rate than there ever was.
_LENGTHS = (1, 2, 5, 10, 30, 60, 120, 300, 900, 3600, 2 * 3600, 6 * 3600, 86400)
_MOST_SPANS = 120


@dataclass(frozen=True, slots=True)
class Span:
    """The messages that arrived in one span of time."""

    start: datetime
    #: Seconds.
    length: float
    messages: int = 0
    #: Seconds by which the table was behind; None without a batch.
    lag: float | None = None
    #: How many messages waited in nsqd at the end; None if that is not known.
    depth: int | None = None

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.length


def spans_of(rows: Sequence[MinuteMetrics]) -> list[Span]:
    """Spans of one length and without gaps, from the first arrival to the last."""
    first, last = (int(pick(row.seen_at.timestamp() for row in rows)) for pick in (min, max))
    least = max(_usual(rows), (last - first) / (_MOST_SPANS - 2))
    length = next((each for each in _LENGTHS if each >= least), _LENGTHS[-1])
    begin = first - first % length
    by_span: dict[int, list[MinuteMetrics]] = {start: [] for start in range(begin, last + 1, length)}
    for row in rows:
        at = int(row.seen_at.timestamp())
        by_span[at - at % length].append(row)
    return [_span(start, length, by_span[start]) for start in sorted(by_span)]


def _usual(rows: Sequence[MinuteMetrics]) -> float:
    """Seconds that a batch usually covers: until the next one, or, for a single one, until it was written."""
    begins = sorted({row.seen_at for row in rows})
    if len(begins) == 1:
        return (rows[0].written_at - rows[0].seen_at).total_seconds()
    return median((later - earlier).total_seconds() for earlier, later in pairwise(begins))


def _span(start: int, length: int, rows: list[MinuteMetrics]) -> Span:
    depths = [row.depth for row in sorted(rows, key=lambda row: row.seen_at) if row.depth is not None]
    return Span(
        start=datetime.fromtimestamp(start, UTC),
        length=length,
        messages=sum(row.messages for row in rows),
        lag=max((row.lag for row in rows), default=None),
        depth=depths[-1] if depths else None,
    )


def added(counts: Iterable[Mapping[int, int]]) -> Counter[int]:
    """Several counts as one."""
    total: Counter[int] = Counter()
    for each in counts:
        total.update(each)
    return total
