"""The types that columns have in tables.

All columns may be null, on every level: an older file has nothing for a column that was added later.
"""

from __future__ import annotations

from pyspark.sql.types import ArrayType, ByteType, DataType, IntegerType, MapType, ShortType, StructField, StructType


def storable(kind: DataType, *, without_small: bool = False) -> DataType:
    """The type of a column that keeps values of this type.

    :param without_small: whether the table has no integers of one or two bytes
    """
    if isinstance(kind, StructType):
        return StructType(
            [StructField(each.name, storable(each.dataType, without_small=without_small)) for each in kind.fields]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(storable(kind.elementType, without_small=without_small))
    if isinstance(kind, MapType):
        # Keys are never null.
        value = storable(kind.valueType, without_small=without_small)
        return MapType(storable(kind.keyType, without_small=without_small), value)
    if without_small and isinstance(kind, ByteType | ShortType):
        return IntegerType()
    return kind


def lacks(found: DataType, wanted: DataType) -> bool:
    """Whether a column of the found type has not all fields of the wanted one, or has them with other types."""
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        there = {each.name: each.dataType for each in found.fields}
        return any(each.name not in there or lacks(there[each.name], each.dataType) for each in wanted.fields)
    if isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        return lacks(found.elementType, wanted.elementType)
    if isinstance(found, MapType) and isinstance(wanted, MapType):
        return lacks(found.valueType, wanted.valueType)
    return found != wanted


def added_in_map(found: DataType, wanted: DataType, name: str = "") -> str | None:
    """The first field that is added to the values of a map, at any depth; None if there is none.

    :param name: the field's
    """
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        there = {each.name: each.dataType for each in found.fields}
        path = f"{name}." if name else ""
        below = (
            added_in_map(there[each.name], each.dataType, f"{path}{each.name}")
            for each in wanted.fields
            if each.name in there
        )
        return next(filter(None, below), None)
    if isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        return added_in_map(found.elementType, wanted.elementType, f"{name}[]")
    if isinstance(found, MapType) and isinstance(wanted, MapType):
        return f"{name}{{}}" if lacks(found.valueType, wanted.valueType) else None
    return None
