"""The types of stored columns, and what a table lacks."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from gnsq_like.spark.tables.columns import added_in_map, lacks, storable
from tests.support.ddl import schema_of

NESTED = "a TINYINT NOT NULL, l ARRAY<STRUCT<b: SMALLINT NOT NULL>>, m MAP<STRING, STRUCT<c: TINYINT NOT NULL>>"


def test_everything_may_be_null() -> None:
    assert storable(schema_of(NESTED)) == schema_of(NESTED.replace(" NOT NULL", ""))


def test_iceberg_has_no_small_integers() -> None:
    wide = NESTED.replace(" NOT NULL", "").replace("TINYINT", "INT").replace("SMALLINT", "INT")
    assert storable(schema_of(NESTED), without_small=True) == schema_of(wide)


@pytest.mark.parametrize(
    ("found", "wanted", "lacking", "in_map"),
    [
        ("a INT, b INT", "b INT", False, None),
        ("a INT", "a INT, b INT", True, None),
        ("s STRUCT<t: STRUCT<a: INT>>", "s STRUCT<t: STRUCT<a: INT, b: INT>>", True, None),
        ("l ARRAY<STRUCT<a: INT>>", "l ARRAY<STRUCT<b: INT>>", True, None),
        ("m MAP<STRING, STRUCT<a: INT>>", "m MAP<STRING, STRUCT<b: INT, a: INT>>", True, "m{}"),
        ("m MAP<STRING, STRUCT<a: INT>>", "m MAP<STRING, STRUCT<a: INT>>, n INT", True, None),
        (
            "s STRUCT<l: ARRAY<MAP<STRING, ARRAY<STRUCT<a: INT>>>>>",
            "s STRUCT<l: ARRAY<MAP<STRING, ARRAY<STRUCT<a: INT, b: INT>>>>>",
            True,
            "s.l[]{}",
        ),
    ],
)
def test_what_a_table_lacks(found: str, wanted: str, lacking: bool, in_map: str | None) -> None:
    assert lacks(schema_of(found), schema_of(wanted)) == lacking
    assert added_in_map(schema_of(found), schema_of(wanted)) == in_map
