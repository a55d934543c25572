"""The rule of ``values`` in Spark's expressions, which run without Python.

``from_json`` changes values silently: it reads numbers as DOUBLE before it makes text of them, rounds to the scale of a
DECIMAL, and replaces halves of surrogate pairs by question marks. So it only gets texts to read: :func:`marked` puts
each number into quotes, behind a mark that no publisher can know, and each lone half of a pair becomes another mark.
:func:`plain` is the schema for that, and :func:`value_of` and :func:`fits` make the values of these texts.

Each match of the two patterns begins where the last one ended (``\\G``).
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from gnsq_like.spark.pipeline import values

if TYPE_CHECKING:
    from pyspark.sql import Column

_NUMBER, _HALF = f"#n{uuid4().hex[:10]}#", f"#h{uuid4().hex[:10]}#"

#: The types that are read as text.
_AS_TEXT = (IntegralType, DoubleType, FloatType, DecimalType, DateType, TimestampType, TimestampNTZType)


def marked(text: Column) -> Column:
    """JSON whose numbers are marked texts, and whose lone halves of surrogate pairs are marks."""
    halves = F.regexp_replace(text, rf"\G{values.HALF}", f"$1{_HALF}")
    paired = F.when(text.contains("\\ud") | text.contains("\\uD"), halves).otherwise(text)
    return F.regexp_replace(paired, rf"\G{values.NUMBER}", f'$1"{_NUMBER}$2"')


def plain(kind: DataType) -> DataType:
    """The type by which ``from_json`` reads marked JSON."""
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, plain(each.dataType)) for each in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(plain(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, plain(kind.valueType))
    return StringType() if isinstance(kind, _AS_TEXT) else kind


def value_of(read: Column, kind: DataType, unit: str) -> Column:
    """The value of what ``from_json`` has read; null where it does not fit."""
    if isinstance(kind, StructType):
        fields = [value_of(read.getField(each.name), each.dataType, unit).alias(each.name) for each in kind.fields]
        return F.when(read.isNotNull(), F.struct(*fields))
    if isinstance(kind, ArrayType):
        return F.transform(read, lambda each: value_of(each, kind.elementType, unit))
    if isinstance(kind, MapType):
        return F.transform_values(read, lambda _, each: value_of(each, kind.valueType, unit))
    if isinstance(kind, StringType):
        return _text(read)
    if isinstance(kind, _AS_TEXT):
        return _read(read, kind, unit)
    return read


def fits(read: Column, kind: DataType, unit: str) -> Column:
    """Whether nothing in it is lost by :func:`value_of`; null where there is nothing."""
    if isinstance(kind, StructType):
        result = F.lit(True)
        for each in kind.fields:
            inner = read.getField(each.name)
            result = result & (inner.isNull() | fits(inner, each.dataType, unit))
        return result
    if isinstance(kind, ArrayType):
        return F.forall(read, lambda each: each.isNull() | fits(each, kind.elementType, unit))
    if isinstance(kind, MapType):
        paired = F.forall(F.map_keys(read), lambda key: ~key.contains(_HALF))
        return paired & F.forall(F.map_values(read), lambda each: each.isNull() | fits(each, kind.valueType, unit))
    if isinstance(kind, StringType):
        return ~read.contains(_HALF)
    if isinstance(kind, _AS_TEXT):
        return _read(read, kind, unit).isNotNull()
    return F.lit(True)


def _is_number(read: Column) -> Column:
    return read.startswith(_NUMBER)


def _unmarked(read: Column) -> Column:
    return F.when(_is_number(read), F.substring(read, len(_NUMBER) + 1, 2**31 - 1)).otherwise(read)


def _text(read: Column) -> Column:
    """Text as it is, the text of a number, or that of an object or array with numbers in it."""
    inner = F.regexp_replace(read, f'"{_NUMBER}([^"]*+)"', "$1")
    return F.when(_is_number(read), _unmarked(read)).when(read.contains(f'"{_NUMBER}'), inner).otherwise(read)


def _read(read: Column, kind: DataType, unit: str) -> Column:
    """A number, a date or a time; null if the text is none of this type."""
    text = _unmarked(read)
    if isinstance(kind, IntegralType):
        return F.when(_is_number(read) & text.rlike(values.INTEGER), text.try_cast(kind))
    if isinstance(kind, DoubleType | FloatType):
        return _floating(read, text, kind)
    if isinstance(kind, DecimalType):
        return F.when(text.rlike(values.DECIMAL) & _has_scale(text, kind.scale), text.try_cast(kind))
    if isinstance(kind, DateType):
        return F.when(text.rlike(values.DATE), text.try_cast(kind))
    if isinstance(kind, TimestampNTZType):
        return F.when(text.rlike(values.LOCAL) | text.rlike(values.DATE), _with_seconds(text).try_cast(kind))
    return F.when(_is_number(read), _from_number(text, unit)).otherwise(_time(text))


def _floating(read: Column, text: Column, kind: DataType) -> Column:
    number = text.try_cast(kind)
    # Infinity of something else, or 0 of something else.
    changed = (F.abs(number) == F.lit("Infinity").cast(kind)) | ((number == 0) & text.rlike("^[^eE]*[1-9]"))
    return F.when(text.isin(*values.NOT_FINITE), number).when(_is_number(read) & ~changed, number)


def _has_scale(text: Column, scale: int) -> Column:
    """Whether a number has no digits but 0 behind its ``scale``-th place."""
    mantissa = F.regexp_replace(text, "[eE].*", "")
    digits = F.regexp_replace(mantissa, "[^0-9]", "")
    # The length of a mantissa without a point is that of an empty text behind it.
    behind = F.length(F.regexp_replace(mantissa, r"^[^.]*\.?", ""))
    exponent = F.coalesce(F.regexp_extract(text, "[eE](.+)", 1).try_cast("int"), F.lit(0))
    zeros = F.length(digits) - F.length(F.rtrim(digits, F.lit("0")))
    return (behind - exponent - zeros <= scale) | ~digits.rlike("[1-9]")


def _from_number(text: Column, unit: str) -> Column:
    whole = F.when(text.rlike(values.INTEGER), text.try_cast("bigint"))
    factor = values.UNITS[unit]
    # As a DECIMAL, since a division of integers is one of doubles.
    thousandth = F.floor(whole.cast("decimal(19,0)") * F.lit(Decimal("0.001"))).cast("bigint")
    return _possible(F.timestamp_micros(F.try_multiply(whole, F.lit(factor)) if factor else thousandth))


def _time(text: Column) -> Column:
    # A time zone in the text makes it independent of that of the session.
    zoned = (
        F.when(text.rlike(values.ZONED), _with_seconds(text))
        .when(text.rlike(values.LOCAL), F.concat(_with_seconds(text), F.lit("Z")))
        .when(text.rlike(values.DATE), F.concat(text, F.lit("T00:00:00Z")))
    )
    return _possible(zoned.try_cast(TimestampType()))


def _with_seconds(text: Column) -> Column:
    """Spark reads a time zone only behind seconds."""
    return F.regexp_replace(text, "^([0-9-]+[T ][0-9]+:[0-9]+)(?![0-9:])", "$1:00")


def _possible(time: Column) -> Column:
    return F.when(F.unix_micros(time).between(values.FIRST_US, values.LAST_US), time)
