"""Why a body does not fit the schema, in words.

Spark decides whether a body fits (``parse``), but does not say why not. This module looks for the reason. It never
rejects anything itself: if it finds nothing, the reason is a general one. Reasons name fields and types, but no
values, so that there are few different ones and they can be counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

#: The reason if no other one is found.
GENERAL = "it does not fit the schema"

#: The bits of Spark's integer types.
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
#: Strings that Spark accepts as a DOUBLE.
_NOT_FINITE = {"NaN", "Infinity", "-Infinity", "+Infinity", "INF", "-INF", "+INF"}


def reason_for(body: bytes, schema: StructType) -> str:
    """The reason why a body does not fit, given that Spark has found that it does not."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return "it is not UTF-8"
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as exc:
        return f"it is not JSON: {exc.msg[:1].lower()}{exc.msg[1:]}"
    except ValueError:
        return "it is not JSON: it has NaN or Infinity"
    except RecursionError:
        return "it is nested too deeply"
    if not isinstance(value, dict):
        return "it is JSON, but not an object"
    return next(_wrong_fields(value, schema, ""), GENERAL)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _wrong_fields(value: dict[str, Any], schema: StructType, path: str) -> Iterator[str]:
    for field in schema.fields:
        name = f"{path}{field.name}"
        if value.get(field.name) is None:
            if not field.nullable:
                yield f"field {name} is {'null' if field.name in value else 'missing'}"
        else:
            yield from _wrong_value(value[field.name], field.dataType, name)


def _wrong_value(value: Any, kind: DataType, name: str) -> Iterator[str]:
    """Why a value that is not null has the wrong type; nothing if it may be right."""
    if isinstance(kind, StructType):
        if isinstance(value, dict):
            yield from _wrong_fields(value, kind, f"{name}.")
        else:
            yield f"field {name} is not an object"
    elif isinstance(kind, ArrayType):
        if not isinstance(value, list):
            yield f"field {name} is not an array"
            return
        for each in value:
            if each is not None:
                yield from _wrong_value(each, kind.elementType, f"{name}[]")
    elif isinstance(kind, MapType):
        if not isinstance(value, dict):
            yield f"field {name} is not an object"
            return
        for each in value.values():
            if each is not None:
                yield from _wrong_value(each, kind.valueType, f"{name}{{}}")
    elif not _may_be(value, kind):
        yield f"field {name} is not a valid {kind.simpleString().upper()}"


def _may_be(value: Any, kind: DataType) -> bool:
    """Whether Spark may accept a JSON value for this type."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(kind, StringType):
        return True
    if isinstance(kind, BooleanType):
        return isinstance(value, bool)
    if isinstance(kind, IntegralType):
        limit = 1 << (_BITS.get(kind.simpleString(), 64) - 1)
        return is_number and isinstance(value, int) and -limit <= value < limit
    if isinstance(kind, DoubleType | FloatType):
        return is_number or (isinstance(value, str) and value in _NOT_FINITE)
    if isinstance(kind, DecimalType):
        return is_number or isinstance(value, str)
    if isinstance(kind, TimestampType | TimestampNTZType):
        return is_number or (isinstance(value, str) and _reads(datetime, value))
    if isinstance(kind, DateType):
        return isinstance(value, str) and (_reads(date, value) or _reads(datetime, value))
    return True


def _reads(cls: type[date], text: str) -> bool:
    try:
        cls.fromisoformat(text)
    except ValueError:
        return False
    return True
