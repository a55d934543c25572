"""Bodies as Arrow columns, many at a time.

Each body is read by msgspec, straight into the types of the schema; then the values of a field are made into a column
at once, by pyarrow. Both accept only values that ``judge`` would certainly accept. Each row that is doubtful in any
column goes to the judge, which accepts or rejects it. So a bug here could only accept too much; a test compares the two
for generated bodies. What is rare is left to the judge: numbers as STRING, NaN, exponents in a DECIMAL.

A column is made of values without the doubtful ones, which are null for the time being: their rows are replaced.

The source's rows have them if there is the option ``schema`` (:class:`ParsedRows`). A body that fits is a struct in the
column of its topic. For one that does not fit, that column is null, ``raw`` has the bytes, and ``reason`` says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.format_options import SourceOptions, check_schema
from gnsq_like.spark.source.judge import BITS, DAY, FIRST_US, LAST_US, RULES, UNITS, Judge, Misfit, binary
from gnsq_like.spark.staging.offsets import Part

#: A column, and the places in it that are doubtful.
_Column = tuple[pa.Array, set[int]]

_NOT_ZERO = "^[^eE]*[1-9]"
_LOCAL = rf"^{DAY}[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{{1,9}})?$"
_ZONED = rf"{_LOCAL[:-1]}(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])$"
_BELOW_US = r"(\.[0-9]{6})[0-9]+"
#: The length of a time with microseconds, without its zone.
_LENGTH = len("2026-01-02T03:04:05.678901")
_DAY_US = 86_400_000_000
#: JSON's null as msgspec's text.
_NULL = msgspec.Raw(b"null")


# -- the types by which msgspec reads -------------------------------------------------------------------


def _struct(kind: StructType) -> type[msgspec.Struct]:
    """A class for objects. Fields are named by their place, since a name may be anything."""
    fields: list[Any] = []
    for at, each in enumerate(kind.fields):
        wanted = _wanted(each.dataType)
        if not each.nullable:
            fields.append((f"f{at}", wanted))
        elif wanted is msgspec.Raw:
            fields.append((f"f{at}", wanted, _NULL))
        else:
            fields.append((f"f{at}", wanted | None, None))
    names = {f"f{at}": each.name for at, each in enumerate(kind.fields)}
    return msgspec.defstruct("Body", fields, rename=names, gc=False, kw_only=True)


def _wanted(kind: DataType) -> Any:
    """The type of values, which is as strict as the rule or stricter."""
    if isinstance(kind, DecimalType | DoubleType | FloatType):
        return msgspec.Raw  # the text: numbers of Python are not exact
    if isinstance(kind, StructType):
        return _struct(kind)
    if isinstance(kind, ArrayType):
        return list[_or_null(kind.elementType)]  # type: ignore[misc]
    if isinstance(kind, MapType):
        return dict[str, _or_null(kind.valueType)]  # type: ignore[misc]
    if isinstance(kind, BooleanType):
        return bool
    if type(kind) in BITS:
        return _whole(BITS[type(kind)])
    return _whole(64) | str if isinstance(kind, TimestampType) else str


def _or_null(kind: DataType) -> Any:
    wanted = _wanted(kind)
    return wanted if wanted is msgspec.Raw else wanted | None


def _whole(bits: int) -> Any:
    limit = 1 << bits - 1
    return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]


# -- types with parts -----------------------------------------------------------------------------------


class Parser:
    """Makes columns of bodies.

    :param schema: the fields of the JSON object
    :param unit: the unit of a TIMESTAMP that is a number
    :param made: the type of the column: that of the schema, or one in which all values of the schema's types are the
        same, such as one without NOT NULL
    """

    def __init__(self, schema: StructType, unit: str = "s", made: pa.DataType | None = None) -> None:
        self._schema = schema
        self._unit = unit
        self._judge = Judge(schema, unit)
        self._decode = msgspec.json.Decoder(_struct(schema)).decode
        self.made: pa.DataType = made if made is not None else to_arrow_type(schema, timezone="UTC")

    def parse(self, bodies: pa.Array) -> tuple[pa.Array, pa.Array]:
        """For each body, a struct of the schema's fields, or the reason why it does not fit; the other is null."""
        found: list[bytes] = bodies.to_pylist()
        decode = self._decode
        rows: list[Any] = []
        for body in found:
            try:
                rows.append(decode(body))
            except (msgspec.MsgspecError, ValueError, RecursionError):
                rows.append(None)
        for at in _not_unicode(bodies):
            rows[at] = None
        column, wrong = self._objects(self._schema, self.made, list(filter(None, rows)))
        doubtful = {at for at, row in enumerate(rows) if row is None}
        if wrong:
            places = [at for at, row in enumerate(rows) if row is not None]
            doubtful.update(places[at] for at in wrong)
        if not doubtful:
            return column, pa.nulls(len(rows), pa.string())
        return self._judged(column, found, rows, sorted(doubtful))

    def _judged(
        self, column: pa.Array, bodies: Sequence[bytes], rows: Sequence[Any], doubtful: list[int]
    ) -> tuple[pa.Array, pa.Array]:
        """The column with the judge's values for doubtful rows, and the reasons of rejections.

        :param rows: None for those that the column does not have
        """
        values: list[Any] = []
        reasons: list[str | None] = [None] * len(bodies)
        chosen: list[int] = []
        #: The rows and the values of the column that are chosen so far.
        end = rank = 0
        for at in doubtful:
            chosen += range(rank, rank + at - end)
            rank += at - end + (rows[at] is not None)
            end = at + 1
            chosen.append(len(column) + len(values))
            try:
                values.append(self._judge.fields(bodies[at]))
            except Misfit as exc:
                values.append(None)
                reasons[at] = str(exc)
        chosen += range(rank, rank + len(bodies) - end)
        both = pa.concat_arrays([column, pa.array(values, self.made)])
        return both.take(pa.array(chosen, pa.int64())), pa.array(reasons, pa.string())

    def _column(self, kind: DataType, made: pa.DataType, values: list[Any]) -> _Column:
        if isinstance(kind, StructType):
            return self._structs(kind, made, values)
        if isinstance(kind, ArrayType):
            return self._lists(kind, made, values)
        if isinstance(kind, MapType):
            return self._maps(kind, made, values)
        if isinstance(kind, TimestampType):
            return _times(values, made, self._unit)
        reader = _SIMPLE.get(type(kind))
        return (pa.array(values, made), set()) if reader is None else reader(values, made, kind)

    def _structs(self, kind: StructType, made: pa.DataType, values: list[Any]) -> _Column:
        places = [at for at, each in enumerate(values) if each is not None]
        column, wrong = self._objects(kind, made, list(filter(None, values)))
        if len(places) == len(values):
            return column, wrong
        ranks: list[int | None] = [None] * len(values)
        for rank, at in enumerate(places):
            ranks[at] = rank
        return column.take(pa.array(ranks, pa.int64())), {places[at] for at in wrong}

    def _objects(self, kind: StructType, made: pa.DataType, objects: list[Any]) -> _Column:
        """Structs of objects, of which none is null."""
        arrays, wrong = [], set()
        for at, field in enumerate(kind.fields):
            found = list(map(attrgetter(f"f{at}"), objects))
            array, of_field = self._column(field.dataType, made.field(at).type, found)
            arrays.append(array)
            wrong |= of_field
            if not field.nullable and array.null_count:
                wrong |= _places(array.is_null())
        return pa.StructArray.from_arrays(arrays, fields=list(made)), wrong

    def _lists(self, kind: ArrayType, made: pa.DataType, values: list[Any]) -> _Column:
        inner, wrong = self._column(kind.elementType, made.value_type, list(chain.from_iterable(filter(None, values))))
        return pa.ListArray.from_arrays(_offsets(values), inner, type=made), _owners(values, wrong)

    def _maps(self, kind: MapType, made: pa.DataType, values: list[Any]) -> _Column:
        full = [each for each in values if each]
        inner, wrong = self._column(
            kind.valueType, made.item_type, list(chain.from_iterable(each.values() for each in full))
        )
        keys = pa.array(list(chain.from_iterable(full)), pa.string())
        return pa.MapArray.from_arrays(_offsets(values), keys, inner, type=made), _owners(values, wrong)


