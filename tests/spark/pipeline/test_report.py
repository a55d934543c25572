"""The report, from tables that are written without Spark."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from pyarrow import parquet

from gnsq_like.spark.pipeline.faults import PipelineFailed
from gnsq_like.spark.pipeline.report import read_metrics, spans_of, write_report
from gnsq_like.spark.watch.page import size_text, time_text
from tests.support.pipeline_tables import batch, write_rejected, written


def test_what_was_written_is_read_in_order_of_arrival(tmp_path: Path) -> None:
    batches = [batch(2), batch(0, latency=1800.0), batch(1, rejected=5)]
    rows = read_metrics(written(tmp_path, *batches))
    assert rows == sorted(chain(*batches), key=lambda row: row.seen_at)


def test_the_page_has_the_figures_and_well_formed_charts(tmp_path: Path) -> None:
    pipeline = written(tmp_path, batch(0), batch(1, messages=1234, latency=1800.0, rejected=34), batch(2))
    page = write_report(pipeline, tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<h1>a&lt;b</h1>" in page
    assert "2026-11-21 13:59:50 to 2026-11-21 14:00:10 UTC, 3 batches" in page
    assert '<td class="n">14:00:10</td>' in page
    assert "<dt>Messages</dt><dd>1,434</dd>" in page and "34 in all" in page
    assert "No nsqd" not in page and "running" not in page
    charts = page.split("<svg")[1:]
    assert len(charts) == 3
    for text in charts:
        ET.fromstring("<svg" + text[: text.index("</svg>")] + "</svg>")
    assert "http" not in page and "/static/" not in page


def test_reasons_are_counted_and_escaped(tmp_path: Path) -> None:
    pipeline = written(tmp_path, batch(0, rejected=3))
    page = write_report(pipeline, tmp_path / "report.html").read_text()
    assert "Why messages were rejected" not in page
    write_rejected(pipeline, ["field <b> is missing", "it is not JSON", "field <b> is missing"])
    page = write_report(pipeline, tmp_path / "report.html").read_text()
    reasons = page.partition("Why messages were rejected")[2].partition("</tbody>")[0]
    assert [row.partition("</tr>")[0] for row in reasons.split("<tr>")[2:]] == [
        '<td>field &lt;b&gt; is missing</td><td class="n">2</td>',
        '<td>it is not JSON</td><td class="n">1</td>',
    ]


def test_only_the_last_time(tmp_path: Path) -> None:
    pipeline = written(tmp_path, *[batch(number) for number in range(10)])
    page = write_report(pipeline, tmp_path / "report.html", last=25).read_text()
    assert "14:01:00 to 2026-11-21 14:01:20 UTC, 3 batches" in page


def test_the_last_time_reads_the_days_that_it_needs(tmp_path: Path) -> None:
    # The first of these is of the day before.
    pipeline = written(tmp_path, *[batch(number) for number in (-5050, -5000, -4000, 0, 1)])
    root = Path(pipeline.place("metrics").removeprefix("file://"))
    assert {path.name for path in root.iterdir()} == {"date=2026-11-20", "date=2026-11-21"}
    for last, count in ((5, 1), (15, 2), (10 * 4001, 3), (10 * 5002, 4), (10**9, 5)):
        assert len(read_metrics(pipeline, last=last)) == count
    for part in (root / "date=2026-11-20").rglob("*.parquet"):
        part.write_bytes(b"not read")
    assert len(read_metrics(pipeline, last=15)) == 2


def test_the_last_day_is_not_one_of_a_batch_that_was_not_finished(tmp_path: Path) -> None:
    pipeline = written(tmp_path, *[batch(number) for number in (0, 1, 2)])
    unfinished = Path(pipeline.place("metrics").removeprefix("file://")) / "_temporary" / "0" / "date=2026-11-22"
    unfinished.mkdir(parents=True)
    (unfinished / "part-0.parquet").write_bytes(b"PAR1")
    assert len(read_metrics(pipeline, last=5)) == 1


def test_times_without_a_zone_are_utc(tmp_path: Path) -> None:
    pipeline = written(tmp_path, batch(0))
    [part] = Path(pipeline.place("metrics").removeprefix("file://")).rglob("*.parquet")
    parquet.write_table(parquet.read_table(part, partitioning=None), part, use_deprecated_int96_timestamps=True)
    assert read_metrics(pipeline) == batch(0)


def test_one_message_is_enough(tmp_path: Path) -> None:
    pipeline = written(tmp_path, [replace(batch(0, messages=1)[0], depth=None)])
    page = write_report(pipeline, tmp_path / "report.html").read_text()
    assert page.count("<svg") == 0
    assert "1 batch<" in page


def test_what_cannot_be_reported(tmp_path: Path) -> None:
    with pytest.raises(PipelineFailed, match=r"there are no metrics at .* yet"):
        write_report(written(tmp_path), tmp_path / "report.html")
    pipeline = written(tmp_path, batch(0))
    with pytest.raises(PipelineFailed, match=r"the report cannot be written: .*No such file"):
        write_report(pipeline, tmp_path / "none" / "report.html")
    [part] = Path(pipeline.place("metrics").removeprefix("file://")).rglob("*.parquet")
    part.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(PipelineFailed, match="cannot be read"):
        write_report(pipeline, tmp_path / "report.html")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0124, "12 ms"), (3.44, "3.4 s"), (100, "100 s"), (1860, "31 min"), (9000, "2.5 h"), (200_000, "2.3 d")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(5, "5 B"), (12_500, "12.5 kB"), (4_000_000, "4.0 MB"), (10**16, "10,000.0 TB")]
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert size_text(count) == text


def test_a_rate_is_over_no_less_than_a_batch() -> None:
    assert [span.length for span in spans_of(batch(0))] == [1]
    [row] = batch(0)
    assert [span.length for span in spans_of([replace(row, written_at=row.seen_at + timedelta(seconds=48))])] == [60]
    assert {span.length for span in spans_of([*batch(0), *batch(1), *batch(2)])} == {10}


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 1000)), min_size=1, max_size=20))
def test_spans_hold_everything_without_gaps(batches: list[tuple[int, int]]) -> None:
    rows = [batch(number, messages)[0] for number, messages in batches]
    spans = spans_of(rows)
    assert sum(span.messages for span in spans) == sum(messages for _, messages in batches)
    steps = {later.start - earlier.start for earlier, later in zip(spans, spans[1:], strict=False)}
    assert steps <= {timedelta(seconds=spans[0].length)}
    assert len(spans) <= 120 or spans[0].length == 86400
    assert spans[0].start <= min(row.seen_at for row in rows)
