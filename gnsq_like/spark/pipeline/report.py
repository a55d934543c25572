"""The report: one HTML file, from the metrics table alone; it needs no Spark and no Java.

Reads the Parquet of ``metrics`` and ``rejected`` with pyarrow, adds classes of latencies and counts over spans of
arrival (:func:`spans_of`), and draws them (``charts``). All that it shows is in the file itself.
"""

from __future__ import annotations

import html
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.faults import NotBegun, PipelineFailed
from gnsq_like.spark.pipeline.metrics import COLUMNS, MinuteMetrics, percentile

if TYPE_CHECKING:
    import pyarrow as pa

#: Lengths in seconds that a span may have: the shortest is taken that gives at most so many spans, and is no shorter
#: than a batch usually is; else a batch's messages would stand for more a second than ever came.
_LENGTHS = (1, 2, 5, 10, 30, 60, 120, 300, 900, 3600, 2 * 3600, 6 * 3600, 86400)
_MOST_SPANS = 120
#: Reasons and batches that are listed.
_LISTED = 10

_NOT_INSTALLED = 'is not installed; the report needs it: pip install "gnsq-like[pipeline]"'


class NothingToReport(PipelineFailed):
    """The pipeline has written no batch yet."""


@dataclass(frozen=True, slots=True)
class Span:
    """What arrived in one span of time."""

    start: datetime
    #: Seconds.
    length: float
    messages: int = 0
    rejected: int = 0
    bytes: int = 0
    #: Of messages, by class (``metrics``).
    latencies: Counter[int] = field(default_factory=Counter)
    #: What waited in nsqd in the end; None where it is not known.
    depth: int | None = None

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.length


def write_report(pipeline: Pipeline, path: str | Path, *, last: float | None = None) -> Path:
    """Write the report; where it is.

    :param last: seconds before the last batch that it covers; None for everything
    :raises PipelineFailed: there are no metrics yet, they cannot be read, or matplotlib is missing
    """
    rows = read_metrics(pipeline, last=last)
    if not rows:
        raise NothingToReport(f"there are no metrics at {pipeline.place('metrics')} yet: has the pipeline run?")
    since = None if last is None else rows[-1].seen_at - timedelta(seconds=last)
    target = Path(path)
    text = page(pipeline.title, rows, reasons(pipeline, since))
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise PipelineFailed(f"the report cannot be written: {target}: {exc.strerror or exc}") from exc
    return target


def check_report(path: str | Path) -> None:
    """Raise NotBegun if a report could not be made here: to be asked before a run that shall end with one."""
    try:
        import matplotlib  # noqa: F401
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as exc:
        raise NotBegun(f"{exc.name} {_NOT_INSTALLED}") from exc
    target = Path(path)
    if target.is_dir() or not os.access(target if target.exists() else target.absolute().parent, os.W_OK):
        raise NotBegun(f"the report cannot be written: {target}: it is no file in a directory that can be written")


# -- reading --------------------------------------------------------------------------------------------


def read_metrics(pipeline: Pipeline, *, last: float | None = None) -> list[MinuteMetrics]:
    """The metrics table's rows, by arrival; empty where there is none. Raises PipelineFailed.

    :param last: seconds before the last batch that are read; None for everything
    """
    place = pipeline.place("metrics")
    since = None
    if last is not None:
        # The last day's batches say which was the last one.
        newest = _read(place, ["seen_at"], since=datetime.max.replace(tzinfo=UTC))
        if newest.num_rows:
            since = max(newest["seen_at"].to_pylist()) - timedelta(seconds=last)
    rows = [
        MinuteMetrics(**{**row, "attempts": dict(row["attempts"]), "latencies": dict(row["latencies"])})
        for row in _read(place, list(COLUMNS), since).to_pylist()
    ]
    return sorted(
        (row for row in rows if since is None or row.seen_at >= since), key=lambda row: (row.seen_at, row.minute)
    )


def reasons(pipeline: Pipeline, since: datetime | None) -> Counter[str]:
    """How often messages were rejected for which reason. Raises PipelineFailed."""
    import pyarrow.compute as pc

    rows = _read(pipeline.place("rejected"), ["reason", "seen_at"], since)
    if since is not None and rows.num_rows:
        rows = rows.filter(pc.greater_equal(rows["seen_at"], since))
    counted = rows.group_by("reason").aggregate([([], "count_all")]).to_pylist()
    return Counter({row["reason"]: row["count_all"] for row in counted})


