"""Values of JSON as values of a schema: kept exactly, or the message is rejected.

This is the rule in Python, without Spark. ``exact`` builds the same rule from Spark's expressions, and a test compares
the two; ``rejected`` uses this one to find the field that does not fit. Both use the patterns of this module.

What is exact: a number's text, a DECIMAL without digits beyond its scale, an integer in the range of its type. A DOUBLE
and a FLOAT are the nearest ones to the number, and a TIMESTAMP has microseconds: that is what these types are. But a
number does not become infinite or 0 that was not.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

#: Microseconds of each unit that a TIMESTAMP can have as a number; nanoseconds are the exception.
UNITS: Mapping[str, int] = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 0}
#: How many nanoseconds a microsecond has.
_NS = 1000
#: Times of other years are mistakes, such as milliseconds that are read as seconds, and few programs can read them.
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999

# Patterns for Java and Python alike. The end is one that no line break is before.
_END = r"(?![\s\S])"
#: Text that is a DECIMAL; a JSON number always matches.
DECIMAL = rf"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{{1,9}})?{_END}"
INTEGER = rf"^-?[0-9]{{1,19}}{_END}"
DATE = rf"^(?!0000)[0-9]{{4}}-[0-9]{{1,2}}-[0-9]{{1,2}}{_END}"
_LOCAL = r"^(?!0000)[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}[T ][0-9]{1,2}:[0-9]{1,2}(:[0-9]{1,2}(\.[0-9]{1,9})?)?"
#: A time without a time zone, and one with it.
LOCAL = _LOCAL + _END
ZONED = rf"{_LOCAL} ?(Z|[+-](0[0-9]|1[0-7])(:?[0-5][0-9])?){_END}"
#: Texts that are a DOUBLE without being numbers.
NOT_FINITE = ("NaN", "Infinity", "-Infinity", "+Infinity", "INF", "-INF", "+INF")

# Groups are repeated possessively: otherwise a long body overflows the stack of Java.
_BETWEEN = r'((?:[^"0-9NI-]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+)'
_NUMERAL = r"(-?(?:(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+|Infinity)|NaN)"
#: In JSON, all from the last number to the next one, and that. It is neither the name of a field nor a part of
#: something longer: that is not JSON, and must not become it.
NUMBER = rf"{_BETWEEN}{_NUMERAL}(?=[ \t\r\n]*+[,\]}}])"
_PAIRED = r"((?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)*+)"
#: All from the last half of a surrogate pair that is alone to the next one, and that.
HALF = rf"{_PAIRED}\\u[dD][89a-fA-F][0-9a-fA-F]{{2}}"

_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_EPOCH = datetime(1970, 1, 1)
_SURROGATE = re.compile("[\ud800-\udfff]")


class Numeral(str):
    """A number of JSON as the text that came; also NaN and Infinity, which Python writes."""

    __slots__ = ()


class Misfit(ValueError):
    """A value is not one of the type."""


def loads(text: str) -> Any:
    """Read JSON; numbers are Numerals. Raises JSONDecodeError and RecursionError."""
    return json.loads(text, parse_float=Numeral, parse_int=Numeral, parse_constant=Numeral)


def kept(value: Any, kind: DataType, unit: str = "s") -> Any:
    """The value that is stored for a JSON value that is not null; raises Misfit.

    :param kind: a type without parts
    :param unit: the unit of a TIMESTAMP that is a number
    """
    if isinstance(kind, StringType):
        return _string(value)
    if isinstance(kind, BooleanType):
        if not isinstance(value, bool):
            raise Misfit
        return value
    if not isinstance(value, str):
        raise Misfit
    if isinstance(kind, IntegralType):
        return _integer(value, kind)
    if isinstance(kind, DoubleType | FloatType):
        return _floating(value, kind)
    if isinstance(kind, DecimalType):
        return _decimal(value, kind)
    if isinstance(kind, TimestampType) and isinstance(value, Numeral):
        return _from_number(value, unit)
    if isinstance(value, Numeral):
        raise Misfit
    if isinstance(kind, TimestampType | TimestampNTZType):
        return _time(value, kind)
    if isinstance(kind, DateType):
        return _date(value)
    return value


def is_text(value: str) -> bool:
    """Whether a string is Unicode text: JSON can escape half of a surrogate pair, which is none."""
    return not _SURROGATE.search(value)


def _string(value: Any) -> Any:
    if isinstance(value, str):
        if not is_text(value):
            raise Misfit
        return str(value)
    for part in _strings(value):
        if not is_text(part):
            raise Misfit
    return value


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(part for each in value.values() for part in _strings(each))]
    if isinstance(value, list):
        return [part for each in value for part in _strings(each)]
    return [value] if isinstance(value, str) else []


def _integer(value: str, kind: IntegralType) -> int:
    if not isinstance(value, Numeral) or not re.match(INTEGER, value):
        raise Misfit
    limit = 1 << (_BITS[kind.simpleString()] - 1)
    if not -limit <= int(value) < limit:
        raise Misfit
    return int(value)


def _floating(value: str, kind: DataType) -> float:
    if value in NOT_FINITE:
        return float(value)
    if not isinstance(value, Numeral):
        raise Misfit
    result = float(value)
    if isinstance(kind, FloatType):
        try:
            result = struct.unpack("f", struct.pack("f", result))[0]
        except OverflowError:
            raise Misfit from None
    if math.isinf(result) or (result == 0 and re.search(r"[1-9]", re.sub(r"[eE].*", "", value))):
        raise Misfit
    return result


def _decimal(value: str, kind: DecimalType) -> Decimal:
    if not re.match(DECIMAL, value):
        raise Misfit
    result = Decimal(value)
    _, digits, exponent = result.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    stripped = text.rstrip("0")
    if not stripped:
        return Decimal(0)
    exponent += len(text) - len(stripped)
    if -exponent > kind.scale or len(stripped.lstrip("0")) + exponent > kind.precision - kind.scale:
        raise Misfit
    return result


def _from_number(value: Numeral, unit: str) -> datetime:
    if not re.match(INTEGER, value) or not -(1 << 63) <= int(value) < 1 << 63:
        raise Misfit
    us = int(value) * UNITS[unit] if UNITS[unit] else int(value) // _NS
    return _at(us).replace(tzinfo=UTC)


def _at(us: int) -> datetime:
    if not FIRST_US <= us <= LAST_US:
        raise Misfit
    return _EPOCH + timedelta(microseconds=us)


def _time(value: str, kind: DataType) -> datetime:
    zoned = isinstance(kind, TimestampType)
    if re.match(DATE, value):
        day = _date(value)
        return datetime(day.year, day.month, day.day, tzinfo=UTC if zoned else None)
    if not re.match(LOCAL, value) and not (zoned and re.match(ZONED, value)):
        raise Misfit
    found = re.match(r"(\d+)-(\d+)-(\d+).(\d+):(\d+)(?::(\d+)(?:\.(\d+))?)? ?(?:Z|([+-])(\d\d):?(\d\d)?)?", value)
    assert found is not None
    *clock, fraction, sign, hours, minutes = found.groups(default="0")
    try:
        year, month, when, hour, minute, second = map(int, clock)
        local = datetime(year, month, when, hour, minute, second, int(f"{fraction:0<6}"[:6]))
    except ValueError:
        raise Misfit from None
    if not zoned:
        return local
    offset = timedelta(hours=int(hours), minutes=int(minutes)) * (-1 if sign == "-" else 1)
    return _at((local - _EPOCH - offset) // timedelta(microseconds=1)).replace(tzinfo=UTC)


def _date(value: str) -> date:
    if not re.match(DATE, value):
        raise Misfit
    try:
        return date(*map(int, value.split("-")))
    except ValueError:
        raise Misfit from None
