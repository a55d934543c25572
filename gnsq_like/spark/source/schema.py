"""The columns of a read, and the check of a schema that the user gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq_like.errors import UsageError
from gnsq_like.spark.options import COLUMNS, SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class WrongSchema(UsageError):
    """The user gave a schema that differs from the source's."""


def ddl_of(options: SourceOptions) -> str:
    """The columns that the options ask for, as Spark's DDL."""
    return ", ".join(f"{name} {COLUMNS[name][0]}" for name in options.columns)


def check_schema(schema: StructType, options: SourceOptions) -> None:
    """Raise WrongSchema if the schema is another one: Spark accepts any and then fails at the first row."""
    expected = [(name, COLUMNS[name][0].lower()) for name in options.columns]
    if [(field.name, field.dataType.simpleString()) for field in schema.fields] != expected:
        columns = ", ".join(f"{name} {kind}" for name, kind in expected)
        raise WrongSchema(f"the columns are {columns}: leave .schema() out, and choose columns with columns")