def _not_unicode(bodies: pa.Array) -> Iterator[int]:
    """The bodies that are not UTF-8: msgspec does not look at what the schema leaves out."""
    try:
        bodies.cast(pa.string())
    except pa.ArrowInvalid:
        for at, body in enumerate(bodies.to_pylist()):
            try:
                body.decode()
            except UnicodeDecodeError:
                yield at


def _offsets(values: list[Any]) -> pa.Array:
    """Where each list begins; null for none."""
    offsets: list[int | None] = []
    end = 0
    for each in values:
        offsets.append(None if each is None else end)
        end += len(each) if each else 0
    return pa.array([*offsets, end], pa.int32())


def _owners(values: list[Any], bad: set[int]) -> set[int]:
    """The lists whose elements are doubtful."""
    if not bad:
        return set()
    owners = [at for at, each in enumerate(values) for _ in each or ()]
    return {owners[at] for at in bad}


# -- simple types ---------------------------------------------------------------------------------------


def _texts_of(values: list[msgspec.Raw]) -> pa.Array:
    """The texts of numbers; null for null."""
    texts = pa.array(map(bytes, values), pa.binary()).view(pa.string())
    is_null = pc.equal(texts, "null")
    return pc.if_else(is_null, None, texts) if pc.any(is_null).as_py() else texts


