"""Values of JSON as values of a schema, in Spark's expressions: kept exactly, or the message is rejected.

``RULES`` states the rule of each type, once; the table in docs/pipeline.rst is made from it. What is exact: a number's
text, a DECIMAL without digits beyond its scale, an integer in the range of its type. A DOUBLE and a FLOAT are the
nearest ones to the number, and a TIMESTAMP has microseconds: that is what these types are. But a number does not become
infinite or 0 that was not.

``from_json`` changes values silently: it reads numbers as DOUBLE before it makes text of them, rounds to the scale of a
DECIMAL, and replaces halves of surrogate pairs by question marks. So it only gets texts to read: :func:`marked` puts
each number, ``true`` and ``false`` into quotes, behind a mark that no publisher can know, and each lone half of a pair
becomes another mark. :func:`plain` is the schema for that; :func:`value_of` and :func:`misfit` read these texts.

Each match of the two patterns for marks begins where the last one ended (``\\G``). Patterns are for Java; a test also
applies those for marks in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
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

if TYPE_CHECKING:
    from pyspark.sql import Column

_BARE, _HALF = f"#n{uuid4().hex[:10]}#", f"#h{uuid4().hex[:10]}#"

#: Microseconds of each unit that a TIMESTAMP can have as a number; nanoseconds are the exception.
UNITS: Mapping[str, int] = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 0}
#: Times of other years are mistakes, such as milliseconds that are read as seconds, and few programs can read them.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999

# The end is one that no line break is before.
_END = r"(?![\s\S])"
#: Text that is a DECIMAL; a JSON number always matches.
_DECIMAL = rf"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{{1,9}})?{_END}"
_INTEGER = rf"^-?[0-9]{{1,19}}{_END}"
_DAY = r"^(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_DATE = _DAY + _END
_CLOCK = rf"{_DAY}[T ][0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}}(\.[0-9]{{1,9}})?)?"
#: A time without a time zone, and one with it.
_LOCAL = _CLOCK + _END
_ZONED = rf"{_CLOCK} ?(Z|[+-](0[0-9]|1[0-7])(:?[0-5][0-9])?){_END}"
_BASE64 = rf"^(?:[A-Za-z0-9+/]{{4}})*+(?:[A-Za-z0-9+/]{{2}}==|[A-Za-z0-9+/]{{3}}=)?{_END}"
#: Texts that are a DOUBLE without being numbers.
_NOT_FINITE = ("NaN", "Infinity", "-Infinity", "+Infinity", "INF", "-INF", "+INF")

# Groups are repeated possessively: otherwise a long body overflows the stack of Java.
_BETWEEN = r'((?:[^"0-9NItf-]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+)'
_WORD = r"(-?(?:(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+|Infinity)|NaN|true|false)"
#: In JSON, all from the last number, true or false to the next one, and that. It is neither the name of a field nor a
#: part of something longer: that is not JSON, and must not become it.
BARE = rf"{_BETWEEN}{_WORD}(?=[ \t\r\n]*+[,\]}}])"
_PAIRED = r"((?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)*+)"
#: All from the last half of a surrogate pair that is alone to the next one, and that.
HALF = rf"{_PAIRED}\\u[dD][89a-fA-F][0-9a-fA-F]{{2}}"


class Text:
    """What ``from_json`` has read of one value.

    :param unit: the unit of a TIMESTAMP that is a number
    """

    def __init__(self, read: Column, unit: str) -> None:
        self.read, self.unit = read, unit
        #: Whether it was not in quotes: a number, true or false.
        self.is_bare = read.startswith(_BARE)
        #: Without the mark.
        self.text = F.when(self.is_bare, F.substring(read, len(_BARE) + 1, 2**31 - 1)).otherwise(read)


@dataclass(frozen=True)
class Rule:
    """The rule of a type, or of types that are alike."""

    #: The types as the page names them, and the values that they have there.
    name: str
    values: str
    kinds: tuple[type[DataType], ...]
    #: The value that is stored; null if there is none. None for types with parts, which have the rules of these.
    read: Callable[[Text, Any], Column] | None = None


def marked(text: Column) -> Column:
    """JSON whose numbers, true and false are marked texts, and whose lone halves of surrogate pairs are marks."""
    halves = F.regexp_replace(text, rf"\G{HALF}", f"$1{_HALF}")
    paired = F.when(text.contains("\\ud") | text.contains("\\uD"), halves).otherwise(text)
    return F.regexp_replace(paired, rf"\G{BARE}", f'$1"{_BARE}$2"')


def plain(kind: DataType) -> DataType:
    """The type by which ``from_json`` reads marked JSON."""
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, plain(each.dataType)) for each in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(plain(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, plain(kind.valueType))
    return StringType()


def value_of(read: Column, kind: DataType, unit: str) -> Column:
    """The value of what ``from_json`` has read; null where it does not fit."""
    if isinstance(kind, StructType):
        fields = [value_of(read.getField(each.name), each.dataType, unit).alias(each.name) for each in kind.fields]
        return F.when(read.isNotNull(), F.struct(*fields))
    if isinstance(kind, ArrayType):
        return F.transform(read, lambda each: value_of(each, kind.elementType, unit))
    if isinstance(kind, MapType):
        return F.transform_values(_once(read), lambda _, each: value_of(each, kind.valueType, unit))
    return _read(kind)(Text(read, unit), kind)


def misfit(read: Column, kind: DataType, unit: str, name: str = "") -> Column:
    """Why a value, or one in it, does not fit; null if all do. Says nothing of what ``from_json`` could not read.

    :param name: the field's, of which ``kind`` is the type
    """
    if isinstance(kind, StructType):
        prefix = f"{name}." if name else ""
        return F.coalesce(
            F.lit(None).cast("string"),
            *[misfit(read.getField(each.name), each.dataType, unit, prefix + each.name) for each in kind.fields],
        )
    if isinstance(kind, ArrayType):
        return _first(F.transform(read, lambda each: misfit(each, kind.elementType, unit, f"{name}[]")))
    if isinstance(kind, MapType):
        is_text = F.forall(F.map_keys(read), lambda key: ~key.contains(_HALF))
        values = F.transform(F.map_values(_once(read)), lambda each: misfit(each, kind.valueType, unit, f"{name}{{}}"))
        return F.when(~is_text, F.lit(f"field {name} has a key that is not Unicode")).otherwise(_first(values))
    what = "Unicode" if isinstance(kind, StringType) else f"a valid {kind.simpleString().upper()}"
    is_wrong = read.isNotNull() & _read(kind)(Text(read, unit), kind).isNull()
    return F.when(is_wrong, F.lit(f"field {name} is not {what}"))


def _once(read: Column) -> Column:
    """``from_json`` keeps a key as often as it comes; a map that is made anew, the last one (``paths.settle``)."""
    return F.map_from_entries(F.map_entries(read))


def _first(texts: Column) -> Column:
    return F.get(F.filter(texts, lambda each: each.isNotNull()), F.lit(0))


def _read(kind: DataType) -> Callable[[Text, Any], Column]:
    return next(rule.read for rule in RULES if rule.read is not None and isinstance(kind, rule.kinds))


def _string(value: Text, kind: DataType) -> Column:
    inner = F.regexp_replace(value.read, f'"{_BARE}([^"]*+)"', "$1")
    has_inner = ~value.is_bare & value.read.contains(f'"{_BARE}')
    return F.when(~value.read.contains(_HALF), F.when(has_inner, inner).otherwise(value.text))


def _integer(value: Text, kind: DataType) -> Column:
    return F.when(value.is_bare & value.text.rlike(_INTEGER), value.text.try_cast(kind))


def _decimal(value: Text, kind: DecimalType) -> Column:
    text = value.text
    mantissa = F.regexp_replace(text, "[eE].*", "")
    digits = F.regexp_replace(mantissa, "[^0-9]", "")
    # The length of a mantissa without a point is that of an empty text behind it.
    behind = F.length(F.regexp_replace(mantissa, r"^[^.]*\.?", ""))
    exponent = F.coalesce(F.regexp_extract(text, "[eE](.+)", 1).try_cast("int"), F.lit(0))
    zeros = F.length(digits) - F.length(F.rtrim(digits, F.lit("0")))
    has_scale = (behind - exponent - zeros <= kind.scale) | ~digits.rlike("[1-9]")
    return F.when(text.rlike(_DECIMAL) & has_scale, text.try_cast(kind))


def _floating(value: Text, kind: DataType) -> Column:
    number = value.text.try_cast(kind)
    # Infinity of something else, or 0 of something else.
    changed = (F.abs(number) == F.lit("Infinity").cast(kind)) | ((number == 0) & value.text.rlike("^[^eE]*[1-9]"))
    return F.when(value.text.isin(*_NOT_FINITE), number).when(value.is_bare & ~changed, number)


def _timestamp(value: Text, kind: DataType) -> Column:
    text = value.text
    whole = F.when(text.rlike(_INTEGER), text.try_cast("bigint"))
    factor = UNITS[value.unit]
    # As a DECIMAL, since a division of integers is one of doubles.
    thousandth = F.floor(whole.cast("decimal(19,0)") * F.lit(Decimal("0.001"))).cast("bigint")
    number = F.timestamp_micros(F.try_multiply(whole, F.lit(factor)) if factor else thousandth)
    # A time zone in the text makes it independent of that of the session.
    zoned = (
        F.when(text.rlike(_ZONED), _with_seconds(text))
        .when(text.rlike(_LOCAL), F.concat(_with_seconds(text), F.lit("Z")))
        .when(text.rlike(_DATE), F.concat(text, F.lit("T00:00:00Z")))
    )
    time = F.when(value.is_bare, number).otherwise(zoned.try_cast(kind))
    return F.when(F.unix_micros(time).between(_FIRST_US, _LAST_US), time)


def _local_time(value: Text, kind: DataType) -> Column:
    return F.when(value.read.rlike(_LOCAL) | value.read.rlike(_DATE), _with_seconds(value.read).try_cast(kind))


def _with_seconds(text: Column) -> Column:
    """Spark reads a time zone only behind seconds."""
    return F.regexp_replace(text, "^([0-9-]+[T ][0-9]+:[0-9]+)(?![0-9:])", "$1:00")


def _date(value: Text, kind: DataType) -> Column:
    return F.when(value.read.rlike(_DATE), value.read.try_cast(kind))


def _boolean(value: Text, kind: DataType) -> Column:
    return F.when(value.is_bare & value.text.isin("true", "false"), value.text == "true")


def _binary(value: Text, kind: DataType) -> Column:
    return F.when(value.read.rlike(_BASE64), F.unbase64(value.read))


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
        (IntegralType,),
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
    Rule("``BINARY``", "text in base64, with its padding", (BinaryType,), _binary),
    Rule("``ARRAY``, ``STRUCT``", "arrays and objects", (ArrayType, StructType)),
    Rule("``MAP``", "objects; the keys are ``STRING``. Of a key that comes twice, the last one counts", (MapType,)),
)
