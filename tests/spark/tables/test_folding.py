"""Partial sums are folded: what comes of the rows, beside readers, and killed. Without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("duckdb")

from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.spark.pipeline.maintenance import maintain_tables
from gnsq_like.spark.tables.errors import TableError
from gnsq_like.spark.tables.folding import Folding, Unit, folding_of, units_of
from tests.support.pipeline_tables import START
from tests.support.spark_sessions import ROOT
from tests.support.window_tables import FORMATS, add, added, partial_sums, pipeline_at, query, totals

FOLDING = Folding({"n": "sum", "least": "min", "most": "max"})
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("n", pa.int64()),
        ("least", pa.int32()),
        ("most", pa.float64()),
        ("seen_at", pa.timestamp("us", "UTC")),
    ]
)
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]),
        st.none() | st.integers(-(2**40), 2**40),
        st.none() | st.integers(-5, 5),
        st.none() | st.floats(width=32),
    ),
    max_size=6,
)
NaN = float("nan")


#: Plain files have no commits, in which sums could be folded.
FOLDED = ["delta", "iceberg"]


def table_of(rows: list[Any], at: datetime = START) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, [*row, at], strict=True)) for row in rows], SCHEMA)


@pytest.mark.hypothesis
@given(st.lists(ROWS, min_size=1, max_size=4).filter(any))
def test_folding_in_any_order_adds_everything_once(batches: list[list[Any]]) -> None:
    times = [START + timedelta(minutes=number) for number in range(len(batches))]
    tables = [table_of(rows, at) for rows, at in zip(batches, times, strict=True)]
    found = FOLDING.fold(tables)
    again = FOLDING.fold([FOLDING.fold(tables[:1] if batches[0] else tables), *(tables[1:] if batches[0] else [])])
    by_key: dict[Any, list[Any]] = {}
    for row in (row for rows in batches for row in rows):
        by_key.setdefault(row[0], []).append(row)
    for made in (found, again):
        assert {str(row["key"]): _values(row) for row in made.to_pylist()} == {
            str(key): _expected(rows) for key, rows in by_key.items()
        }
        assert made.num_rows == len(by_key) and made.schema == SCHEMA
    last = max(at for rows, at in zip(batches, times, strict=True) if rows)
    assert set(found["seen_at"].to_pylist()) == {last}


def _values(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["n"], row["least"], _text(row["most"])


def _expected(rows: list[Any]) -> tuple[Any, ...]:
    numbers, least, most = ([row[position] for row in rows if row[position] is not None] for position in (1, 2, 3))
    # As in Spark, NaN is greater than all numbers.
    greatest = NaN if any(each != each for each in most) else max(most, default=None)
    return sum(numbers) if numbers else None, min(least, default=None), _text(greatest)


def _text(value: float | None) -> str:
    return "" if value is None else str(value + 0.0)  # without the sign of zero


def test_sums_that_are_too_large_are_an_error() -> None:
    with pytest.raises(TableError, match="the sums of n are too large for int64"):
        FOLDING.fold([table_of([("a", 2**62, 1, 1.0)]), table_of([("a", 2**62, 1, 1.0)])])
    schema = pa.schema([("n", pa.decimal128(5, 2)), ("seen_at", pa.timestamp("us", "UTC"))])
    rows = pa.Table.from_pylist([{"n": Decimal("999.99"), "seen_at": START}] * 2, schema)
    with pytest.raises(TableError, match="the sums of n are too large"):
        Folding({"n": "sum"}).fold([rows])


def test_days_that_are_over_and_hours_of_the_last_one() -> None:
    day = datetime(2026, 11, 21, tzinfo=UTC)
    hours = [day, day + timedelta(hours=5), day + timedelta(hours=24)]
    hours += [day + timedelta(hours=25)] * 2 + [day + timedelta(hours=26)] * 2
    found = units_of(hours, day + timedelta(hours=26))
    assert found == [Unit(day, True), Unit(day + timedelta(hours=25), False)]
    assert [str(each) for each in found] == ["2026-11-21", "2026-11-22 01:00"]
    assert [each.path for each in found] == ["date=2026-11-21", "date=2026-11-22/hour=1"]


def test_a_half_written_definition_is_passed_over(tmp_path: Path) -> None:
    assert folding_of(f"file://{tmp_path}/none") is None
    (tmp_path / "_window").mkdir()
    (tmp_path / "_window" / "000001.json").write_text('{"added": {"n": "sum"}}')
    (tmp_path / "_window" / "000002.json").write_text('{"added": {"n": "s')
    assert folding_of(f"file://{tmp_path}") == Folding({"n": "sum"})


@pytest.mark.parametrize("format", FOLDED)
def test_hours_and_then_days_are_folded_and_the_view_stays_the_same(tmp_path: Path, format: str) -> None:
    pipeline = pipeline_at(tmp_path, format, compact_after="0")
    # 13:59:50 to 16:39:50.
    batches = partial_sums(9, timedelta(minutes=20))
    for number, (at, sums) in enumerate(batches):
        add(pipeline, number, at, sums)
    expected = added(batches)
    assert totals(pipeline) == expected
    assert query(pipeline, "SELECT count(*) FROM partial") == [(27,)]
    lines = list(maintain_tables(pipeline, now=START.replace(hour=16, minute=30)))
    assert [line for line in lines if "folded" in line] == [
        "pages: 2026-11-21 14:00: 9 rows folded into 7",
        "pages: 2026-11-21 15:00: 9 rows folded into 7",
    ]
    assert totals(pipeline) == expected
    lines = list(maintain_tables(pipeline, now=START + timedelta(days=1)))
    assert [line for line in lines if "folded" in line] == [f"pages: 2026-11-21: 23 rows folded into {len(expected)}"]
    assert totals(pipeline) == expected
    assert query(pipeline, "SELECT count(*) FROM partial") == [(len(expected),)]
    assert [line for line in maintain_tables(pipeline, now=START + timedelta(days=1)) if "folded" in line] == []
    # A late message makes a row again.
    late = (START + timedelta(days=1), {min(expected): (5, 5, 5)})
    add(pipeline, 9, *late)
    assert totals(pipeline) == added([*batches, late])


@pytest.mark.parametrize("format", FORMATS)
def test_old_hours_are_deleted(tmp_path: Path, format: str) -> None:
    late = {"compact_after": "1000d"} if format in FOLDED else {}
    pipeline = pipeline_at(tmp_path, format, keep_windows="1d", **late)
    batches = partial_sums(3, timedelta(hours=1))
    for number, (at, sums) in enumerate(batches):
        add(pipeline, number, at, sums)
    now = START.replace(hour=15, minute=30) + timedelta(days=1)
    [_] = [line for line in maintain_tables(pipeline, now=now) if line.startswith("pages: ")]
    assert totals(pipeline) == added(batches[2:])


@pytest.mark.parametrize("format", FOLDED)
def test_readers_never_see_a_sum_twice_or_not_at_all(tmp_path: Path, format: str) -> None:
    pipeline = pipeline_at(tmp_path, format, compact_after="0", keep_versions="1h")
    batches = partial_sums(12, timedelta(minutes=20))
    for number, (at, sums) in enumerate(batches):
        add(pipeline, number, at, sums)
    expected = added(batches)
    is_over = threading.Event()
    wrong: list[Any] = []

    def look() -> None:
        while not is_over.is_set():
            try:
                found = totals(pipeline)
            except Exception as exc:
                wrong.append(exc)
            else:
                if found != expected:
                    wrong.append(found)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for hours in (2, 3, 4, 24):
            list(maintain_tables(pipeline, now=START + timedelta(hours=hours)))
    finally:
        is_over.set()
        reader.join()
    assert wrong == []
    assert totals(pipeline) == expected
    assert query(pipeline, "SELECT count(*) FROM partial") == [(len(expected),)]


KILLED = """
import sys
from datetime import timedelta
from pathlib import Path
from gnsq_like.spark.pipeline.maintenance import maintain_tables
from tests.support.pipeline_tables import START
from tests.support.window_tables import pipeline_for

pipeline = pipeline_for(Path(sys.argv[1]), sys.argv[2], compact_after="0")
for hours in range(2, 25):
    print("ready", flush=True)
    for line in maintain_tables(pipeline, now=START + timedelta(hours=hours)):
        print(line, flush=True)
"""


@pytest.mark.spark_long
@pytest.mark.parametrize("format", FOLDED)
def test_killed_at_any_time_all_sums_are_there_once(tmp_path: Path, format: str) -> None:
    pipeline = pipeline_at(tmp_path, format)
    batches = partial_sums(18, timedelta(minutes=20))
    for number, (at, sums) in enumerate(batches):
        add(pipeline, number, at, sums)
    command = [sys.executable, "-c", KILLED, str(tmp_path), format]
    # Lines of output until the kill.
    for lines in (1, 4, None):
        with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
            assert process.stdout is not None
            if lines is None:
                process.communicate()
            else:
                for _ in range(lines):
                    process.stdout.readline()
                process.kill()
        assert totals(pipeline) == added(batches)
    assert process.returncode == 0
    assert query(pipeline, "SELECT count(*) FROM partial") == [(len(added(batches)),)]
