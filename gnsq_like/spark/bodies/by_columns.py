"""Bodies as Arrow columns, many at a time.

Each body is read by Python's json; then the values of a field are made into a column at once, by pyarrow. It accepts
only values that ``judge`` would certainly accept. Each row that is doubtful in any column goes to the judge, which
accepts or rejects it. So a bug here could only accept too much; a test compares the two for generated bodies.

A column is made of values without the doubtful ones, which are null for the time being: their rows are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

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

from gnsq_like.spark.bodies.judge import BITS, DAY, DECODER, FIRST_US, HALF, LAST_US, UNITS, Judge, Misfit, binary

#: A column, and the places in it that are doubtful.
_Column = tuple[pa.Array, set[int]]

_INTEGER = "^-?[0-9]{1,18}$"
_NOT_ZERO = "^[^eE]*[1-9]"
_LOCAL = rf"^{DAY}[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{{1,9}})?$"
_ZONED = rf"{_LOCAL[:-1]}(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])$"
_BELOW_US = r"(\.[0-9]{6})[0-9]+"
#: The length of a time with microseconds, without its zone.
_LENGTH = len("2026-01-02T03:04:05.678901")
_DAY_US = 86_400_000_000
#: The types of numbers as the decoder gives them, and of text.
_NUMBER, _TEXT = frozenset({bytes}), frozenset({str})


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
        self.made: pa.DataType = made if made is not None else to_arrow_type(schema, timezone="UTC")

    def parse(self, bodies: Sequence[bytes]) -> tuple[pa.Array, pa.Array]:
        """For each body, a struct of the schema's fields, or the reason why it does not fit; the other is null."""
        rows = [_read(body) for body in bodies]
        column, doubtful = self._structs(self._schema, self.made, rows)
        doubtful.update(at for at, row in enumerate(rows) if row is None)
        if not doubtful:
            return column, pa.nulls(len(rows), pa.string())
        return self._judged(column, bodies, sorted(doubtful))

    def _judged(self, column: pa.Array, bodies: Sequence[bytes], doubtful: list[int]) -> tuple[pa.Array, pa.Array]:
        """The column with the judge's values for doubtful rows, and the reasons of rejections."""
        values: list[Any] = []
        reasons: list[str | None] = [None] * len(bodies)
        chosen = list(range(len(bodies)))
        for at in doubtful:
            chosen[at] = len(bodies) + len(values)
            try:
                values.append(self._judge.fields(bodies[at]))
            except Misfit as exc:
                values.append(None)
                reasons[at] = str(exc)
        both = pa.concat_arrays([column, pa.array(values, self.made)])
        return both.take(pa.array(chosen, pa.int64())), pa.array(reasons, pa.string())

    # -- types with parts ---------------------------------------------------------------------------------

    def _column(self, kind: DataType, made: pa.DataType, values: list[Any]) -> _Column:
        if isinstance(kind, StructType):
            return self._structs(kind, made, values)
        if isinstance(kind, ArrayType):
            return self._lists(kind, made, values)
        if isinstance(kind, MapType):
            return self._maps(kind, made, values)
        if isinstance(kind, TimestampType):
            return _times(values, made, self._unit)
        return _SIMPLE[type(kind)](values, made, kind)

    def _structs(self, kind: StructType, made: pa.DataType, values: list[Any]) -> _Column:
        values, bad = _only(frozenset({dict}), values)
        is_full = None not in values
        there = values if is_full else [each for each in values if each is not None]
        arrays, wrong = [], set()
        for at, field in enumerate(kind.fields):
            name = field.name
            found = [each.get(name) for each in there]
            array, of_field = self._column(field.dataType, made.field(at).type, found)
            arrays.append(array)
            wrong |= of_field
            if not field.nullable and None in found:
                wrong.update(place for place, each in enumerate(found) if each is None)
        column = pa.StructArray.from_arrays(arrays, fields=list(made))
        if is_full:
            return column, bad | wrong
        places = [at for at, each in enumerate(values) if each is not None]
        ranks: list[int | None] = [None] * len(values)
        for rank, at in enumerate(places):
            ranks[at] = rank
        return column.take(pa.array(ranks, pa.int64())), bad | {places[at] for at in wrong}

    def _lists(self, kind: ArrayType, made: pa.DataType, values: list[Any]) -> _Column:
        values, bad = _only(frozenset({list}), values)
        inner, wrong = self._column(kind.elementType, made.value_type, list(chain.from_iterable(filter(None, values))))
        return pa.ListArray.from_arrays(_offsets(values), inner, type=made), bad | _owners(values, wrong)

    def _maps(self, kind: MapType, made: pa.DataType, values: list[Any]) -> _Column:
        values, bad = _only(frozenset({dict}), values)
        full = [each for each in values if each]
        inner, wrong = self._column(
            kind.valueType, made.item_type, list(chain.from_iterable(each.values() for each in full))
        )
        keys, not_text = _strings(list(chain.from_iterable(full)), pa.string(), StringType())
        if not_text:
            keys = keys.fill_null("")
            wrong |= not_text
        column = pa.MapArray.from_arrays(_offsets(values), keys, inner, type=made)
        return column, bad | _owners(values, wrong)


