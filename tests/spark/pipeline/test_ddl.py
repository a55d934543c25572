"""A schema's DDL is read without Spark, as Spark reads it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.types import DataType, DecimalType, MapType, StructType

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.pipeline.ddl import schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOOD = [
    "user STRING, at TIMESTAMP",
    "a: int, b bigint NOT NULL COMMENT 'the, \\' NOT NULL one', c Decimal",
    '`a.b` INT, `c``d` STRING not null, "x" INT'.replace(', "x" INT', ""),
    "STRUCT<a: INT NOT NULL, b: STRING>",
    "a TINYINT, b SMALLINT, c SHORT, d BYTE, e LONG, f INTEGER, g REAL, h FLOAT, i DOUBLE, j DATE, k BINARY, l BOOLEAN",
    "a DECIMAL(10), b DEC(38,38), c NUMERIC( 5 , 2 ), d TIMESTAMP_NTZ, e TIMESTAMP_LTZ",
    "x ARRAY<ARRAY<STRUCT<a: INT, b: MAP<STRING, STRUCT<c: INT NOT NULL>>>>>, struct STRING, date DATE, map INT",
]


@pytest.mark.parametrize("ddl", GOOD)
def test_it_is_read_as_spark_reads_it(spark: SparkSession, ddl: str) -> None:
    theirs = StructType.fromDDL(ddl)
    assert isinstance(theirs, StructType)
    for field in theirs.fields:
        field.metadata = {}  # comments
    assert schema_of(ddl) == theirs


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("user STRANG", "there is no type STRANG, of field user"),
        ("user", "a type is missing before its end"),
        ("STRUCT<>", "it must be columns such as"),
        ("user STRING,", "a name is missing before its end"),
        (" ", "a name is missing before its end"),
        ("user STRING NOT", "NOT NULL is cut off"),
        ("user STRING; n INT", '";" is not expected'),
        ("user STRING n INT", '"n" is not expected'),
        ("x ARRAY<INT", "> is missing before its end"),
        ("user STRING, USER INT", "there are 2 fields user"),
        ("x ARRAY<STRUCT<a: INT, a: INT>>", "there are 2 fields a"),
        ("by MAP<STRING, STRUCT<>>", "a STRUCT needs a field"),
        ("by MAP<INT, INT>", "the keys of a MAP must be STRING"),
        ("x DECIMAL(39, 2)", "DECIMAL has 1 to 38 digits"),
        ("x DECIMAL(5, 6)", "DECIMAL has 1 to 38 digits"),
        ("code CHAR(3)", "field code cannot be CHAR"),
        ("at TIME", "field at cannot be TIME"),
        ("a STRUCT<b: ARRAY<GEOMETRY(4326)>>", "field a.b[] cannot be GEOMETRY"),
        ("since INTERVAL DAY TO SECOND", "field since cannot be INTERVAL"),
        ("v VARIANT", "field v cannot be VARIANT: take another type, such as STRING"),
        ("a " + "ARRAY<" * 99, "it is nested more than"),
    ],
)
def test_what_is_none_is_refused_by_name(ddl: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=r"parse\.schema") as raised:
        schema_of(ddl)
    assert said in raised.value.reason
    assert "\n" not in str(raised.value)


@given(st.text("aSTRING INT,<>()`:'\\ARAYMP012", max_size=40))
def test_every_text_is_a_schema_or_refused(ddl: str) -> None:
    with suppress(InvalidOption):
        assert schema_of(ddl).fields


def test_types_without_an_argument() -> None:
    found: list[DataType] = [each.dataType for each in schema_of("a DECIMAL, b MAP<STRING, DECIMAL(3,1)>").fields]
    assert found[0] == DecimalType(10, 0)
    assert isinstance(found[1], MapType) and found[1].valueType == DecimalType(3, 1)
