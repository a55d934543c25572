"""What the quick way accepts is what the judge accepts, with the same values."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from gnsq_like.spark.source.by_columns import Parser
from tests.spark.source.generated import SCHEMA, Comparison


def test_generated_bodies_are_judged_alike_by_both_ways() -> None:
    comparison = Comparison(random.SystemRandom().randrange(10**9))
    comparison.run(20_000)
    assert comparison.different == []
    assert comparison.fitting > comparison.bodies * 2 / 5
    assert set(comparison.values) == set(SCHEMA.names)
    assert min(comparison.values.values()) > 5


def test_one_doubtful_body_does_not_change_the_others() -> None:
    schema = StructType(
        [StructField("n", LongType()), StructField("f", DoubleType()), StructField("t", TimestampType())]
    )
    good = [json.dumps({"n": at, "f": at / 4, "t": "2026-01-02T03:04:05Z"}).encode() for at in range(100)]
    wrong = [b'{"n": "x"}', b'{"f": 1e999}', b'{"t": "x"}', b'{"t": "2026-02-30T00:00:00Z"}', b"", b"[", b'{"t": true}']
    wrong += [b'{"f": "\xff"}', b'{"more": "\xff"}']
    for at, body in enumerate(wrong):
        bodies = [*good[:at], body, *good[at:]]
        column, reasons = Parser(schema).parse(pa.array(bodies, pa.binary()))
        assert [reason is None for reason in reasons.to_pylist()] == [each is not body for each in bodies]
        assert [each["n"] for each in column.to_pylist() if each is not None] == list(range(100))
        assert [each["f"] for each in column.to_pylist() if each is not None] == [at / 4 for at in range(100)]


def test_times_may_have_several_forms_in_one_batch() -> None:
    texts = ["1767323045", '"2026-01-02T03:04:05"', '"2026-01-02T04:04:05+01:00"', "null", '"2026-01-02T03:04:05.000Z"']
    column, reasons = Parser(StructType([StructField("t", TimestampType())])).parse(
        pa.array([f'{{"t": {text}}}'.encode() for text in texts])
    )
    wanted = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert [each["t"] for each in column.to_pylist()] == [wanted, wanted, wanted, None, wanted]
    assert reasons.null_count == len(texts)


def test_the_column_may_have_a_wider_type_without_not_null() -> None:
    schema = StructType([StructField("a", ShortType(), False), StructField("b", StringType())])
    made = pa.struct([("a", pa.int32()), ("b", pa.string())])
    column, reasons = Parser(schema, made=made).parse(
        pa.array([b'{"a": 5}', b'{"a": 40000}', b'{"a": 1e3}', b'{"b": "x"}'])
    )
    assert column.type == made
    assert column.to_pylist() == [{"a": 5, "b": None}, None, None, None]
    assert reasons.to_pylist()[1:] == ["field a is not a valid SMALLINT"] * 2 + ["field a is missing"]


def test_no_bodies_make_an_empty_column() -> None:
    column, reasons = Parser(SCHEMA).parse(pa.array([], pa.binary()))
    assert (len(column), len(reasons)) == (0, 0)
    assert column.type == Parser(StructType(SCHEMA.fields)).made


def test_the_type_has_not_null_where_the_schema_has_it() -> None:
    schema = StructType([StructField("a", IntegerType(), False), StructField("b", IntegerType())])
    column, _ = Parser(schema).parse(pa.array([b'{"a": 1}', b"{}"]))
    assert [field.nullable for field in column.type] == [False, True]
    assert column.to_pylist() == [{"a": 1, "b": None}, None]
