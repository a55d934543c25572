"""Care of tables: what is compacted, dropped and removed, beside those who read and write; without Spark."""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from pyarrow import dataset, parquet

from gnsq_like.spark.pipeline import Pipeline
from gnsq_like.spark.pipeline.destinations import table_of
from gnsq_like.spark.pipeline.faults import NotBegun
from gnsq_like.spark.pipeline.maintenance import Hour, Leisure, drop_hour, hours_of, maintain_tables
from gnsq_like.spark.pipeline.owners import locked
from tests.support.committed_tables import KINDS, Kind, add, columns, open_at, read, rows_of, write
from tests.support.daemons import wait_for
from tests.support.files import files_below
from tests.support.pipeline_tables import START, batch, written

#: Near the present time, since the age of files is that of the file system.
NOW = datetime.now(UTC).replace(minute=30, second=0, microsecond=0)
each_kind = pytest.mark.parametrize("kind", KINDS)


def pipeline_at(directory: Path, kind: str = "parquet", **maintain: str) -> Pipeline:
    source = {"topic": "clicks", "channel": "table", "lookupd_http_addresses": "127.0.0.1:1"}
    return Pipeline(location=str(directory), format=kind, source=source, table=maintain)


def numbers(kind: Kind, directory: Path) -> Counter[int]:
    return Counter(row["body"]["number"] for row in read(kind, directory))


def data_files(directory: Path) -> list[Path]:
    return sorted(path for path in (directory / "data").rglob("*.parquet") if "_delta_log" not in path.parts)


def age(path: Path, by: timedelta) -> None:
    then = (datetime.now(UTC) - by).timestamp()
    os.utime(path, (then, then))


def test_hours_of_delta_are_compacted_and_read_on(tmp_path: Path) -> None:
    table = open_at("delta", tmp_path)
    table.prepare(columns())
    hours = [NOW - timedelta(hours=each) for each in (3, 2, 0)]
    for number in range(12):
        assert add(table, number, range(number * 10, number * 10 + 10), hours[number % 3])
    pipeline = pipeline_at(tmp_path, "delta")
    assert list(maintain_tables(pipeline, now=NOW)) == [
        f"data: {each:%Y-%m-%d %H}:00: 4 files compacted into 1" for each in hours[:2]
    ]
    assert numbers("delta", tmp_path) == Counter(range(120))
    # Readers of the version before may still need the files; and there is nothing left to be done.
    assert len(data_files(tmp_path)) == 14
    assert list(maintain_tables(pipeline, now=NOW)) == []
    # The number of the last batch is still known.
    assert not open_at("delta", tmp_path).commit("0b0e/data", 11, [])
    soon = pipeline_at(tmp_path, "delta", keep_versions="0")
    assert list(maintain_tables(soon, now=NOW)) == ["data: 8 files removed that the table had dropped"]
    assert numbers("delta", tmp_path) == Counter(range(120))


def test_fields_that_were_added_are_there_after_a_compaction(tmp_path: Path) -> None:
    table = open_at("delta", tmp_path)
    old, new = (
        columns("number BIGINT, l ARRAY<STRUCT<a: INT>>"),
        columns("number BIGINT, l ARRAY<STRUCT<b: DATE, a: INT>>, s STRING"),
    )
    at = NOW - timedelta(hours=5)
    for number, kind in enumerate((old, new, old)):
        table.prepare(new if number else old)
        body: dict[str, Any] = {"number": number, "l": [{"a": 1}]}
        assert table.commit("0b0e/data", number, write(table, [{"id": "x", "seen_at": at, "body": body}], kind, at))
    assert len(list(maintain_tables(pipeline_at(tmp_path, "delta"), now=NOW))) == 1
    found = sorted(read("delta", tmp_path), key=lambda row: row["body"]["number"])
    assert [row["body"]["l"] for row in found] == [[{"a": 1, "b": None}]] * 3


@each_kind
def test_old_rows_are_dropped_and_their_files_removed_later(kind: Kind, tmp_path: Path) -> None:
    table = open_at(kind, tmp_path)
    table.prepare(columns())
    edge = (NOW - timedelta(days=3)).replace(minute=0)
    times = [edge - timedelta(days=40), edge - timedelta(microseconds=1), edge, NOW]
    for number, at in enumerate(times):
        assert add(table, number, [number], at)
    # Three days ago it was half past, and whole hours are kept.
    pipeline = pipeline_at(tmp_path, kind, keep_data="3d")
    [line] = [each for each in maintain_tables(pipeline, now=NOW) if "dropped" in each]
    assert f"before {edge:%Y-%m-%d %H}:00 dropped" in line
    assert numbers(kind, tmp_path) == Counter([2, 3])
    assert len(data_files(tmp_path)) == 4
    for path in data_files(tmp_path):
        age(path, timedelta(days=2))
    later = datetime.now(UTC) + timedelta(days=8)
    gone = pipeline_at(tmp_path, kind, keep_versions="0")
    assert any("removed that" in each for each in maintain_tables(gone, now=later))
    assert len(data_files(tmp_path)) == 2
    assert numbers(kind, tmp_path) == Counter([2, 3])
    assert not open_at(kind, tmp_path).commit("0b0e/data", 3, [])


