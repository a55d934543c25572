"""The schema that a table was last written with, kept beside it: ``<table>/_schema/000001.json``.

Parquet files with different types for a column are written without an error, and then no reader can read the table. So
a run compares its schema with the kept one before it begins. Fields may be added: readers take them as null in older
files. A field that is missing or has another type is refused.

Readers of Parquet ignore names that begin with an underscore. Each schema is a new file, so that a killed process
cannot leave half of the only one; half a file is passed over.
"""

from __future__ import annotations

import json
from typing import Any

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

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.tables.columns import differences
from gnsq_like.spark.tables.data_file import list_names, read_text, write_text

_DIRECTORY = "_schema"
#: The column of the schema's fields.
BODY = "body"


def check_kept(table: str, body: DataType, ddl: str) -> None:
    """Raise InvalidOption if readers could not read the table once it is written with bodies of this type.

    :param ddl: the schema as it is in the configuration
    """
    old = _kept(table)
    if old is None:
        return
    refuse_change(old, body, table, ddl)


def refuse_change(old: DataType, new: DataType, table: str, ddl: str, *, widens: bool = False) -> None:
    """Raise InvalidOption if readers could not read bodies of the new type beside those of the old one.

    :param widens: whether the table's format has types that become wider
    """
    found = change(old, new, widens=widens)
    if found is not None:
        raise InvalidOption(
            "parse.schema",
            ddl,
            f"{found}, and readers of {table} could not read its older rows beside the new ones. Correct the schema, "
            f"or begin a new table: give data another place",
        )


def keep(table: str, body: DataType) -> None:
    """Keep the schema with the table, unless it is the last one there."""
    if _kept(table) == body:
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


def _kept(table: str) -> DataType | None:
    """The type of bodies in the last schema that is kept; None if there is none."""
    for number in reversed(_numbers(table)):
        try:
            found: dict[str, Any] = json.loads(read_text(_file(table, number)))
            return StructType.fromJson(found["schema"])[BODY].dataType
        except (ValueError, KeyError):
            continue  # a process was killed while it wrote
    return None