def _decimals(values: list[Any], made: pa.DataType, kind: DataType) -> _Column:
    assert isinstance(kind, DecimalType)
    # No more digits than the type has: pyarrow's cast of longer ones can overflow silently.
    behind = rf"(\.[0-9]{{1,{kind.scale}}})?" if kind.scale else ""
    texts, bad = _matching(_texts_of(values), rf'^"?-?[0-9]{{1,{max(1, kind.precision - kind.scale)}}}{behind}"?$')
    return _cast(pc.utf8_trim(texts, '"'), made, bad)


def _floats(values: list[Any], made: pa.DataType, kind: DataType) -> _Column:
    texts = _texts_of(values)
    numbers, bad = _cast(texts, made, set())  # of all that JSON has, it takes only numbers
    wrong = pc.is_inf(numbers)
    zero = pc.equal(numbers, 0)
    if pc.any(zero).as_py():
        wrong = pc.or_(wrong, pc.and_(zero, pc.match_substring_regex(texts, _NOT_ZERO)))
    return numbers, bad | _places(wrong)


def _times(values: list[Any], made: pa.DataType, unit: str) -> _Column:
    """Times in UTC, of one or more of the forms."""

    def local(values: list[Any]) -> _Column:
        column, bad = _times_of_texts(values, pa.timestamp("us"), _LOCAL)
        return column.view(made), bad

    kinds = set(map(type, values))
    texts = [each if type(each) is str else None for each in values] if int in kinds else values
    column, bad = _times_of_texts(texts, made, _ZONED)
    if bad:
        others, wrong = local(texts)
        column, bad = pc.coalesce(column, others), bad & wrong
    if int in kinds:
        numbers = [each if type(each) is int else None for each in values] if str in kinds else values
        found, wrong = _times_of_numbers(pa.array(numbers, pa.int64()), made, unit)
        column, bad = pc.coalesce(column, found), bad | wrong
    return column, bad


