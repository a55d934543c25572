"""Why a body does not fit, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
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
from gnsq_like.spark.pipeline.dead_letters import GENERAL, DescribeRejected, pack_within, structure_of
from gnsq_like.spark.pipeline.parse import WHY, parse
from gnsq_like.spark.pipeline.paths import settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        StructField("raw", BinaryType()),
        StructField("tags", ArrayType(IntegerType())),
        StructField("by", MapType(StringType(), IntegerType())),
        StructField("inner", StructType([StructField("a", IntegerType(), nullable=False)])),
    ]
)


#: What Spark's parser cannot tell.
STRUCTURE = [
    (b"\xff", "it is not UTF-8"),
    (b"nope", "it is not JSON: expecting value"),
    (b'{"user": "a"} {}', "it is not JSON: extra data"),
    (b"[]", "it is JSON, but not an object"),
    (b"null", "it is JSON, but not an object"),
    (b"{}", "field user is missing"),
    (b'{"user": null}', "field user is null"),
    (b'{"user": "a", "tags": 5}', "field tags is not an array"),
    (b'{"user": "a", "by": []}', "field by is not an object"),
    (b'{"user": "a", "inner": 1}', "field inner is not an object"),
    (b'{"user": "a", "inner": "{}"}', "field inner is not an object"),
    (b'{"user": "a", "inner": {}}', "field inner.a is missing"),
]
VALUES = [
    (b'{"user": "a", "n": NaN}', "field n is not a valid INT"),
    (b'{"user": "\\ud800"}', "field user is not Unicode"),
    (b'{"user": "a", "by": {"\\udc00": 1}}', "field by has a key that is not Unicode"),
    (b'{"user": "a", "price": 1.239}', "field price is not a valid DECIMAL(10,2)"),
    (b'{"user": "a", "at": 1700000000000}', "field at is not a valid TIMESTAMP"),
    (b'{"user": "a", "ok": 1}', "field ok is not a valid BOOLEAN"),
    (b'{"user": "a", "raw": "AQI"}', "field raw is not a valid BINARY"),
    (b'{"user": "a", "day": "2026-1-2"}', "field day is not a valid DATE"),
    (b'{"user": "a", "tags": [1, "x"]}', "field tags[] is not a valid INT"),
    (b'{"user": "a", "by": {"k": "x"}}', "field by{} is not a valid INT"),
    (b'{"user": "a", "inner": {"a": "x"}}', "field inner.a is not a valid INT"),
]


@pytest.mark.parametrize(("body", "said"), [*STRUCTURE, (b'{"user":' + b"[" * 200_000, "it is nested too deeply")])
def test_what_is_wrong_around_the_values(body: bytes, said: str, no_garbage_collection: None) -> None:
    assert structure_of(body, SCHEMA) == said


def test_spark_names_the_value_that_is_none_of_its_type(spark: SparkSession) -> None:
    bodies = [body for body, _ in [*STRUCTURE, *VALUES]] + [b'{"user": "a", "by": {"k": 1, "k": 2}}']
    spark = spark.newSession()
    settle(spark)
    frame = spark.createDataFrame(list(enumerate(bodies)), "at INT, body BINARY")
    found = [row.why for row in sorted(parse(frame, SCHEMA).select("at", WHY).collect())]
    assert found == [*["" for _ in STRUCTURE], *[said for _, said in VALUES], None]
    assert [structure_of(body, SCHEMA) for body, _ in VALUES] == ["" for _ in VALUES]


@given(st.binary(max_size=200))
def test_every_body_has_a_reason_of_one_line(body: bytes) -> None:
    assert structure_of(body, SCHEMA).isprintable()


@given(st.binary(min_size=1, max_size=300))
def test_a_dead_letter_has_all_and_the_reason(body: bytes) -> None:
    describe = DescribeRejected(SCHEMA, 10_000, "/rejected")
    why, packed = describe("0" * 16, body, 1_000_000, 3, "t", "c", "127.0.0.1:4150", 2_000_000, "")
    assert why == (structure_of(body, SCHEMA) or GENERAL)
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
