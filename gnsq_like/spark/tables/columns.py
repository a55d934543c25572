"""The types that columns have in tables.

All columns may be null, on every level: an older file has nothing for a column that was added later.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyspark.sql.types import ArrayType, ByteType, DataType, IntegerType, MapType, ShortType, StructField, StructType


def storable(columns: StructType, *, without_small: bool = False) -> StructType:
    """The columns that keep values of these types.

    :param without_small: whether the table has no integers of one or two bytes
    """
    return StructType([StructField(each.name, _storable(each.dataType, without_small)) for each in columns.fields])


def _storable(kind: DataType, without_small: bool) -> DataType:
    if isinstance(kind, StructType):
        return storable(kind, without_small=without_small)
    if isinstance(kind, ArrayType):
        return ArrayType(_storable(kind.elementType, without_small))
    if isinstance(kind, MapType):
        # Keys are never null.
        return MapType(_storable(kind.keyType, without_small), _storable(kind.valueType, without_small))
    if without_small and isinstance(kind, ByteType | ShortType):
        return IntegerType()
    return kind


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
