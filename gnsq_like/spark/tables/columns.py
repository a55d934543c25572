"""The types that columns have in tables, how two differ, and the schema that is kept beside a table of plain files.

All columns may be null, on every level: an older file has nothing for a column that was added later.

Parquet files with different types for a column are written without an error, and then no reader can read the table. So
the schema that a table was last written with is kept beside it, in ``<table>/_schema/000001.json``, and a run compares
its own with that before it begins. Fields may be added. A field that is missing or has another type is refused.

Readers of Parquet ignore names that begin with an underscore. Each schema is a new file, so that a killed process
cannot leave half of the only one; half a file is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructField,
    StructType,
)

from gnsq_like.spark.tables.data_file import list_names, read_text, write_text

_Kind = TypeVar("_Kind", bound=DataType)


def storable(kind: _Kind, *, without_small: bool = False) -> _Kind:
    """The type that keeps values of this one.

    :param without_small: whether the table has no integers of one or two bytes
    """
    inner = partial(storable, without_small=without_small)
    found: Any = kind
    if isinstance(kind, StructType):
        found = StructType([StructField(each.name, inner(each.dataType)) for each in kind.fields])
    elif isinstance(kind, ArrayType):
        found = ArrayType(inner(kind.elementType))
    elif isinstance(kind, MapType):
        found = MapType(inner(kind.keyType), inner(kind.valueType))  # keys are never null
    elif without_small and isinstance(kind, ByteType | ShortType):
        found = IntegerType()
    return found


class Difference(NamedTuple):
    """Where two types differ: the field, as in "s.l[].a" or "m{}", and its two types; None where it is missing."""

    name: str
    old: DataType | None
    new: DataType | None


def differences(old: DataType, new: DataType, name: str = "") -> Iterator[Difference]:
    """The differences of two types, in the order of the old one's fields; fields of the new one come last.

    :param name: the field's; "" for the whole
    """
    if isinstance(old, StructType) and isinstance(new, StructType):
        olds, news = ({each.name: each.dataType for each in kind.fields} for kind in (old, new))
        for field in {**olds, **news}:
            inner = f"{name}.{field}" if name else field
            if field in olds and field in news:
                yield from differences(olds[field], news[field], inner)
            else:
                yield Difference(inner, olds.get(field), news.get(field))
    elif isinstance(old, ArrayType) and isinstance(new, ArrayType):
        yield from differences(old.elementType, new.elementType, f"{name}[]")
    elif isinstance(old, MapType) and isinstance(new, MapType):
        yield from differences(old.valueType, new.valueType, f"{name}{{}}")
    elif old != new:
        yield Difference(name, old, new)


def lacks(found: DataType, wanted: DataType) -> bool:
    """Whether a column of the found type has not all fields of the wanted one, or has them with other types."""
    return any(each.new is not None for each in differences(found, wanted))


def added_in_map(found: DataType, wanted: DataType) -> str | None:
    """The first map whose values lack a field, such as "s.m{}"; None if there is none."""
    names = (each.name for each in differences(found, wanted) if each.new is not None)
    return next((name[: name.index("{}") + 2] for name in names if "{}" in name), None)


# -- the schema that is kept beside plain files ---------------------------------------------------------


_DIRECTORY = "_schema"
#: The column of the schema's fields.
BODY = "body"


def keep(table: str, body: DataType) -> None:
    """Keep the schema with the table, unless it is the last one there."""
    if kept(table) == body:
        return
    number = max(_numbers(table), default=0) + 1
    content = StructType([StructField(BODY, body)]).jsonValue()
    write_text(_file(table, number), json.dumps({"format": 1, "schema": content}, indent=2))


def change(old: DataType, new: DataType, *, widens: bool = False) -> str | None:
    """The part of the new type that readers of the old one could not read; None if they could read all of it.

    :param widens: whether a field may get a type that has all values of the old one
    """
    for name, before, now in differences(old, new):
        if before is None or (now is not None and widens and _is_wider(now, before)):
            continue
        if now is None:
            return f"field {name} is missing, which the table has (it may be null)"
        if not name:
            return "bodies were {} in the table, and would be {}".format(
                *("rows of fields" if isinstance(each, StructType) else "bytes" for each in (before, now))
            )
        return f"field {name} is {_name_of(before)} in the table, and would be {_name_of(now)}"
    return None


def _is_wider(new: DataType, old: DataType) -> bool:
    integers: list[type[DataType]] = [ByteType, ShortType, IntegerType, LongType]
    if type(new) in integers and type(old) in integers:
        return integers.index(type(new)) > integers.index(type(old))
    if isinstance(new, DecimalType) and isinstance(old, DecimalType):
        return new.scale == old.scale and new.precision > old.precision
    return isinstance(new, DoubleType) and isinstance(old, FloatType)


def _name_of(kind: DataType) -> str:
    names = {StructType: "a STRUCT", ArrayType: "an ARRAY", MapType: "a MAP"}
    return names.get(type(kind)) or kind.simpleString().upper()


def _file(table: str, number: int) -> str:
    return f"{table}/{_DIRECTORY}/{number:06d}.json"


def _numbers(table: str) -> list[int]:
    names = list_names(f"{table}/{_DIRECTORY}")
    return sorted(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdecimal())


def kept(table: str) -> DataType | None:
    """The type of bodies in the last schema that is kept; None if there is none."""
    for number in reversed(_numbers(table)):
        try:
            found: dict[str, Any] = json.loads(read_text(_file(table, number)))
            return StructType.fromJson(found["schema"])[BODY].dataType
        except (ValueError, KeyError):
            continue  # a process was killed while it wrote
    return None