def _times_of_numbers(numbers: pa.Array, made: pa.DataType, unit: str) -> _Column:
    bad: set[int] = set()
    if UNITS[unit]:
        numbers, bad = _within(numbers, -(-FIRST_US // UNITS[unit]), LAST_US // UNITS[unit], bad, pa.int64())
        numbers = pc.multiply(numbers, UNITS[unit])
    else:
        cut = pc.divide(numbers, 1000)  # towards zero
        earlier = pc.less(numbers, pc.multiply(cut, 1000))
        numbers = pc.subtract(cut, earlier.cast(pa.int64()))
    return _within(numbers, FIRST_US, LAST_US, bad, made)


def _within(numbers: pa.Array, first: int, last: int, bad: set[int], made: pa.DataType) -> _Column:
    """The numbers within bounds, as another type."""
    extent = pc.min_max(numbers).as_py()
    if extent["min"] is not None and not first <= extent["min"] <= extent["max"] <= last:
        outside = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
        numbers, bad = pc.if_else(outside, None, numbers), bad | _places(outside)
    return numbers.cast(made), bad


def _local_times(values: list[Any], made: pa.DataType, kind: DataType) -> _Column:
    return _times_of_texts(values, made, _LOCAL)


def _times_of_texts(values: list[Any], made: pa.DataType, pattern: str) -> _Column:
    texts, bad = _matching(pa.array(values, pa.string()), pattern)
    if (pc.max(pc.binary_length(texts)).as_py() or 0) > _LENGTH:
        texts = pc.replace_substring_regex(texts, _BELOW_US, r"\1")  # pyarrow refuses digits below a microsecond
    times, bad = _cast(texts, made, bad)
    # Not the year 0, nor the first and the last hours beyond the ends by a time zone.
    numbers, bad = _within(times.cast(pa.int64()), FIRST_US, LAST_US, bad, pa.int64())
    return numbers.cast(made), bad


def _dates(values: list[Any], made: pa.DataType, kind: DataType) -> _Column:
    texts, bad = _matching(pa.array(values, pa.string()), f"^{DAY}$")
    days, bad = _cast(texts, pa.date32(), bad)
    numbers, bad = _within(days.cast(pa.int32()), FIRST_US // _DAY_US, LAST_US // _DAY_US, bad, pa.int32())
    return numbers.cast(made), bad


def _binaries(values: list[Any], made: pa.DataType, kind: DataType) -> _Column:
    found = [None if each is None else binary(each, kind, "") for each in values]
    bad = {at for at, each in enumerate(values) if each is not None and found[at] is None}
    return pa.array(found, made), bad


#: Of types whose values need more than pyarrow's own conversion.
_SIMPLE: dict[type[DataType], Callable[[list[Any], pa.DataType, DataType], _Column]] = {
    DecimalType: _decimals,
    DoubleType: _floats,
    FloatType: _floats,
    TimestampNTZType: _local_times,
    DateType: _dates,
    BinaryType: _binaries,
}


def _matching(texts: pa.Array, pattern: str) -> _Column:
    """The texts that match; null for the others, which are doubtful."""
    fits = pc.match_substring_regex(texts, pattern)
    if pc.all(fits, min_count=0).as_py():
        return texts, set()
    return pc.if_else(fits, texts, None), _places(pc.invert(fits))


def _cast(texts: pa.Array, made: pa.DataType, bad: set[int]) -> _Column:
    """The texts as values; null for those that pyarrow refuses, which are doubtful."""
    try:
        return texts.cast(made), bad
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.nulls(1, made), bad | {0}
    half = len(texts) // 2
    first, wrong = _cast(texts[:half], made, set())
    second, late = _cast(texts[half:], made, set())
    return pa.concat_arrays([first, second]), bad | wrong | {half + at for at in late}


def _places(wrong: pa.Array) -> set[int]:
    return set(pc.indices_nonzero(wrong.fill_null(False)).to_pylist())


# -- the source's rows ----------------------------------------------------------------------------------


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