@each_kind
def test_files_of_killed_drivers_are_removed_after_a_day(kind: Kind, tmp_path: Path) -> None:
    table = open_at(kind, tmp_path)
    table.prepare(columns())
    assert add(table, 0, [0]) and add(table, 1, [1])
    [orphan] = write(table, rows_of([2]), columns())
    [under_way] = write(table, rows_of([3]), columns())
    for path in data_files(tmp_path):
        if path.name != Path(under_way.path).name:
            age(path, timedelta(days=2))
    lines = list(maintain_tables(pipeline_at(tmp_path, kind, compact_after="1000d")))
    assert [each for each in lines if "1 files removed that" in each]
    assert not (tmp_path / "data" / orphan.path).exists()
    assert table.commit("0b0e/data", 2, [under_way])
    assert numbers(kind, tmp_path) == Counter([0, 1, 3])


def test_snapshots_of_iceberg_expire_and_their_manifests_go(tmp_path: Path) -> None:
    table = open_at("iceberg", tmp_path)
    table.prepare(columns())
    for number in range(5):
        assert add(table, number, [number])
    pipeline = pipeline_at(tmp_path, "iceberg")
    assert list(maintain_tables(pipeline)) == []
    for path in (tmp_path / "data").rglob("*.*"):
        age(path, timedelta(days=2))
    # Six hours later nobody reads the older snapshots any more.
    lines = list(maintain_tables(pipeline, now=datetime.now(UTC) + timedelta(hours=7)))
    assert lines[0] == "data: 4 snapshots expired"
    assert lines[1].endswith("files removed that no snapshot has")
    assert numbers("iceberg", tmp_path) == Counter(range(5))
    assert not open_at("iceberg", tmp_path).commit("0b0e/data", 4, [])
    assert add(table, 5, [5]) and numbers("iceberg", tmp_path) == Counter(range(6))


def parquet_pipeline(directory: Path, **maintain: str) -> Pipeline:
    """Batches 0, 1 and 2 of 13:59, one of 14:00, and later metrics."""
    made = written(directory, batch(0), batch(1), batch(2), batch(360 * 3))
    pipeline = Pipeline(location=made.location, source=made.source, table=maintain)
    for number in range(4):
        at = START + timedelta(seconds=number * 5)
        write_file(Path(made.location, "data"), at, number)
    return pipeline


def write_file(table: Path, at: datetime, number: int) -> None:
    """Write a batch of one row."""
    path = table / f"date={at:%Y-%m-%d}" / f"hour={at.hour}" / f"batch=0-{number:06d}"
    path.mkdir(parents=True)
    parquet.write_table(dataset_of(number), path / "part-0.parquet")


def dataset_of(number: int) -> Any:
    import pyarrow as pa

    return pa.table({"body": [{"number": number}]})


def plain_numbers(pipeline: Pipeline) -> Counter[int]:
    rows = dataset.dataset(Path(pipeline.location, "data"), partitioning="hive").to_table().to_pylist()
    return Counter(row["body"]["number"] for row in rows)


def test_hours_of_plain_tables_are_deleted_by_age(tmp_path: Path) -> None:
    pipeline = parquet_pipeline(tmp_path, keep_data="2d", keep_metrics="1d", keep_rejected="1d")
    lines = list(maintain_tables(pipeline, now=START + timedelta(days=2, minutes=2)))
    assert lines == [
        "data: 1 hours before 2026-11-21 14:00 deleted",
        "metrics: 3 hours before 2026-11-22 14:00 deleted",
    ]
    assert plain_numbers(pipeline) == Counter([2, 3])
    assert hours_of(pipeline.place("metrics")) == []