def _read(body: bytes) -> dict[str, Any] | None:
    """Parse a body as an object; None if the judge has to decide."""
    try:
        text = body.decode()
        value, end = DECODER.scan_once(text, 0)  # type: ignore[attr-defined]  # what decode() itself calls
    except (ValueError, StopIteration, RecursionError):
        return None
    return value if end == len(text) and type(value) is dict else None


def _only(kinds: frozenset[type], values: list[Any]) -> tuple[list[Any], set[int]]:
    """The values of these types; None for others, which are doubtful unless they are None."""
    found = set(map(type, values))
    found.discard(type(None))
    if found <= kinds:
        return values, set()
    bad = {at for at, each in enumerate(values) if each is not None and type(each) not in kinds}
    return [None if at in bad else each for at, each in enumerate(values)], bad


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


def _strings(values: list[Any], made: pa.DataType, kind: DataType) -> _Column:
    # pyarrow takes bytes as text, too: so a number becomes its text.
    values, bad = _only(_TEXT | _NUMBER, values)
    try:
        return pa.array(values, made), bad
    except UnicodeEncodeError:
        halves = {at for at, each in enumerate(values) if type(each) is str and HALF.search(each)}
    return pa.array([None if at in halves else each for at, each in enumerate(values)], made), bad | halves


def _integers(values: list[Any], made: pa.DataType, kind: DataType) -> _Column:
    whole, bad = _whole(values)
    limit = 1 << BITS[type(kind)] - 1
    return _within(whole, -limit, limit - 1, bad, made)


def _whole(values: list[Any]) -> _Column:
    """Numbers without decimal point or exponent."""
    values, bad = _only(_NUMBER, values)
    texts = pa.array(values, pa.string())
    try:
        return texts.cast(pa.int64()), bad
    except pa.ArrowInvalid:
        texts, wrong = _matching(texts, _INTEGER)
        return texts.cast(pa.int64()), bad | wrong


def _within(numbers: pa.Array, first: int, last: int, bad: set[int], made: pa.DataType) -> _Column:
    """The numbers within bounds, as another type."""
    extent = pc.min_max(numbers).as_py()
    if extent["min"] is not None and not first <= extent["min"] <= extent["max"] <= last:
        outside = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
        numbers, bad = pc.if_else(outside, None, numbers), bad | _places(outside)
    return numbers.cast(made), bad


def _decimals(values: list[Any], made: pa.DataType, kind: DataType) -> _Column:
    assert isinstance(kind, DecimalType)
    values, bad = _only(_TEXT | _NUMBER, values)
    texts, halves = _strings(values, pa.string(), kind)
    # No more digits than the type has: pyarrow's cast of longer ones can overflow silently.
    behind = rf"(\.[0-9]{{1,{kind.scale}}})?" if kind.scale else ""
    texts, wrong = _matching(texts, rf"^-?[0-9]{{1,{max(1, kind.precision - kind.scale)}}}{behind}$")
    return _cast(texts, made, bad | halves | wrong)


