"""Bodies become rows: Spark's JSON parser, made strict.

``from_json`` reads ``{"a": 1} rubbish`` as ``{"a": 1}``, takes the first of several objects for all of them, and
replaces bytes that are not UTF-8: part of a message would silently be lost. So a body is parsed as the only element of
an array in an outer object: then all of it must be JSON, and a single object. A body that closes the array itself is
recognized by the additional keys of the outer object, and one that also closes that object by a missing key. The values
of fields are read as text, and ``values`` makes the schema's types of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, DataType, MapType, StringType, StructField, StructType

from gnsq_like.spark.pipeline import values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The columns that are added to the source's. The second is null for a message that fits; else the reason, or "" if
#: ``dead_letters`` has to look for it.
PARSED, WHY = "parsed", "why"

#: The last key of the outer object. A body that closes that object itself cannot know the name.
_END = f"end-{uuid4().hex}"
_HEAD, _TAIL = '{"body":[', f'],"{_END}":true}}'
_CORRUPT = "_corrupt"


def parse(
    rows: DataFrame,
    schema: StructType | None,
    unit: str = "s",
    *,
    only: Column | None = None,
    parsed: str = PARSED,
    why: str = WHY,
) -> DataFrame:
    """Add ``parsed``, the body as it is to be stored, and ``why`` it does not fit the schema.

    :param schema: the fields of the JSON object; None keeps bodies as they are, and all fit
    :param unit: the unit of a TIMESTAMP that is a number
    :param only: whether a row is to be parsed; both columns are null for others
    :param parsed: the names of the two columns
    """
    body = F.col("body") if only is None else F.when(only, F.col("body"))
    if schema is None:
        return rows.withColumn(parsed, body).withColumn(why, F.lit(None).cast("string"))
    text = body.cast("string")
    around = F.concat(F.lit(_HEAD), values.marked(text), F.lit(_TAIL))
    outer = StructType(
        [
            StructField("body", ArrayType(values.plain(schema))),
            StructField(_END, BooleanType()),
            StructField(_CORRUPT, StringType()),
        ]
    )
    options = {
        "columnNameOfCorruptRecord": _CORRUPT,
        "allowSingleQuotes": "false",
        "allowNonNumericNumbers": "false",  # those that are allowed are marked
    }
    found = rows.withColumn("_found", F.from_json(around, outer, options))
    first = F.get(F.col("_found.body"), F.lit(0))
    is_whole = (
        F.col(f"_found.{_CORRUPT}").isNull()
        & F.col(f"_found.`{_END}`")
        & (F.size("_found.body") == 1)
        & first.isNotNull()
        & F.is_valid_utf8(text)
        & F.when(text.rlike(r"\]\s*,"), F.size(F.json_object_keys(around)) == 2).otherwise(F.lit(True))
        & _complete(first, schema)
    )
    wrong = values.misfit(first, schema, unit)
    reason = F.when(F.coalesce(is_whole, F.lit(False)), wrong).otherwise(F.coalesce(wrong, F.lit("")))
    found = found.withColumn(why, reason if only is None else F.when(only, reason))
    return found.withColumn(parsed, values.value_of(first, schema, unit)).drop("_found")


def _complete(value: Column, kind: DataType) -> Column:
    """Whether no field is null that is NOT NULL in the schema; ``from_json`` does not check that."""
    if isinstance(kind, StructType):
        result = F.lit(True)
        for field in kind.fields:
            inner = value.getField(field.name)
            if not field.nullable:
                result = result & inner.isNotNull()
            if _has_required(field.dataType):
                result = result & (inner.isNull() | _complete(inner, field.dataType))
        return result
    if isinstance(kind, ArrayType):
        return F.forall(value, lambda each: each.isNull() | _complete(each, kind.elementType))
    if isinstance(kind, MapType):
        return F.forall(F.map_values(value), lambda each: each.isNull() | _complete(each, kind.valueType))
    return F.lit(True)


def _has_required(kind: DataType) -> bool:
    """Whether any field in a type is NOT NULL."""
    if isinstance(kind, StructType):
        return any(not field.nullable or _has_required(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_required(kind.elementType)
    return isinstance(kind, MapType) and _has_required(kind.valueType)
