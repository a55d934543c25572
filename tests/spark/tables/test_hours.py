"""Compaction of plain Parquet files by the hour, beside readers, and killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

from gnsq_like.spark.tables.errors import TableError
from gnsq_like.spark.tables.hours import Compacted, Hour, Stopped, compact_hour, drop_hour, exchange, hours_of, workshop
from tests.support.spark_sessions import ROOT

START = datetime(2026, 11, 21, 13, tzinfo=UTC)
HOUR = Hour(START, "date=2026-11-21/hour=13")
MIB = 1 << 20


def write(table: Path, batch: int, rows: pa.Table, hour: Hour = HOUR, **options: Any) -> Path:
    directory = table / hour.path / f"batch=0123-{batch:06d}"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"part-{len(list(directory.iterdir()))}.parquet"
    unfinished = table / "unfinished"  # as Spark's committer does, so that readers see whole files
    parquet.write_table(rows, unfinished, **options)
    unfinished.rename(path)
    return path


def numbered(numbers: range) -> pa.Table:
    return pa.table({"body": pa.array([{"number": each} for each in numbers]), "id": [str(each) for each in numbers]})


def read(table: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = dataset.dataset(table, partitioning="hive").to_table().to_pylist()
    return rows


def listed(directory: Path) -> list[Path]:
    """The files below a directory; unlike ``Path.rglob`` of Python 3.12, it fails if one that it has seen is gone."""

    def fail(exc: OSError) -> None:
        raise exc

    return sorted(Path(place, name) for place, _, names in os.walk(directory, onerror=fail) for name in names)


def never() -> bool:
    return False


def test_small_files_become_one_and_rows_keep_their_order(tmp_path: Path) -> None:
    table = tmp_path / "data"
    for batch in range(12):
        write(table, batch, numbered(range(batch * 10, batch * 10 + 10)))
    other = write(table, 99, numbered(range(900, 910)), Hour(START + timedelta(hours=1), "date=2026-11-21/hour=14"))
    assert hours_of(f"file://{table}") == [HOUR, Hour(START + timedelta(hours=1), "date=2026-11-21/hour=14")]
    assert compact_hour(table, HOUR, 128 * MIB, never) == Compacted(12, 1)
    rows = [row for row in read(table) if row["hour"] == 13]
    assert [row["body"]["number"] for row in rows] == list(range(120))
    assert {str(row["batch"])[:10] for row in rows} == {"compacted-"}
    assert [row["body"]["number"] for row in read(table) if row["hour"] == 14] == list(range(900, 910))
    assert other.exists() and not workshop(table).exists()
    assert compact_hour(table, HOUR, 128 * MIB, never) is None


def test_files_have_the_target_s_size(tmp_path: Path) -> None:
    for batch in range(8):
        bodies = [os.urandom(1000) for _ in range(400)]
        write(tmp_path / "data", batch, pa.table({"body": bodies}), row_group_size=100)
    done = compact_hour(tmp_path / "data", HOUR, MIB, never)
    assert done is not None and done.before == 8
    sizes = [path.stat().st_size for path in (tmp_path / "data").rglob("*.parquet")]
    assert len(sizes) == done.after and sum(sizes) > 3 * MIB
    assert all(size < 70 * MIB for size in sizes)


def test_later_fields_are_null_in_older_rows(tmp_path: Path) -> None:
    old = pa.table({"body": [{"a": 1, "l": [{"x": 1}], "m": None}], "at": pa.array([START], pa.timestamp("us", "UTC"))})
    old = old.cast(
        pa.schema(
            [
                (
                    "body",
                    pa.struct(
                        [
                            pa.field("a", pa.int32(), nullable=False),
                            ("l", pa.list_(pa.struct([("x", pa.int8())]))),
                            ("m", pa.map_(pa.string(), pa.struct([("x", pa.int8())]))),
                        ]
                    ),
                ),
                ("at", pa.timestamp("us", "UTC")),
            ]
        )
    )
    inner = pa.struct([("y", pa.date32()), ("x", pa.int8())])
    fields = [("b", pa.string()), ("a", pa.int32()), ("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))]
    new = {"b": "x", "a": 2, "l": [{"y": date(2026, 1, 1), "x": 2}], "m": [("k", {"y": None, "x": 3})]}
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("more", pa.int64()), ("body", pa.struct(fields))])
    write(tmp_path, 0, old)
    write(tmp_path, 1, pa.Table.from_pylist([{"body": new, "at": START, "more": 5}], schema))
    assert compact_hour(tmp_path, HOUR, MIB, never) == Compacted(2, 1)
    first, second = ({name: row[name] for name in ("body", "at", "more")} for row in read(tmp_path))
    assert first == {"body": {"a": 1, "l": [{"x": 1, "y": None}], "m": None, "b": None}, "at": START, "more": None}
    assert second == {"body": new, "at": START, "more": 5}


def test_files_with_times_of_an_old_type_stay(tmp_path: Path) -> None:
    times = pa.table({"at": pa.array([START], pa.timestamp("us", "UTC"))})
    for batch in range(2):
        write(tmp_path, batch, times, use_deprecated_int96_timestamps=True)
    assert compact_hour(tmp_path, HOUR, MIB, never) is None
    assert len(list(tmp_path.rglob("*.parquet"))) == 2


def test_an_hour_that_changes_meanwhile_stays(tmp_path: Path) -> None:
    for batch in range(3):
        write(tmp_path, batch, numbered(range(batch, batch + 1)))

    def stop() -> bool:
        write(tmp_path, 3, numbered(range(3, 4)))
        return False

    with pytest.raises(TableError, match="was changed during its compaction: it stays as it is"):
        compact_hour(tmp_path, HOUR, MIB, stop)
    assert Counter(row["body"]["number"] for row in read(tmp_path)) == Counter(range(4))
    with pytest.raises(Stopped):
        compact_hour(tmp_path, HOUR, MIB, lambda: True)
    assert len(list(tmp_path.rglob("*.parquet"))) == 4 and not workshop(tmp_path).exists()


def test_a_reader_that_lists_the_hour_sees_all_rows_once(tmp_path: Path) -> None:
    table = tmp_path / "data"
    seen: list[Counter[str]] = []
    missing: list[str] = []
    is_over = threading.Event()
    wanted = Counter(str(number) for number in range(60))

    def look() -> None:
        while not is_over.is_set():
            found: Counter[str] = Counter()
            try:
                for path in listed(table / HOUR.path):
                    found.update(parquet.read_table(path, columns=["id"])["id"].to_pylist())
            except FileNotFoundError as exc:
                missing.append(str(exc))  # listed before, opened after
            else:
                seen.append(found)

    for batch in range(20):
        write(table, batch, numbered(range(batch * 3, batch * 3 + 3)))
    reader = threading.Thread(target=look)
    reader.start()
    try:
        for target in range(8):
            # Again and again: a new small file makes it worth the while.
            write(table, 100 + target, numbered(range(1)).slice(1))
            assert compact_hour(table, HOUR, MIB, never) is not None
    finally:
        is_over.set()
        reader.join()
    assert all(each == wanted for each in seen)


def test_a_listing_from_before_a_compaction_fails_and_a_new_one_does_not(tmp_path: Path) -> None:
    for batch in range(3):
        write(tmp_path, batch, numbered(range(batch, batch + 1)))
    old = dataset.dataset(tmp_path, partitioning="hive")
    assert compact_hour(tmp_path, HOUR, MIB, never) == Compacted(3, 1)
    with pytest.raises(FileNotFoundError):
        old.to_table()
    assert Counter(row["body"]["number"] for row in read(tmp_path)) == Counter(range(3))


def test_a_reader_that_leaves_out_what_is_gone_lacks_rows_as_documented(tmp_path: Path) -> None:
    for batch in range(3):
        write(tmp_path, batch, numbered(range(batch, batch + 1)))
    found: list[str] = []
    for place, _, names in os.walk(tmp_path / HOUR.path):
        for name in names:
            found += parquet.read_table(Path(place, name), columns=["id"])["id"].to_pylist()
            assert compact_hour(tmp_path, HOUR, MIB, never) == Compacted(3, 1)
    assert len(found) == 1


def killed_at(step: str, directory: Path) -> None:
    """Compact in a process that kills itself at a step."""
    program = directory / "program.py"
    program.write_text(f"""
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from gnsq_like.spark.tables import hours