def _days_since(files: Sequence[str], since: datetime | None) -> list[str]:
    """The files of the days that may have something since then; of the last day at least."""
    days = {file: found[1] for file in files if (found := re.search(r"/date=(\d{4}-\d\d-\d\d)/", file))}
    if since is None or not days:
        return list(files)
    first = min(f"{since.astimezone(UTC):%Y-%m-%d}", max(days.values()))
    return [file for file, day in days.items() if day >= first]


def _read(place: str, columns: list[str], since: datetime | None = None) -> pa.Table:
    """These columns of the days since then; no rows where there is no table. Raises PipelineFailed."""
    import pyarrow as pa
    from pyarrow import dataset, fs

    url = place.replace("s3a://", "s3://", 1)
    try:
        if urlsplit(url).scheme == "file":
            # Not from_uri: Spark takes the characters of a path as they are.
            system, path = fs.LocalFileSystem(), url.removeprefix("file://")
        else:
            system, path = fs.FileSystem.from_uri(url)
        found = system.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=True))
        files = [each.path for each in found if each.path.endswith(".parquet")]
        # What is hidden belongs to a batch that was not finished, and may be of a later day than all others.
        files = _days_since([each for each in files if not re.search(r"/[._]", each.removeprefix(path))], since)
        if not files:
            return pa.table({name: [] for name in columns})
        table = dataset.dataset(files, filesystem=system, format="parquet", partitioning=None).to_table(columns=columns)
        # Spark's own default for times (INT96) says neither that they are UTC nor that they are microseconds.
        kinds = [pa.timestamp("us", "UTC") if pa.types.is_timestamp(each.type) else each.type for each in table.schema]
        return table.cast(pa.schema(zip(columns, kinds, strict=True)))
    except (OSError, pa.ArrowException) as exc:
        raise PipelineFailed(f"{place} cannot be read: {exc}") from exc


# -- adding up ------------------------------------------------------------------------------------------


def spans_of(rows: Sequence[MinuteMetrics]) -> list[Span]:
    """The messages by when they arrived, in spans of one length without gaps."""
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
    """Seconds that a batch usually stands for: until the next one, or, of a single one, until it was written."""
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
        rejected=sum(row.rejected for row in rows),
        bytes=sum(row.bytes for row in rows),
        latencies=added(row.latencies for row in rows),
        depth=depths[-1] if depths else None,
    )


def added(counts: Iterable[Any]) -> Counter[int]:
    """Several counts as one."""
    total: Counter[int] = Counter()
    for each in counts:
        total.update(each)
    return total


# -- the page -------------------------------------------------------------------------------------------


def page(title: str, rows: Sequence[MinuteMetrics], rejected_for: Counter[str]) -> str:
    """The report as HTML. Raises PipelineFailed without matplotlib."""
    try:
        from gnsq_like.spark.pipeline import charts
    except ModuleNotFoundError as exc:
        raise PipelineFailed(f"{exc.name} {_NOT_INSTALLED}") from exc
    spans = spans_of(rows)
    latencies = added(row.latencies for row in rows)
    attempts = added(row.attempts for row in rows)
    drawn = [
        ("Rate", "messages a second, by when they arrived", charts.rate(spans)),
        ("Latency", "from publish to the batch's beginning, logarithmic", charts.latency(spans)),
        ("Attempts", "messages by how often nsqd had delivered them", charts.attempts(attempts)),
        ("Waiting", "messages in nsqd when a batch was written", charts.depth(spans)),
    ]
    figures = "".join(
        f'<figure><figcaption><b>{name}</b> {what}</figcaption><div role="img" aria-label="{name}">{svg}</div></figure>'
        for name, what, svg in drawn
        if svg
    )
    return _PAGE.format(
        title=html.escape(title),
        subtitle=html.escape(_subtitle(rows)),
        tiles="".join(
            f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
            for name, value in _tiles(rows, latencies)
        ),
        figures=figures,
        tables=_reasons_table(rejected_for) + _batches_table(rows),
    )


def _subtitle(rows: Sequence[MinuteMetrics]) -> str:
    first, last = min(row.seen_at for row in rows), max(row.seen_at for row in rows)
    batches = len({(row.seen_at, row.batch_number) for row in rows})
    until = f" to {last:%Y-%m-%d %H:%M:%S}" if last > first else ""
    return f"{first:%Y-%m-%d %H:%M:%S}{until} UTC, {_counted(batches, 'batch', 'batches')}"


