"""Batches are added once to tables of both formats, whatever is repeated, killed, or run twice."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from gnsq_like.spark.tables.committed_table import is_committed
from gnsq_like.spark.tables.data_file import BatchOutOfOrder, TableError, check_files
from tests.support.committed_tables import (
    APPLICATION,
    AT,
    KINDS,
    Kind,
    add,
    columns,
    duckdb_rows,
    open_at,
    read,
    rows_of,
    write,
)
from tests.support.ddl import schema_of
from tests.support.spark_sessions import ROOT

pytestmark = pytest.mark.parametrize("kind", KINDS)


def numbers(rows: list[dict[str, Any]]) -> Counter[int]:
    return Counter(row["body"]["number"] for row in rows)


def test_a_batch_is_added_once(kind: Kind, tmp_path: Path) -> None:
    table = open_at(kind, tmp_path / "a place")
    assert table.columns() is None
    table.prepare(columns())
    assert add(table, 0, range(100))
    later = AT + timedelta(minutes=1)
    assert add(table, 1, range(100, 200), later)
    # Another process, as after a kill between the commit and the end of the batch.
    again = open_at(kind, tmp_path / "a place")
    assert not add(again, 1, range(100, 200), later)
    assert again.commit("another/data", 0, write(again, rows_of(range(200, 210)), columns()))
    rows = read(kind, tmp_path / "a place")
    assert numbers(rows) == Counter(range(210))
    assert {row["seen_at"] for row in rows} == {AT, later}
    assert {row["seen_at"].tzinfo is not None for row in rows} == {True}


def test_duckdb_reads_it_and_passes_over_hours(kind: Kind, tmp_path: Path) -> None:
    table = open_at(kind, tmp_path)
    table.prepare(columns())
    later = AT + timedelta(hours=11)
    assert add(table, 0, range(100)) and add(table, 1, range(100, 150), later)
    counted = "count(*), count(DISTINCT body.number), min(epoch_us(seen_at))"
    query = f"SELECT {counted} FROM {{table}} WHERE seen_at > '2026-11-21 20:00:00Z'"
    [(count, different, least)] = duckdb_rows(kind, tmp_path, query)
    assert (count, different, least) == (50, 50, round(later.timestamp() * 1e6))


def test_a_later_batch_of_the_query_is_refused(kind: Kind, tmp_path: Path) -> None:
    table = open_at(kind, tmp_path)
    table.prepare(columns())
    assert add(table, 7, range(3))
    with pytest.raises(BatchOutOfOrder, match="has batch 7 of this query, and batch 6 was to be written"):
        add(table, 6, range(3))
    assert is_committed(table.url, 7, 7) and not is_committed(table.url, 7, 8)


def test_of_two_drivers_with_the_same_batch_one_commits_it(kind: Kind, tmp_path: Path) -> None:
    open_at(kind, tmp_path).prepare(columns())
    batches, drivers = 8, 3
    results: list[list[bool]] = [[] for _ in range(drivers)]
    together = threading.Barrier(drivers, timeout=100)

    def drive(own: list[bool]) -> None:
        table = open_at(kind, tmp_path)
        for number in range(batches):
            files = write(table, rows_of(range(number * 10, number * 10 + 10)), columns())
            together.wait()
            own.append(table.commit(APPLICATION, number, files))

    threads = [threading.Thread(target=drive, args=(each,)) for each in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sum(each) for each in zip(*results, strict=True)] == [1] * batches
    assert numbers(read(kind, tmp_path)) == Counter(range(batches * 10))


def test_queries_that_write_at_once_do_not_hinder_each_other(kind: Kind, tmp_path: Path) -> None:
    open_at(kind, tmp_path).prepare(columns())
    failed: list[BaseException] = []

    def drive(which: int) -> None:
        try:
            table = open_at(kind, tmp_path)
            for number in range(6):
                files = write(table, rows_of([which * 100 + number]), columns())
                assert table.commit(f"{which}/data", number, files)
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=drive, args=(each,)) for each in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert numbers(read(kind, tmp_path)) == Counter(which * 100 + number for which in range(3) for number in range(6))


EVERYTHING = """
    tiny TINYINT, small SMALLINT, n INT, big BIGINT, yes BOOLEAN, f FLOAT, x DOUBLE, money DECIMAL(20,4), text STRING,
    raw BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, list ARRAY<STRUCT<a: TINYINT>>, map MAP<STRING, SMALLINT>,
    inner STRUCT<`a.b`: INT NOT NULL, deep: STRUCT<c: STRING>>
