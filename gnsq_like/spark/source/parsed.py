"""Rows whose bodies are columns (the option ``schema``), and the check of such a schema.

A body that fits is a struct in the column of its topic. For one that does not fit, that column is null, ``raw`` has the
bytes, and ``reason`` says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.bodies.by_columns import Parser
from gnsq_like.spark.bodies.judge import RULES
from gnsq_like.spark.format_options import SourceOptions, check_schema
from gnsq_like.spark.staging.offsets import Part

_KINDS = {kind for rule in RULES for kind in rule.kinds}


def rows_of(
    batches: Iterable[pa.RecordBatch], part: Part, options: SourceOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """The rows of a part as Spark has them, made of those with ``SourceOptions.plain_columns``.

    :param schema: Spark's type of the rows
    """
    return map(ParsedRows(options, schema, part.of.topic).of, batches) if options.is_parsed else iter(batches)


def check_columns(schema: StructType, options: SourceOptions) -> None:
    """Raise WrongSchema or InvalidOption unless the rows can have this type."""
    check_schema(schema, options)
    bodies = {options.body_of(topic): (f"schema.{topic}", ddl) for topic, ddl in options.schemas.items() if ddl}
    if options.schema:
        bodies["body"] = ("schema", options.schema)
    for field in schema.fields:
        if field.name in bodies:
            check_fields(field.dataType, *bodies[field.name])


class ParsedRows:
    """Makes the rows of one topic, with the columns that the options ask for.

    :param schema: Spark's type of the rows
    """

    def __init__(self, options: SourceOptions, schema: StructType, topic: str) -> None:
        self._keeps_raw = options.keep_raw
        #: The column of the topic's bodies. If it is no struct, bodies are not parsed.
        self._body = options.body_of(topic)
        self._types = {each.name: to_arrow_type(each.dataType, timezone="UTC") for each in schema.fields}
        kind = schema[self._body].dataType if self._body in schema.names else None
        self._parser = Parser(kind, options.unit_of(topic)) if isinstance(kind, StructType) else None

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows, made of those with ``SourceOptions.plain_columns``."""
        bodies = batch.column("body")
        found = {name: batch.column(name) for name in batch.schema.names if name != "body"}
        found[self._body] = bodies
        reasons = pa.nulls(len(bodies), pa.string())
        if self._parser is not None:
            found[self._body], reasons = self._parser.parse(bodies)
        found["reason"] = reasons
        if self._keeps_raw:
            found["raw"] = bodies
        elif reasons.null_count < len(reasons):
            found["raw"] = pc.if_else(reasons.is_null(), None, bodies)
        arrays = [found[name] if name in found else pa.nulls(len(bodies), kind) for name, kind in self._types.items()]
        return pa.RecordBatch.from_arrays(arrays, names=list(self._types))


def check_fields(kind: DataType, option: str, ddl: str, name: str = "") -> None:
    """Raise InvalidOption if a field has a type that no value of JSON can have, or two fields have one name.

    :param option: the option that has the schema, and its value
    """

    def wrong(reason: str) -> InvalidOption:
        return InvalidOption(option, ddl, reason)

    if type(kind) not in _KINDS:
        what = kind.simpleString().upper()
        raise wrong(f"field {name} cannot be {what}: take another type, such as STRING")
    if isinstance(kind, StructType):
        if not kind.fields:
            raise wrong(f"{f'the STRUCT {name}' if name else 'it'} needs a field")
        for field, times in Counter(each.name.lower() for each in kind.fields).items():
            if times > 1:
                # Spark could write a table with both, but not read it.
                raise wrong(f"there are {times} fields {field}; upper and lower case are the same to Spark")
        for each in kind.fields:
            check_fields(each.dataType, option, ddl, f"{name}.{each.name}" if name else each.name)
    elif isinstance(kind, ArrayType):
        check_fields(kind.elementType, option, ddl, f"{name}[]")
    elif isinstance(kind, MapType):
        if type(kind.keyType) is not StringType:
            raise wrong(f"field {name} has keys that are not STRING, as they are in JSON")
        check_fields(kind.valueType, option, ddl, f"{name}{{}}")