def _tiles(rows: Sequence[MinuteMetrics], latencies: Counter[int]) -> list[tuple[str, str]]:
    messages = sum(row.messages for row in rows)
    rejected = sum(row.rejected for row in rows)
    took = (max(row.written_at for row in rows) - min(row.seen_at for row in rows)).total_seconds()
    longest = max(row.latency_max for row in rows)
    points = [min(percentile(latencies, share), longest) for share in (0.5, 0.95, 0.99)]
    return [
        ("messages", f"{messages:,}"),
        ("rejected", f"{rejected:,}"),
        ("bodies", size_text(sum(row.bytes for row in rows))),
        ("per second", f"{messages / took:,.0f}" if took > 0 else "–"),
        *[(f"latency p{name}", time_text(point)) for name, point in zip((50, 95, 99), points, strict=True)],
        ("longest latency", time_text(longest)),
    ]


def _reasons_table(rejected_for: Counter[str]) -> str:
    if not rejected_for:
        return ""
    lines = [[html.escape(reason), f"{count:,}"] for reason, count in rejected_for.most_common(_LISTED)]
    return _table("Why messages were rejected", ["reason", "messages"], lines)


def _batches_table(rows: Sequence[MinuteMetrics]) -> str:
    by_batch: dict[tuple[datetime, int], list[MinuteMetrics]] = {}
    for row in rows:
        by_batch.setdefault((row.seen_at, row.batch_number), []).append(row)
    lines = []
    chosen = sorted(by_batch.items(), reverse=True)[:_LISTED]
    days = {seen_at.date() for (seen_at, _), _ in chosen}
    for (seen_at, number), batch in chosen:
        latencies = added(row.latencies for row in batch)
        longest = max(row.latency_max for row in batch)
        lines.append(
            [
                f"{number}",
                f"{seen_at:%H:%M:%S}" if len(days) == 1 else f"{seen_at:%m-%d %H:%M:%S}",
                f"{sum(row.messages for row in batch):,}",
                f"{sum(row.rejected for row in batch):,}",
                time_text(min(percentile(latencies, 0.5), longest)),
                time_text(longest),
                time_text((batch[0].written_at - seen_at).total_seconds()),
            ]
        )
    heads = ["batch", "began (UTC)", "messages", "rejected", "p50", "longest", "took"]
    return _table("The last batches", heads, lines)


def _table(title: str, heads: list[str], lines: list[list[str]]) -> str:
    head = "".join(f"<th>{each}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in lines)
    return f"<section><h2>{title}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></section>"


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


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


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: pipeline report</title>
<link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light; --ink: #1d2433; --dim: #667085; --line: #e4e7ec; }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: #f7f8fa; margin: 0; }}
main {{ max-width: 1080px; margin: 0 auto; padding: 32px 20px 48px; }}
h1 {{ font-size: 26px; margin: 0; }}
h2 {{ font-size: 16px; margin: 0 0 8px; }}
p {{ color: var(--dim); margin: 4px 0 24px; }}
dl {{ display: grid; grid-template-columns: repeat(4, 1fr); gap: 10px; margin: 0 0 20px; }}
@media (max-width: 640px) {{ dl {{ grid-template-columns: repeat(2, 1fr); }} }}
dl div, figure, section {{ background: #fff; border: 1px solid var(--line); border-radius: 8px; }}
dl div {{ padding: 10px 14px; }}
dt {{ color: var(--dim); font-size: 12px; }}
dd {{ margin: 0; font-size: 20px; font-weight: 600; font-variant-numeric: tabular-nums; white-space: nowrap; }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 14px; }}
.charts {{ margin-bottom: 14px; }}
figure {{ margin: 0; padding: 14px; }}
figcaption {{ color: var(--dim); font-size: 13px; }}
figcaption b {{ color: var(--ink); font-size: 16px; margin-right: 6px; }}
figure svg {{ width: 100%; height: auto; display: block; }}
section {{ padding: 14px; margin-bottom: 14px; overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th {{ color: var(--dim); font-weight: 500; font-size: 12px; }}
th, td {{ text-align: right; padding: 5px 10px; white-space: nowrap; border-bottom: 1px solid var(--line); }}
th:first-child, td:first-child {{ text-align: left; white-space: normal; overflow-wrap: break-word; }}
</style>
</head>
<body><main>
<h1>{title}</h1>
<p>{subtitle}</p>
<dl>{tiles}</dl>
<div class="charts">{figures}</div>
{tables}
</main></body>
</html>
"""
