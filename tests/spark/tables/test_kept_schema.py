"""Which changes of a schema readers of a table can bear; ``test_pipeline`` has the table itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, MapType, StringType, StructField, StructType

from gnsq_like.spark.tables.columns import change
from tests.support.ddl import schema_of


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("a INT", "a INT, b STRING", None),
        ("a INT NOT NULL, b INT", "b INT, a INT", None),
        (
            "s STRUCT<a: INT>, l ARRAY<STRUCT<a: INT>>",
            "s STRUCT<a: INT, b: INT>, l ARRAY<STRUCT<c: INT, a: INT>>",
            None,
        ),
        ("n INT", "n BIGINT", "field n is INT in the table, and would be BIGINT"),
        ("x DECIMAL(5,2)", "x DECIMAL(7,2)", "field x is DECIMAL(5,2) in the table, and would be DECIMAL(7,2)"),
        ("user STRING", "name STRING", "field user is missing, which the table has (it may be null)"),
        ("user STRING", "User STRING", "field user is missing, which the table has (it may be null)"),
        ("s STRUCT<a: INT>", "s STRING", "field s is a STRUCT in the table, and would be STRING"),
        ("l ARRAY<STRUCT<a: INT>>", "l ARRAY<STRUCT<a: DATE>>", "field l[].a is INT in the table, and would be DATE"),
        ("m MAP<STRING, INT>", "m MAP<STRING, LONG>", "field m{} is INT in the table, and would be BIGINT"),
    ],
)
def test_fields_may_be_added_and_nothing_else(old: str, new: str, said: str | None) -> None:
    assert change(schema_of(old), schema_of(new)) == said


def test_bodies_stay_bytes_or_rows() -> None:
    row = schema_of("a INT")
    assert change(BinaryType(), BinaryType()) is None
    assert change(BinaryType(), row) == "bodies were bytes in the table, and would be rows of fields"
    assert change(row, BinaryType()) == "bodies were rows of fields in the table, and would be bytes"


def structs(kinds: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    fields = st.dictionaries(st.sampled_from("abcde"), st.tuples(kinds, st.booleans()), min_size=1)
    return fields.map(lambda each: StructType([StructField(name, *rest) for name, rest in each.items()]))


KINDS: st.SearchStrategy[DataType] = st.recursive(
    st.sampled_from([IntegerType(), StringType()]),
    lambda inner: structs(inner) | inner.map(ArrayType) | inner.map(lambda kind: MapType(StringType(), kind)),
    max_leaves=8,
)


@given(structs(KINDS), structs(KINDS), structs(KINDS))
def test_what_can_be_borne_step_by_step_can_be_borne_at_once(one: DataType, two: DataType, three: DataType) -> None:
    assert change(one, one) is None
    if change(one, two) is None and change(two, three) is None:
        assert change(one, three) is None
