"""Spark's types from DDL, in tests that have no Spark: ``a INT NOT NULL, s STRUCT<b: ARRAY<DECIMAL(5,2)>>``."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql.types import StructType

_JSON_NAMES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}


def schema_of(ddl: str) -> StructType:
    """The fields of a correct DDL."""
    tokens = re.findall(r"[\w.]+(?:\([^)]*\))?|[<>,]", ddl)[::-1]
    return StructType.fromJson(_fields(tokens))


def _fields(tokens: list[str]) -> dict[str, Any]:
    fields = []
    while tokens and tokens[-1] != ">":
        name, kind, nullable = tokens.pop(), _type(tokens), True
        if tokens and tokens[-1] == "NOT":
            del tokens[-2:]
            nullable = False
        fields.append({"name": name, "type": kind, "nullable": nullable, "metadata": {}})
        if tokens and tokens[-1] == ",":
            tokens.pop()
    return {"type": "struct", "fields": fields}


def _type(tokens: list[str]) -> Any:
    name = tokens.pop().lower()
    if name not in {"struct", "array", "map"}:
        return _JSON_NAMES.get(name, name.replace(" ", ""))
    assert tokens.pop() == "<"
    if name == "struct":
        found = _fields(tokens)
    elif name == "array":
        found = {"type": "array", "elementType": _type(tokens), "containsNull": True}
    else:
        found = {"type": "map", "keyType": _type(tokens)}
        assert tokens.pop() == ","
        found |= {"valueType": _type(tokens), "valueContainsNull": True}
    assert tokens.pop() == ">"
    return found
