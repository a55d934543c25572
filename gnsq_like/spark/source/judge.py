"""Checks a single body against a schema, and reads its values.

``RULES`` states the rule of each type, once, with the function that applies it; the table in docs/spark.rst is made
from it. Exact are: a number's text, a DECIMAL without digits beyond its scale, an integer in the range of its type. A
DOUBLE or FLOAT is the nearest one to the number, and a TIMESTAMP has microseconds. A finite number never becomes
infinite, nor a number other than 0 0.

Numbers are read as their text, in bytes, so that they differ from JSON's texts. The structure of the whole body is
judged before its values. Reasons name fields and types but no values, so that there are few different ones.

``by_columns`` does the same ten times as fast for values that are certain, and leaves the rest to :class:`Judge`.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

#: Microseconds of each unit that a TIMESTAMP can have as a number; nanoseconds are the exception.
UNITS: Mapping[str, int] = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 0}
#: Bits of the integers.
BITS: Mapping[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
#: The years 1 to 9999. Times of others are mistakes, such as milliseconds that are read as seconds, and few programs
#: can read them.
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999

#: Half of a surrogate pair.
HALF = re.compile("[\ud800-\udfff]")
DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
ZONE = "Z|[+-](?:0[0-9]|1[0-7])(?::?[0-5][0-9])?"
TIME = re.compile(
    rf"({DAY})(?:[T ]((?:[01][0-9]|2[0-3]):[0-5][0-9])(?:(:[0-5][0-9])(?:\.([0-9]{{1,9}}))?)?(?: ?({ZONE}))?)?"
)

_DAY = re.compile(DAY)
#: Text that is a DECIMAL; a JSON number always matches.
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
_INTEGER = re.compile(rb"-?[0-9]{1,19}")
#: A number that is not 0.
_NOT_ZERO = re.compile(rb"[^eE]*[1-9]")
_BASE64 = re.compile("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
#: Texts that are a DOUBLE without being numbers.
_NOT_FINITE = {"NaN", "Infinity", "-Infinity", "+Infinity", "INF", "-INF", "+INF"}
_EPOCH = datetime(1970, 1, 1)

#: Reads JSON with each number as its text in bytes.
DECODER = json.JSONDecoder(parse_float=str.encode, parse_int=str.encode, parse_constant=str.encode)


class Misfit(Exception):
    """A body does not fit the schema; the text is the reason."""


# -- the rule of each type ------------------------------------------------------------------------------
#
# Each function takes what JSON has, which is not null, the type, and the unit of a TIMESTAMP that is a number. It
# returns what pyarrow stores, or None if there is no such value.


def _string(value: Any, kind: DataType, unit: str) -> str | None:
    text = value if isinstance(value, str) else _text_of(value)
    return None if HALF.search(text) else text


def _text_of(value: Any) -> str:
    """JSON as text, with each number as it was."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return "{" + ",".join(f"{_text_of(key)}:{_text_of(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text_of, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _integer(value: Any, kind: DataType, unit: str) -> int | None:
    if not isinstance(value, bytes) or not _INTEGER.fullmatch(value):
        return None
    number, limit = int(value), 1 << BITS[type(kind)] - 1
    return number if -limit <= number < limit else None


def _decimal(value: Any, kind: Any, unit: str) -> Decimal | None:
    text = value.decode() if isinstance(value, bytes) else value
    if not isinstance(text, str) or not _DECIMAL.fullmatch(text):
        return None
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    written = "".join(map(str, digits))
    used = written.rstrip("0")
    if not used:
        return Decimal(0)
    exponent += len(written) - len(used)
    if exponent < -kind.scale or len(used) + exponent > kind.precision - kind.scale:
        return None
    return Decimal((sign, tuple(map(int, used.ljust(len(used) + exponent + kind.scale, "0"))), -kind.scale))


def _floating(value: Any, kind: DataType, unit: str) -> float | None:
    text = value.decode() if isinstance(value, bytes) else value
    if not isinstance(text, str):
        return None
    if text in _NOT_FINITE:
        return float(text)
    if not isinstance(value, bytes):
        return None
    number = _single(text) if isinstance(kind, FloatType) else float(text)
    return number if math.isfinite(number) and (number == 0) == (not _NOT_ZERO.match(value)) else None


def _single(text: str) -> float:
    """The FLOAT that is nearest to a number; by way of a DOUBLE, it could be the one beside it."""
    try:
        number: float = pa.scalar(text).cast(pa.float32()).as_py()
    except pa.ArrowInvalid:  # out of its range
        return math.inf
    return number


def _timestamp(value: Any, kind: DataType, unit: str) -> int | None:
    if not isinstance(value, bytes):
        us = _micros(value, zoned=True)
    elif not _INTEGER.fullmatch(value) or not -(1 << 63) <= int(value) < 1 << 63:
        return None
    else:
        us = int(value) * UNITS[unit] if UNITS[unit] else int(value) // 1000
    return us if us is not None and FIRST_US <= us <= LAST_US else None


def _local_time(value: Any, kind: DataType, unit: str) -> int | None:
    return _micros(value, zoned=False)


def _micros(value: Any, *, zoned: bool) -> int | None:
    """Microseconds of a text, in UTC unless it has a time zone."""
    found = TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    day, clock, seconds, fraction, zone = found.groups()
    if zone and not zoned:
        return None
    try:
        at = datetime.fromisoformat(f"{day} {clock or '00:00'}{seconds or ':00'}")
    except ValueError:
        return None
    whole = (at - _EPOCH) // timedelta(seconds=1)
    if zone and zone != "Z":
        ahead = int(zone[1:3]) * 3600 + int(zone[3:].lstrip(":") or 0) * 60
        whole -= ahead if zone[0] == "+" else -ahead
    return whole * 1_000_000 + int((fraction or "").ljust(6, "0")[:6])


def _date(value: Any, kind: DataType, unit: str) -> date | None:
    if not isinstance(value, str) or not _DAY.fullmatch(value):
        return None
    try:
        return date.fromisoformat(value)
    except ValueError:
        return None


def _boolean(value: Any, kind: DataType, unit: str) -> bool | None:
    return value if isinstance(value, bool) else None


def binary(value: Any, kind: DataType, unit: str) -> bytes | None:
    return b64decode(value) if isinstance(value, str) and _BASE64.fullmatch(value) else None


@dataclass(frozen=True)
class Rule:
    """The rule of a type, or of types that are alike."""

    #: The types as the page names them, and the values that they have there.
    name: str
    values: str
    kinds: tuple[type[DataType], ...]
    #: None for types with parts, which have the rules of these.
    read: Callable[[Any, DataType, str], Any] | None = None


RULES = (
    Rule(
        "``STRING``",
        "text; a number, ``true``, an object or an array as its text, with each number unchanged: ``1.10`` stays "
        '``1.10``. Half of a surrogate pair (``"\\ud800"``) is not text',
        (StringType,),
        _string,
    ),
    Rule(
        "``TINYINT`` … ``BIGINT``",
        "numbers without decimal point or exponent, in the range of the type",
        tuple(BITS),
        _integer,
    ),
    Rule(
        "``DECIMAL(p, s)``",
        "numbers, or numbers as text, with at most ``s`` decimal places, without trailing zeros",
        (DecimalType,),
        _decimal,
    ),
    Rule(
        "``DOUBLE``, ``FLOAT``",
        "numbers, as the nearest ``DOUBLE`` or ``FLOAT``, but no number becomes infinity or zero; also ``NaN``, "
        "``Infinity`` and ``-Infinity``, which are not JSON, but which Python writes",
        (DoubleType, FloatType),
        _floating,
    ),
    Rule(
        "``TIMESTAMP``",
        "ISO 8601 (``2026-01-02T03:04:05.678+01:00``), in UTC if it has no time zone; or an integer in units of "
        "``timestamp_unit`` since 1970. Years are 1 to 9999; digits below a microsecond are cut off",
        (TimestampType,),
        _timestamp,
    ),
    Rule("``TIMESTAMP_NTZ``", "ISO 8601 without a time zone", (TimestampNTZType,), _local_time),
    Rule("``DATE``", "``2026-01-02``", (DateType,), _date),
    Rule("``BOOLEAN``", "``true`` and ``false``", (BooleanType,), _boolean),
    Rule("``BINARY``", "text in base64, with its padding", (BinaryType,), binary),
    Rule("``ARRAY``, ``STRUCT``", "arrays and objects", (ArrayType, StructType)),
    Rule("``MAP``", "objects; the keys are ``STRING``. Of a key that comes twice, the last one counts", (MapType,)),
)

_READERS = {kind: rule.read for rule in RULES for kind in rule.kinds if rule.read is not None}


# -- one body -------------------------------------------------------------------------------------------


class Judge:
    """Decides whether bodies fit a schema.

    :param schema: the fields of the JSON object
    :param unit: the unit of a TIMESTAMP that is a number, one of ``UNITS``
    """

    def __init__(self, schema: StructType, unit: str = "s") -> None:
        self._schema = schema
        self._unit = unit

    def fields(self, body: bytes) -> dict[str, Any]:
        """The values of the fields, as pyarrow takes them; raises Misfit."""
        try:
            value = _object_of(body)
            for reason in _wrong_structure(value, self._schema, ""):
                raise Misfit(reason)
            found: dict[str, Any] = self._value(value, self._schema, "")
        except RecursionError:
            raise Misfit("it is nested too deeply") from None
        return found

    def _value(self, value: Any, kind: DataType, name: str) -> Any:
        if value is None:
            return None
        if isinstance(kind, StructType):
            return {
                each.name: self._value(value.get(each.name), each.dataType, _inner(name, each.name))
                for each in kind.fields
            }
        if isinstance(kind, ArrayType):
            return [self._value(each, kind.elementType, f"{name}[]") for each in value]
        if isinstance(kind, MapType):
            if any(map(HALF.search, value)):
                raise Misfit(f"field {name} has a key that is not Unicode")
            return [(key, self._value(each, kind.valueType, f"{name}{{}}")) for key, each in value.items()]
        found = _READERS[type(kind)](value, kind, self._unit)
        if found is None:
            what = "Unicode" if isinstance(kind, StringType) else f"a valid {kind.simpleString().upper()}"
            raise Misfit(f"field {name} is not {what}")
        return found


def _object_of(body: bytes) -> dict[str, Any]:
    """The object that a body is; raises Misfit."""
    try:
        text = body.decode()
        if text.startswith("\ufeff"):
            raise Misfit("it is not JSON: it begins with a byte order mark")
        value = DECODER.decode(text)
    except UnicodeDecodeError:
        raise Misfit("it is not UTF-8") from None
    except json.JSONDecodeError as exc:
        raise Misfit(f"it is not JSON: {exc.msg[:1].lower()}{exc.msg[1:]}") from None
    if not isinstance(value, dict):
        raise Misfit("it is JSON, but not an object")
    return value


def _wrong_structure(value: Any, kind: DataType, name: str) -> Iterator[str]:
    """The fault of the structure, apart from values of simple types."""
    if isinstance(kind, StructType | MapType) and not isinstance(value, dict):
        yield f"field {name} is not an object"
    elif isinstance(kind, StructType):
        for field in kind.fields:
            inner, path = value.get(field.name), _inner(name, field.name)
            if inner is not None:
                yield from _wrong_structure(inner, field.dataType, path)
            elif not field.nullable:
                yield f"field {path} is {'null' if field.name in value else 'missing'}"
    elif isinstance(kind, ArrayType):
        if not isinstance(value, list):
            yield f"field {name} is not an array"
            return
        for each in value:
            if each is not None:
                yield from _wrong_structure(each, kind.elementType, f"{name}[]")
    elif isinstance(kind, MapType):
        for each in value.values():
            if each is not None:
                yield from _wrong_structure(each, kind.valueType, f"{name}{{}}")


def _inner(name: str, field: str) -> str:
    return f"{name}.{field}" if name else field