step = {step!r}

def watch(frame, event, argument):
    name = frame.f_code.co_name
    if (event, name) == ("call", step) or event == "return" and "after " + name == step:
        os.kill(os.getpid(), signal.SIGKILL)
    return watch

sys.settrace(watch)
hour = hours.Hour(datetime(2026, 11, 21, 13, tzinfo=UTC), "date=2026-11-21/hour=13")
hours.compact_hour(Path({str(directory / "data")!r}), hour, 1 << 20, lambda: False)
""")
    done = subprocess.run([sys.executable, str(program)], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == -9


@pytest.mark.parametrize("step", ["_check", "exchange", "after exchange"])
def test_killed_it_has_all_rows_once_and_the_next_one_tidies_up(tmp_path: Path, step: str) -> None:
    table = tmp_path / "data"
    for batch in range(5):
        write(table, batch, numbered(range(batch, batch + 1)))
    killed_at(step, tmp_path)
    assert Counter(row["body"]["number"] for row in read(table)) == Counter(range(5))
    assert workshop(table).exists()
    write(table, 9, numbered(range(5, 6)))
    assert compact_hour(table, HOUR, MIB, never) is not None
    assert Counter(row["body"]["number"] for row in read(table)) == Counter(range(6))
    assert not workshop(table).exists()


def test_an_hour_is_dropped(tmp_path: Path) -> None:
    write(tmp_path, 0, numbered(range(1)))
    later = Hour(START + timedelta(hours=1), "date=2026-11-21/hour=14")
    write(tmp_path, 1, numbered(range(1, 2)), later)
    (tmp_path / "_schema").mkdir()
    (tmp_path / "date=x" / "hour=13").mkdir(parents=True)
    drop_hour(f"file://{tmp_path}", HOUR)
    assert hours_of(f"file://{tmp_path}") == [later]
    drop_hour(f"file://{tmp_path}", later)
    assert not (tmp_path / "date=2026-11-21").exists() and (tmp_path / "_schema").exists()


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_directories_are_exchanged_or_nothing_happens(tmp_path: Path, make: Callable[[Path], None]) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    (one / "x").touch()
    with pytest.raises(OSError, match="No such file"):
        exchange(one, other)
    make(other)
    exchange(one, other)
    assert (other / "x").exists() and not (one / "x").exists()