@pytest.mark.parametrize("what", ["rejected", "archive"])
def test_hours_of_the_tables_beside_it_are_deleted_by_age(tmp_path: Path, what: str) -> None:
    pipeline = replace(parquet_pipeline(tmp_path, **{f"keep_{what}": "2d"}), archive=str(tmp_path / "archive"))
    table = Path(pipeline.place(what).removeprefix("file://"))
    for number in range(4):
        write_file(table, START + timedelta(minutes=30 * number), number)
    lines = list(maintain_tables(pipeline, now=START + timedelta(days=2, hours=1, minutes=1)))
    assert [line for line in lines if line.startswith(what)] == [f"{what}: 2 hours before 2026-11-21 15:00 deleted"]
    assert [hour.start.hour for hour in hours_of(pipeline.place(what))] == [15]
    assert sorted(plain_numbers(pipeline).elements()) == [0, 1, 2, 3]


def test_each_topic_s_table_is_cared_for(tmp_path: Path) -> None:
    source = {"topics_pattern": "t.*", "channel": "table", "lookupd_http_addresses": "127.0.0.1:1"}
    pipeline = Pipeline(
        location=str(tmp_path), source=source, format="delta", table_by_topic=True, table={"compact_after": "0"}
    )
    for topic in ("t.one", "t2"):
        table = table_of(pipeline.for_topic(topic))
        assert table is not None
        table.prepare(columns())
        assert add(table, 0, [1], NOW - timedelta(hours=2)) and add(table, 1, [2], NOW - timedelta(hours=2))
    (tmp_path / "data" / "date=2026-11-21").mkdir()
    lines = list(maintain_tables(pipeline, now=NOW))
    assert [line.split(": ")[0] for line in lines] == ["data of t.one", "data of t2"]


def test_only_one_process_does_it(tmp_path: Path) -> None:
    pipeline = parquet_pipeline(tmp_path)
    with locked(f"{pipeline.place('data')}-care", ""), pytest.raises(NotBegun, match="are being maintained already"):
        list(maintain_tables(pipeline))


def test_it_stops_between_two_steps(tmp_path: Path) -> None:
    pipeline = parquet_pipeline(tmp_path, keep_metrics="1d")
    assert list(maintain_tables(pipeline, now=START + timedelta(days=9), stop=lambda: True)) == []


def test_a_run_does_it_at_leisure(tmp_path: Path) -> None:
    pipeline = parquet_pipeline(tmp_path, maintain_every="1ms", keep_data="1d")
    leisure = Leisure(pipeline)

    def is_done() -> bool:
        leisure.check()
        return not files_below(Path(pipeline.location, "data"), ".parquet")

    wait_for(is_done, "the deletion")
    leisure.stop()
    off = Leisure(parquet_pipeline(tmp_path / "other"))
    off.check()
    off.stop()


@each_kind
def test_appends_and_reads_go_on_beside_it(kind: Kind, tmp_path: Path) -> None:
    open_at(kind, tmp_path).prepare(columns())
    size, batches = 10, 12
    is_over = threading.Event()
    failed: list[BaseException] = []
    halves: list[int] = []

    def look() -> None:
        try:
            while not is_over.is_set():
                found = numbers(kind, tmp_path)
                if len(found) % size or set(found.values()) - {1}:
                    halves.append(len(found))
        except BaseException as exc:
            failed.append(exc)

    def care() -> None:
        try:
            pipeline = pipeline_at(tmp_path, kind, compact_after="0", keep_versions="1h")
            while not is_over.is_set():
                list(maintain_tables(pipeline, now=NOW))
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=each) for each in (look, care)]
    for thread in threads:
        thread.start()
    try:
        table = open_at(kind, tmp_path)
        for number in range(batches):
            at = NOW - timedelta(hours=3 if number % 2 else 4)
            assert add(table, number, range(number * size, number * size + size), at)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert (failed, halves) == ([], [])
    list(maintain_tables(pipeline_at(tmp_path, kind), now=NOW))
    assert numbers(kind, tmp_path) == Counter(range(size * batches))


def test_an_hour_is_dropped(tmp_path: Path) -> None:
    start = datetime(2026, 11, 21, 13, tzinfo=UTC)
    hour, later = Hour(start, "date=2026-11-21/hour=13"), Hour(start + timedelta(hours=1), "date=2026-11-21/hour=14")
    for each in (hour, later):
        (tmp_path / each.path / "batch=0123-000000").mkdir(parents=True)
    (tmp_path / "_schema").mkdir()
    (tmp_path / "date=x" / "hour=13").mkdir(parents=True)
    drop_hour(f"file://{tmp_path}", hour)
    assert hours_of(f"file://{tmp_path}") == [later]
    drop_hour(f"file://{tmp_path}", later)
    assert not (tmp_path / "date=2026-11-21").exists() and (tmp_path / "_schema").exists()