"""
VALUE = {
    "tiny": -128,
    "small": 32767,
    "n": 1,
    "big": 2**63 - 1,
    "yes": True,
    "f": 0.5,
    "x": float("inf"),
    "money": Decimal("1234567890123456.7890"),
    "text": "ü" * 100,
    "raw": b"\x00\xff",
    "day": datetime(1970, 1, 2, tzinfo=UTC).date(),
    "at": datetime(2000, 2, 29, 1, 2, 3, 4, UTC),
    "local": datetime(2026, 3, 29, 2, 30, 0, 1),
    "list": [{"a": 1}, None],
    "map": [("k", 2), ("l", None)],
    "inner": {"a.b": 3, "deep": {"c": "d"}},
}


def test_all_types_come_back(kind: Kind, tmp_path: Path) -> None:
    table = open_at(kind, tmp_path)
    wide = columns(EVERYTHING.strip())
    table.prepare(wide)
    row = {"id": "a", "seen_at": AT, "body": VALUE}
    empty = {"id": "b", "seen_at": AT, "body": dict.fromkeys(VALUE)}
    assert table.commit(APPLICATION, 0, write(table, [row, empty], wide))
    found = {each["id"]: each["body"] for each in read(kind, tmp_path)}
    found["b"]["list"] = found["b"]["list"] or None  # pyiceberg reads a null one as empty, unlike DuckDB
    assert found == {"a": VALUE, "b": dict.fromkeys(VALUE)}
    assert duckdb_rows(kind, tmp_path, "SELECT body.list IS NULL FROM {table} ORDER BY id") == [(False,), (True,)]
    kept = table.columns()
    assert kept is not None
    assert kept["body"].dataType == schema_of(EVERYTHING.replace(" NOT NULL", ""))
    query = 'SELECT body.big, body.money, body.text, body."inner".deep.c FROM {table} WHERE body.n = 1'
    assert duckdb_rows(kind, tmp_path, query) == [(2**63 - 1, VALUE["money"], VALUE["text"], "d")]


def test_fields_are_added_on_every_level(kind: Kind, tmp_path: Path) -> None:
    table = open_at(kind, tmp_path)
    old = columns("number BIGINT, s STRUCT<a: INT>, l ARRAY<STRUCT<a: INT>>")
    table.prepare(old)
    body = {"number": 1, "s": {"a": 1}, "l": [{"a": 1}]}
    assert table.commit(APPLICATION, 0, write(table, [{"id": "old", "seen_at": AT, "body": body}], old))
    new = columns(
        "number BIGINT, more STRING, s STRUCT<b: STRING, a: INT>, l ARRAY<STRUCT<a: INT, b: DATE>>, "
        "m MAP<STRING, STRUCT<c: TIMESTAMP_NTZ>>"
    )
    for _ in range(2):
        table.prepare(new)
    wide = {
        "number": 2,
        "more": "x",
        "s": {"b": "x", "a": 2},
        "l": [{"a": 2, "b": AT.date()}],
        "m": [("k", {"c": AT.replace(tzinfo=None)})],
    }
    assert table.commit(APPLICATION, 1, write(table, [{"id": "new", "seen_at": AT, "body": wide}], new))
    found = {row["id"]: row["body"] for row in read(kind, tmp_path)}
    assert found["new"] == wide
    assert found["old"] == {
        "number": 1,
        "more": None,
        "s": {"b": None, "a": 1},
        "l": [{"a": 1, "b": None}],
        "m": None,
    }
    query = "SELECT id, body.more, body.s.b FROM {table} ORDER BY id"
    assert duckdb_rows(kind, tmp_path, query) == [("new", "x", "x"), ("old", None, None)]
    # A process with the old schema still writes: what it lacks is null.
    assert table.commit("old/data", 0, write(table, [{"id": "late", "seen_at": AT, "body": body}], old))
    assert {row["id"]: row["body"] for row in read(kind, tmp_path)}["late"] == found["old"]


def test_a_file_that_is_not_there_is_not_added(kind: Kind, tmp_path: Path) -> None:
    table = open_at(kind, tmp_path)
    files = write(table, rows_of([1]), columns())
    check_files(table.url, files)
    path = tmp_path / "data" / files[0].path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TableError, match="is not here in full"):
        check_files(table.url, files)
    path.unlink()
    with pytest.raises(TableError, match="is not here in full"):
        check_files(table.url, files)


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.support.committed_tables import add, columns, open_at

kind, directory, first, last = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
table = open_at(kind, directory)
table.prepare(columns())
print("ready", flush=True)
for number in range(first, last):
    add(table, number, range(number * 10, number * 10 + 10))
    print(number, flush=True)
"""


def test_killed_at_any_time_each_batch_is_there_once(kind: Kind, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(KILLED)
    first, last = 0, 12
    # Lines of output until the kill, which hits a commit, or the time before or after one.
    for lines in (1, 4, 7, None):
        command = [sys.executable, str(program), kind, str(tmp_path), str(first), str(last)]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as process:
            assert process.stdout is not None
            if lines is None:
                process.communicate()
            else:
                for _ in range(lines):
                    process.stdout.readline()
                process.kill()
                # The batch that it has not reported, as Spark does: it may be committed.
                first += lines - 1 + len(process.stdout.readlines())
    assert process.returncode == 0
    assert numbers(read(kind, tmp_path)) == Counter(range(last * 10))
    assert duckdb_rows(kind, tmp_path, "SELECT count(*) FROM {table}") == [(last * 10,)]
