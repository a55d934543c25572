"""Why a body does not fit the schema, in words.

Spark decides whether it does (``parse``) and says no more than that. So this module looks for the reason, of the few
that do not. It never refuses anything itself: where it finds nothing, the reason is a general one. The words name
fields and types, and no values, so that there are few different ones: they can be counted.
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

#: What is said when nothing else is found.
GENERAL = "it does not fit the schema"

#: Bits of Spark's whole numbers.
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
#: What Spark takes for a DOUBLE beside numbers.
_NOT_FINITE = {"NaN", "Infinity", "-Infinity", "+Infinity", "INF", "-INF", "+INF"}


def reason(body: bytes, schema: StructType) -> str:
    """Why this body, which Spark refused, does not fit."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return "it is not UTF-8"
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as exc:
        return f"it is not JSON: {exc.msg[:1].lower()}{exc.msg[1:]}"
    except ValueError:
        return "it is not JSON: it has a number that is none"
    except RecursionError:
        return "it is nested too deeply"
    if not isinstance(value, dict):
        return "it is JSON, but no object"
    return next(_misfits(value, schema, ""), GENERAL)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _misfits(value: dict[str, Any], schema: StructType, path: str) -> Iterator[str]:
    for field in schema.fields:
        name = f"{path}{field.name}"
        if value.get(field.name) is None:
            if not field.nullable:
                yield f"field {name} is {'null' if field.name in value else 'missing'}"
        else:
            yield from _misfit(value[field.name], field.dataType, name)


def _misfit(value: Any, kind: DataType, name: str) -> Iterator[str]:
    """What is wrong with a value that is not null; nothing where it may be right."""
    if isinstance(kind, StructType):
        if isinstance(value, dict):
            yield from _misfits(value, kind, f"{name}.")
        else:
            yield f"field {name} is no object"
    elif isinstance(kind, ArrayType):
        if not isinstance(value, list):
            yield f"field {name} is no array"
            return
        for each in value:
            if each is not None:
                yield from _misfit(each, kind.elementType, f"{name}[]")
    elif isinstance(kind, MapType):
        if not isinstance(value, dict):
            yield f"field {name} is no object"
            return
        for each in value.values():
            if each is not None:
                yield from _misfit(each, kind.valueType, f"{name}{{}}")
    elif not _may_be(value, kind):
        yield f"field {name} is no {kind.simpleString().upper()}"


def _may_be(value: Any, kind: DataType) -> bool:
    """Whether Spark may take a JSON value for this type."""
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
