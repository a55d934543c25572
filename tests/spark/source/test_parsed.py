"""Bodies as columns, under Spark: from a topic to the rows of a stream and of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.source.by_columns import check_fields
from tests.support.daemons import Running, running_nsqd
from tests.support.spark_engine import PATIENT, publish, source_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "user STRING NOT NULL, at TIMESTAMP, parts ARRAY<STRUCT<n INT NOT NULL>>"


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Running]:
    with running_nsqd("process") as running:
        yield running


def collected(spark: SparkSession, nsqd: Running, directory: Path, topic: str, **options: Any) -> list[Any]:
    """The rows of an AvailableNow run of a topic; of those in the options if it is ""."""
    given = source_options([nsqd], directory, topic, **PATIENT, **options)
    if not topic:
        del given["topic"]
    frame = spark.readStream.format("nsq").options(**given).load()
    found: list[Any] = []
    writer = frame.writeStream.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True)
    query = writer.foreachBatch(lambda batch, number: found.extend(batch.collect())).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return found


def test_a_body_that_fits_is_a_struct_and_another_one_is_kept_with_the_reason(
    spark: SparkSession, nsqd: Running, tmp_path: Path
) -> None:
    began = datetime.now(UTC)
    fits = b'{"user": "u", "at": "2026-01-02T03:04:05Z", "parts": [{"n": 1}, null]}'
    publish(nsqd, "parsed", [fits, b'{"user": null}', b"x"])
    rows = collected(spark, nsqd, tmp_path, "parsed", schema=SCHEMA, columns="id,body,raw,reason,seen_at,size")
    fitting, null, rubbish = sorted(rows, key=lambda row: row.reason or "")
    assert fitting.body.user == "u"
    assert fitting.body.parts[0].n == 1
    assert fitting.body.parts[1] is None
    assert (fitting.raw, fitting.reason) == (None, None)
    assert (null.body, bytes(null.raw), null.reason) == (None, b'{"user": null}', "field user is null")
    assert (rubbish.body, bytes(rubbish.raw), rubbish.size) == (None, b"x", 1)
    assert rubbish.reason.startswith("it is not JSON")
    [seen] = {row.seen_at for row in rows}
    assert began <= seen.astimezone(UTC) <= datetime.now(UTC)


def test_not_null_holds_inside_a_body_and_sql_may_use_it(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    given = source_options([nsqd], tmp_path, "nulls", schema=SCHEMA)
    frame = spark.readStream.format("nsq").options(**given).load()
    body = frame.schema["body"]
    assert body.nullable
    assert isinstance(body.dataType, StructType)
    assert [field.nullable for field in body.dataType.fields] == [False, True, True]
    publish(nsqd, "nulls", [b'{"user": "u"}', b"{}", b'{"user": "v", "at": 1700000000000}'])
    options = {"schema": SCHEMA, "timestamp_unit": "ms", "keep_raw": True}
    rows = collected(spark, nsqd, tmp_path, "nulls", **options)
    assert sorted(row.body.user for row in rows if row.body is not None) == ["u", "v"]
    assert [row.reason for row in rows if row.body is None] == ["field user is missing"]
    assert all(row.raw is not None for row in rows)


def test_topics_have_columns_of_their_own(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "own.Clicks", [b'{"user": "u"}', b'{"user": 5}'])
    publish(nsqd, "own.views", [b'{"n": 1}', b"rubbish"])
    options = {"topics": "own.Clicks,own.views", "schema.own.Clicks": "user STRING"}
    rows = collected(spark, nsqd, tmp_path, "", **options)
    assert sorted(row.body_own_clicks.user for row in rows if row.topic == "own.Clicks") == ["5", "u"]
    views = [row for row in rows if row.topic == "own.views"]
    assert sorted(bytes(row.body) for row in views) == [b"rubbish", b'{"n": 1}']
    assert {(row.body_own_clicks, row.reason) for row in views} == {(None, None)}


def test_a_batch_read_has_the_same_columns(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "looked", [b'{"user": "u"}', b"x"])
    given = source_options([nsqd], tmp_path, "looked", schema="user STRING")
    rows = spark.read.format("nsq").options(**given).load().collect()
    assert sorted(row.body.user if row.body else bytes(row.raw).decode() for row in rows) == ["u", "x"]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("user STRING,", "PARSE_SYNTAX_ERROR"),
        ("v VARIANT", "field v cannot be VARIANT"),
        ("a INT, A STRING", "there are 2 fields a"),
        ("a INT>, b STRUCT<c: INT", "leave .schema"),
    ],
)
def test_a_schema_that_json_cannot_have_is_refused(
    spark: SparkSession, nsqd: Running, tmp_path: Path, schema: str, message: str
) -> None:
    with pytest.raises((StreamingQueryException, PySparkException)) as raised:
        collected(spark, nsqd, tmp_path, "refused", schema=schema)
    assert message in str(raised.value)
    assert "Traceback" not in str(raised.value)


def test_the_field_of_a_wrong_type_is_named() -> None:
    def schema(kind: Any) -> StructType:
        return StructType([StructField("a", StructType([StructField("b", kind)]))])

    for kind, message in (
        (VarcharType(5), "field a.b cannot be VARCHAR"),
        (ArrayType(VarcharType(5)), r"field a.b\[\] cannot be VARCHAR"),
        (MapType(IntegerType(), StringType()), "field a.b has keys that are not STRING"),
        (StructType([StructField("x", IntegerType()), StructField("X", TimestampType())]), "there are 2 fields x"),
        (StructType([]), "the STRUCT a.b needs a field"),
    ):
        with pytest.raises(InvalidOption, match=message):
            check_fields(schema(kind), "schema", "")
    check_fields(schema(MapType(StringType(), IntegerType())), "schema", "")
