"""Reading the table of metrics, which is written without Spark here."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from pyarrow import parquet

from gnsq_like.spark.pipeline.faults import PipelineFailed
from gnsq_like.spark.pipeline.metrics_table import read_metrics
from gnsq_like.spark.watch.run_status import time_text
from tests.support.pipeline_tables import batch, written


def test_what_was_written_is_read_in_order_of_arrival(tmp_path: Path) -> None:
    batches = [batch(2), batch(0, latency=1800.0), batch(1, rejected=5)]
    rows = read_metrics(written(tmp_path, *batches))
    assert rows == sorted(chain(*batches), key=lambda row: row.seen_at)


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0124, "12 ms"), (3.44, "3.4 s"), (100, "100 s"), (1860, "31 min"), (9000, "2.5 h"), (200_000, "2.3 d")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert read_metrics(written(tmp_path)) == []
    pipeline = written(tmp_path, batch(0))
    [part] = Path(pipeline.place("metrics").removeprefix("file://")).rglob("*.parquet")
    part.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(PipelineFailed, match="cannot be read"):
        read_metrics(pipeline)
