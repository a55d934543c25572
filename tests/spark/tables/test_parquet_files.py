"""Statistics for Delta's log: right for readers that pass over files."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from gnsq_like.spark.tables.parquet_files import stats_of

AT = datetime(2026, 11, 21, 13, 59, 50, 123456, UTC)


def stats(table: pa.Table, rows_in_group: int = 1000) -> dict[str, Any]:
    file = io.BytesIO()
    parquet.write_table(table, file, row_group_size=rows_in_group, store_schema=False)
    return stats_of(parquet.read_metadata(io.BytesIO(file.getvalue())), table.schema)


def test_bounds_of_each_column_in_order_of_the_schema() -> None:
    # The columns in front of body.n are several of the file's.
    table = pa.table(
        {
            "list": pa.array([[{"a": 1, "b": 2}], None], pa.list_(pa.struct({"a": pa.int32(), "b": pa.int32()}))),
            "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "body": pa.array([{"n": 7, "deep": {"s": "x"}}, {"n": -7, "deep": None}]),
            "at": pa.array([AT, None], pa.timestamp("us", "UTC")),
            "local": pa.array([AT.replace(tzinfo=None)] * 2, pa.timestamp("us")),
            "day": pa.array([date(1, 1, 1), date(9999, 12, 31)]),
        }
    )
    assert stats(table) == {
        "numRecords": 2,
        "minValues": {
            "body": {"n": -7, "deep": {"s": "x"}},
            "at": "2026-11-21T13:59:50.123456Z",
            "local": "2026-11-21T13:59:50.123456",
            "day": "0001-01-01",
        },
        "maxValues": {
            "body": {"n": 7, "deep": {"s": "x"}},
            "at": "2026-11-21T13:59:50.123456Z",
            "local": "2026-11-21T13:59:50.123456",
            "day": "9999-12-31",
        },
        "nullCount": {"body": {"n": 0, "deep": {"s": 1}}, "at": 1, "local": 0, "day": 0},
    }


def test_no_bounds_of_what_readers_compare_differently() -> None:
    table = pa.table(
        {
            "x": [1.0, float("nan")],
            "money": pa.array([Decimal("1.10"), Decimal("2.20")]),
            "raw": [b"a", b"b"],
            "yes": [True, False],
            "long": ["a", "b" * 1000],
            "nothing": pa.array([None, None], pa.int64()),
        }
    )
    found = stats(table)
    assert (found["minValues"], found["maxValues"]) == ({}, {})
    assert found["nullCount"]["nothing"] == 2


def test_at_most_32_columns() -> None:
    table = pa.table({f"c{number}": [number] for number in range(40)})
    assert list(stats(table)["minValues"]) == [f"c{number}" for number in range(32)]


VALUES = st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=20)


@given(VALUES, st.integers(1, 5))
def test_every_value_is_within_the_bounds(values: list[int | None], rows_in_group: int) -> None:
    found = stats(pa.table({"n": pa.array(values, pa.int64())}), rows_in_group)
    assert found["numRecords"] == len(values)
    assert found["nullCount"]["n"] == values.count(None)
    known = [each for each in values if each is not None]
    if known:
        assert (found["minValues"]["n"], found["maxValues"]["n"]) == (min(known), max(known))
    else:
        assert "n" not in found["minValues"]
