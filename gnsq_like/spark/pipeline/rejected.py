"""Why a body does not fit the schema, in words.

Spark decides whether a body fits (``parse``), but does not say why not. This module looks for the reason. It never
rejects anything itself: if it finds nothing, the reason is a general one. Reasons name fields and types, but no
values, so that there are few different ones and they can be counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from gnsq_like.spark.pipeline.values import Misfit, is_text, kept, loads

#: The reason if no other one is found.
GENERAL = "it does not fit the schema"


def reason_for(body: bytes, schema: StructType, unit: str = "s") -> str:
    """The reason why a body does not fit, given that Spark has found that it does not.

    :param unit: the unit of a TIMESTAMP that is a number
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return "it is not UTF-8"
    try:
        value = loads(text)
    except json.JSONDecodeError as exc:
        return f"it is not JSON: {exc.msg[:1].lower()}{exc.msg[1:]}"
    except RecursionError:
        return "it is nested too deeply"
    if not isinstance(value, dict):
        return "it is JSON, but not an object"
    return next(_wrong_fields(value, schema, "", unit), GENERAL)


def _wrong_fields(value: dict[str, Any], schema: StructType, path: str, unit: str) -> Iterator[str]:
    for field in schema.fields:
        name = f"{path}{field.name}"
        if value.get(field.name) is None:
            if not field.nullable:
                yield f"field {name} is {'null' if field.name in value else 'missing'}"
        else:
            yield from _wrong_value(value[field.name], field.dataType, name, unit)


def _wrong_value(value: Any, kind: DataType, name: str, unit: str) -> Iterator[str]:
    """Why a value that is not null has the wrong type; nothing if it may be right."""
    if isinstance(kind, StructType):
        if isinstance(value, dict):
            yield from _wrong_fields(value, kind, f"{name}.", unit)
        else:
            yield f"field {name} is not an object"
    elif isinstance(kind, ArrayType):
        if not isinstance(value, list):
            yield f"field {name} is not an array"
            return
        for each in value:
            if each is not None:
                yield from _wrong_value(each, kind.elementType, f"{name}[]", unit)
    elif isinstance(kind, MapType):
        if not isinstance(value, dict):
            yield f"field {name} is not an object"
            return
        if not all(map(is_text, value)):
            yield f"field {name} has a key that is not Unicode"
        for each in value.values():
            if each is not None:
                yield from _wrong_value(each, kind.valueType, f"{name}{{}}", unit)
    else:
        try:
            kept(value, kind, unit)
        except Misfit:
            is_string = isinstance(kind, StringType)
            yield f"field {name} is not {'Unicode' if is_string else f'a valid {kind.simpleString().upper()}'}"
