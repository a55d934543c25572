"""Why a body does not fit, in words; without Spark, but with its types. ``test_pipeline`` compares with Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from gnsq_like.deadletter import DeadLetter, open_envelope
from gnsq_like.spark.pipeline.dead_letters import DescribeRejected, pack_within
from gnsq_like.spark.pipeline.rejected import GENERAL, reason_for

SCHEMA = StructType(
    [
        StructField("user", StringType(), nullable=False),
        StructField("n", IntegerType()),
        StructField("big", LongType()),
        StructField("ok", BooleanType()),
        StructField("x", DoubleType()),
        StructField("price", DecimalType(10, 2)),
        StructField("at", TimestampType()),
        StructField("day", DateType()),
        StructField("tags", ArrayType(IntegerType())),
        StructField("by", MapType(StringType(), IntegerType())),
        StructField("inner", StructType([StructField("a", IntegerType(), nullable=False)])),
    ]
)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\xff", "it is not UTF-8"),
        (b"nope", "it is not JSON: expecting value"),
        (b'{"user": "a"} {}', "it is not JSON: extra data"),
        (b'{"user": "a", "n": NaN}', "field n is not a valid INT"),
        (b'{"user": "\\ud800"}', "field user is not Unicode"),
        (b'{"user": "a", "by": {"\\udc00": 1}}', "field by has a key that is not Unicode"),
        (b'{"user": "a", "price": 1.239}', "field price is not a valid DECIMAL(10,2)"),
        (b'{"user": "a", "at": 1700000000000}', "field at is not a valid TIMESTAMP"),
        (b'{"user":' + b"[" * 200_000, "it is nested too deeply"),
        (b"[]", "it is JSON, but not an object"),
        (b"null", "it is JSON, but not an object"),
        (b"{}", "field user is missing"),
        (b'{"user": null}', "field user is null"),
    ],
)
def test_what_is_no_object_of_the_schema(body: bytes, said: str, no_garbage_collection: None) -> None:
    assert reason_for(body, SCHEMA) == said


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("n", "1", "field n is not a valid INT"),
        ("n", 1.5, "field n is not a valid INT"),
        ("n", True, "field n is not a valid INT"),
        ("n", 2**31, "field n is not a valid INT"),
        ("big", 2**63, "field big is not a valid BIGINT"),
        ("ok", 1, "field ok is not a valid BOOLEAN"),
        ("x", "1.5", "field x is not a valid DOUBLE"),
        ("price", True, "field price is not a valid DECIMAL(10,2)"),
        ("at", "yesterday", "field at is not a valid TIMESTAMP"),
        ("day", 5, "field day is not a valid DATE"),
        ("tags", 5, "field tags is not an array"),
        ("tags", [1, "x"], "field tags[] is not a valid INT"),
        ("by", [], "field by is not an object"),
        ("by", {"k": "x"}, "field by{} is not a valid INT"),
        ("inner", 1, "field inner is not an object"),
        ("inner", {}, "field inner.a is missing"),
        ("inner", {"a": "x"}, "field inner.a is not a valid INT"),
    ],
)
def test_the_field_that_does_not_fit_is_named(field: str, value: Any, said: str) -> None:
    assert reason_for(json.dumps({"user": "a", field: value}).encode(), SCHEMA) == said


@pytest.mark.parametrize(
    "more",
    [
        {"n": 5, "big": 2**62, "ok": False, "x": 3, "price": "1.25", "at": "2026-01-01T00:00:00Z", "day": "2026-01-01"},
        {"tags": [1, None], "by": {"k": None}, "inner": {"a": 1}, "x": "NaN", "at": 5},
        {"user": 5, "unknown": {}},
    ],
)
def test_where_nothing_is_found_the_reason_is_general(more: dict[str, Any]) -> None:
    assert reason_for(json.dumps({"user": "a", **more}).encode(), SCHEMA) == GENERAL


@given(st.binary(max_size=200))
def test_every_body_has_a_reason_of_one_line(body: bytes) -> None:
    assert reason_for(body, SCHEMA).isprintable()


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists))
def test_every_value_has_a_reason(value: Any) -> None:
    for field in SCHEMA.names:
        assert reason_for(json.dumps({"user": "a", field: value}).encode(), SCHEMA)


@given(st.binary(min_size=1, max_size=300))
def test_a_dead_letter_has_all_and_the_reason(body: bytes) -> None:
    describe = DescribeRejected(SCHEMA, 10_000, "/rejected")
    why, packed = describe("0" * 16, body, 1_000_000, 3, "t", "c", "127.0.0.1:4150", 2_000_000)
    letter = open_envelope(packed)
    assert letter == DeadLetter("t", "c", "127.0.0.1:4150", "0" * 16, 3, 10**9, 2 * 10**9, body, why)


@given(st.one_of(st.binary(min_size=1), st.text(min_size=1).map(str.encode)), st.integers(1, 2000))
def test_a_long_letter_is_cut_and_says_so(body: bytes, times: int) -> None:
    letter = DeadLetter("t", "c", "127.0.0.1:4150", "0" * 16, 3, 10**9, 2 * 10**9, body * times, "why")
    packed = pack_within(1000, letter, "/rejected")
    assert len(packed) <= 1000
    opened = open_envelope(packed)
    assert letter.body.startswith(opened.body)
    if opened != letter:
        first = f"why (the first {len(opened.body)} of {len(letter.body)} bytes; the whole is in /rejected)"
        assert opened.reason == first