def _floats(values: list[Any], made: pa.DataType, kind: DataType) -> _Column:
    values, bad = _only(_NUMBER, values)
    texts = pa.array(values, pa.string())
    numbers, bad = _cast(texts, made, bad)
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

    readers = [lambda values: _times_of_texts(values, made, _ZONED), local]
    if bytes in set(map(type, values)):
        readers.insert(0, lambda values: _times_of_numbers(values, made, unit))
    column, bad = pa.nulls(len(values), made), set(range(len(values)))
    for reader in readers:
        found, wrong = reader(values)
        column, bad = pc.coalesce(column, found), bad & wrong
        if not bad:
            break
    return column, bad


def _times_of_numbers(values: list[Any], made: pa.DataType, unit: str) -> _Column:
    numbers, bad = _whole(values)
    if UNITS[unit]:
        numbers, bad = _within(numbers, -(-FIRST_US // UNITS[unit]), LAST_US // UNITS[unit], bad, pa.int64())
        numbers = pc.multiply(numbers, UNITS[unit])
    else:
        cut = pc.divide(numbers, 1000)  # towards zero
        earlier = pc.less(numbers, pc.multiply(cut, 1000))
        numbers = pc.subtract(cut, earlier.cast(pa.int64()))
    return _within(numbers, FIRST_US, LAST_US, bad, made)


def _local_times(values: list[Any], made: pa.DataType, kind: DataType) -> _Column:
    return _times_of_texts(values, made, _LOCAL)


def _times_of_texts(values: list[Any], made: pa.DataType, pattern: str) -> _Column:
    texts, bad = _texts(values, pattern)
    if (pc.max(pc.binary_length(texts)).as_py() or 0) > _LENGTH:
        texts = pc.replace_substring_regex(texts, _BELOW_US, r"\1")  # pyarrow refuses digits below a microsecond
    times, bad = _cast(texts, made, bad)
    # Not the year 0, nor the first and the last hours beyond the ends by a time zone.
    numbers, bad = _within(times.cast(pa.int64()), FIRST_US, LAST_US, bad, pa.int64())
    return numbers.cast(made), bad


def _dates(values: list[Any], made: pa.DataType, kind: DataType) -> _Column:
    texts, bad = _texts(values, f"^{DAY}$")
    days, bad = _cast(texts, pa.date32(), bad)
    numbers, bad = _within(days.cast(pa.int32()), FIRST_US // _DAY_US, LAST_US // _DAY_US, bad, pa.int32())
    return numbers.cast(made), bad


def _booleans(values: list[Any], made: pa.DataType, kind: DataType) -> _Column:
    values, bad = _only(frozenset({bool}), values)
    return pa.array(values, made), bad


def _binaries(values: list[Any], made: pa.DataType, kind: DataType) -> _Column:
    found = [None if each is None else binary(each, kind, "") for each in values]
    bad = {at for at, each in enumerate(values) if each is not None and found[at] is None}
    return pa.array(found, made), bad


_SIMPLE: dict[type[DataType], Callable[[list[Any], pa.DataType, DataType], _Column]] = {
    StringType: _strings,
    **dict.fromkeys(BITS, _integers),
    DecimalType: _decimals,
    DoubleType: _floats,
    FloatType: _floats,
    TimestampNTZType: _local_times,
    DateType: _dates,
    BooleanType: _booleans,
    BinaryType: _binaries,
}


def _texts(values: list[Any], pattern: str) -> _Column:
    """The texts that match."""
    values, bad = _only(_TEXT, values)
    texts, halves = _strings(values, pa.string(), StringType())
    texts, wrong = _matching(texts, pattern)
    return texts, bad | halves | wrong


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
