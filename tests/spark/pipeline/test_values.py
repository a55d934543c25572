"""Values are kept exactly or rejected: the rule in Python, and Spark's expressions beside it."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
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
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from gnsq_like.spark.pipeline.values import HALF, NUMBER, Misfit, kept, loads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Numbers as JSON has them.
NUMBERS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-"]),
    st.integers(0, 10**25),
    st.just("") | st.text("0123456789", min_size=1, max_size=25).map(".{}".format),
    st.just("") | st.integers(-999, 999).map("e{}".format) | st.integers(0, 999).map("E+{}".format),
)
KINDS: list[DataType] = [
    StringType(), BooleanType(), ByteType(), IntegerType(), LongType(), FloatType(), DoubleType(), DecimalType(10, 2),
    DecimalType(38, 18), DateType(), TimestampType(), TimestampNTZType(),
]  # fmt: skip


def stored(text: str, kind: DataType, unit: str = "s") -> Any:
    """What is stored for a JSON text; Misfit itself if it does not fit."""
    try:
        return kept(loads(text), kind, unit)
    except Misfit:
        return Misfit


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        ("1.10", StringType(), "1.10"),
        ("12345678901234567890.50", StringType(), "12345678901234567890.50"),
        ("1E+2", StringType(), "1E+2"),
        ("NaN", StringType(), "NaN"),
        (r'"\ud800"', StringType(), Misfit),
        (r'"\ud83d\ude00"', StringType(), "\U0001f600"),
        ("1.239", DecimalType(10, 2), Misfit),
        ("1.230", DecimalType(10, 2), Decimal("1.23")),
        ('"1.23"', DecimalType(10, 2), Decimal("1.23")),
        ("123e-2", DecimalType(10, 2), Decimal("1.23")),
        ("100e-4", DecimalType(10, 2), Decimal("0.01")),
        ("100e-5", DecimalType(10, 2), Misfit),
        ("1e7", DecimalType(10, 2), Decimal(10**7)),
        ("1e8", DecimalType(10, 2), Misfit),
        ("0e999999999", DecimalType(10, 2), Decimal(0)),
        ("1e300", FloatType(), Misfit),
        ("1e-300", FloatType(), Misfit),
        ("1e300", DoubleType(), 1e300),
        ("1e400", DoubleType(), Misfit),
        ("1e-400", DoubleType(), Misfit),
        ("0.0e-400", DoubleType(), 0.0),
        ("-Infinity", DoubleType(), -math.inf),
        ('"1.5"', DoubleType(), Misfit),
        ("1.0", IntegerType(), Misfit),
        ("128", ByteType(), Misfit),
        ("-128", ByteType(), -128),
        ("1700000000000", TimestampType(), Misfit),
        ('"2026-01-02T03:04:05.123456789+01:00"', TimestampType(), datetime(2026, 1, 2, 2, 4, 5, 123456, UTC)),
        ('"2026-01-02"', TimestampType(), datetime(2026, 1, 2, tzinfo=UTC)),
        ('"12:30"', TimestampType(), Misfit),
        ('"2026-01-02T03:04:05Z"', TimestampNTZType(), Misfit),
        ('"2026-01-02 03:04"', TimestampNTZType(), datetime(2026, 1, 2, 3, 4)),
        ('"2026-01-02T03:04:05Z"', DateType(), Misfit),
        ('"2026-02-30"', DateType(), Misfit),
        ('"2026-2-3"', DateType(), date(2026, 2, 3)),
    ],
)
def test_a_value_is_kept_exactly_or_does_not_fit(text: str, kind: DataType, wanted: Any) -> None:
    assert stored(text, kind) == wanted


@given(NUMBERS)
def test_the_text_of_a_number_is_the_text_that_came(text: str) -> None:
    assert stored(text, StringType()) == text


@given(st.text(st.characters(codec=None, exclude_categories=[]), max_size=20))
@example("\ud800")
@example("\udc00\ud800")
def test_text_is_kept_unless_it_is_none(text: str) -> None:
    # Two halves that are next to each other are one character of JSON.
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    is_text = not any("\ud800" <= each <= "\udfff" for each in json.loads(json.dumps(text)))
    assert stored(json.dumps(text), StringType()) == (joined if is_text else Misfit)


@given(NUMBERS, st.integers(1, 38), st.data())
def test_a_decimal_has_the_number_s_value(text: str, precision: int, data: st.DataObject) -> None:
    kind = DecimalType(precision, data.draw(st.integers(0, precision)))
    # In units of the last place, it is a whole number of at most as many digits.
    units = Fraction(text) * 10**kind.scale
    fits = units.denominator == 1 and abs(units) < 10**kind.precision
    assert stored(text, kind) == (Decimal(text) if fits else Misfit)


@given(st.integers(-(2**70), 2**70))
def test_an_integer_fits_if_it_is_in_range(number: int) -> None:
    for kind, bits in ((ByteType(), 8), (IntegerType(), 32), (LongType(), 64)):
        fits = -(1 << bits - 1) <= number < 1 << bits - 1
        assert stored(str(number), kind) == (number if fits else Misfit)


@given(NUMBERS)
def test_no_number_becomes_infinite_or_zero(text: str) -> None:
    for kind in (FloatType(), DoubleType()):
        found = stored(text, kind)
        assert found is Misfit or (math.isfinite(found) and (found != 0) == (Decimal(text) != 0))


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)))
def test_times_as_numbers_have_a_unit(local: datetime) -> None:
    us = (local - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    at = local.replace(tzinfo=UTC)
    assert stored(str(us), TimestampType(), "us") == at
    assert stored(str(us // 1000), TimestampType(), "ms") == at.replace(microsecond=local.microsecond // 1000 * 1000)
    assert stored(str(us // 10**6), TimestampType(), "s") == at.replace(microsecond=0)
    ns = us * 1000 + 999
    assert stored(str(ns), TimestampType(), "ns") == (at if -(2**63) <= ns < 2**63 else Misfit)
    assert stored(f'"{at.isoformat()}"', TimestampType()) == at


# -- marks: the patterns, as Spark applies them -------------------------------------------------------


def replaced(pattern: str, text: str, by: str) -> str:
    """Replace all matches; each begins where the last one ended."""
    result, at = "", 0
    while found := re.compile(pattern).match(text, at):
        result += found.expand(by)
        at = found.end()
    return result + text[at:]


def marked(text: str) -> str:
    return replaced(NUMBER, text, r'\1"#\2"')


def read_strictly(text: str) -> Any:
    """Read JSON without numbers; ValueError if it has one, or is not JSON."""

    def refuse(text: str) -> None:
        raise ValueError(text)

    return json.loads(text, parse_float=refuse, parse_int=refuse, parse_constant=refuse)


def unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: unmarked(each) for key, each in value.items()}
    if isinstance(value, list):
        return [unmarked(each) for each in value]
    return value.removeprefix("#") if isinstance(value, str) else value


TEXT = st.text('ab1.5N-"\\\\:,{}[] \n', max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
)


@given(st.dictionaries(TEXT, VALUES, max_size=4), st.sampled_from([None, 1]))
def test_each_number_of_json_is_marked_and_nothing_else(value: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    assert unmarked(read_strictly(marked(text))) == loads(text)


@given(st.text('1.5e-+NaIfinty"\\\\:,{}[] \n', max_size=12), st.sampled_from(['{"a": %s}', "{%s}", "[%s]", '["%s]']))
@example("5: 1", "{%s}")
@example("01", "[%s]")
@example("1 2", "[%s]")
@example('1}],"x":[{', '{"a": %s}')
def test_marks_do_not_make_json_of_what_is_none(inner: str, around: str) -> None:
    text = around.replace("%s", inner)
    try:
        wanted = loads(text)
    except ValueError:
        with pytest.raises(ValueError, match=r".+"):
            read_strictly(marked(text))
    else:
        assert unmarked(read_strictly(marked(text))) == wanted


@given(st.lists(st.sampled_from(["\\\\", "\\n", "\\ud83d", "\\uDE00", "\\uDBFF", "\\udc00", "\\u00e9", "ud800", "x"])))
def test_each_lone_half_of_a_pair_is_marked_and_nothing_else(pieces: list[str]) -> None:
    text = f'"{"".join(pieces)}"'
    halves = re.sub("[\ud800-\udfff]", "#", json.loads(text))
    assert json.loads(replaced(HALF, text, r"\1#")) == halves


# -- Spark --------------------------------------------------------------------------------------------


def texts() -> list[str]:
    """JSON values of all kinds, the same ones in every run, and those on which the types' limits are."""
    found = [
        "null",
        "true",
        '"true"',
        "[1.10, 2]",
        '{"a": 1.10, "b": "\\\\ud800 1.10"}',
        '["\\ud800"]',
        '{"\\udc00": 1}',
    ]
    found += [
        "NaN",
        "-Infinity",
        "Infinity",
        '"NaN"',
        '"+INF"',
        '"\\"NaN\\""',
        "-0",
        "-0.0",
        "0e5",
        "1.0",
        "1e2",
        "1E-7",
    ]
    found += [
        '"1.5"',
        '" 1.5"',
        '"1.5 "',
        '"+1.5"',
        '".5"',
        '"5."',
        '"1e2"',
        '"1e"',
        '"0x10"',
        '"١"',
        '"1,5"',
        '"1.5d"',
    ]
    found += [
        "1.239",
        "1.230",
        "99999999.99",
        "99999999.995",
        "100000000",
        "1e7",
        "1e8",
        "123e-2",
        "1e-2",
        "1e-3",
        "100e-4",
    ]
    found += ["1e300", "1e-300", "3.4028235e38", "3.4028236e38", "1e400", "1e-400", "0.1", "12345678901234567890.50"]
    found += [str(sign * (1 << bits) + more) for bits in (7, 31, 63) for sign in (-1, 1) for more in (-1, 0, 1)]
    found += ["1700000000", "1700000000000", "1700000000123456789", "253402300799", "253402300800", "-62135596801"]
    found += [f'"2026-01-02{rest}"' for rest in (
        "", "T03:04", " 03:04:05", "T03:04:05.1", "T03:04:05.123456789", "T03:04:05.1234567890", "T03:04:05Z", "T24:00",
        "T3:4:5Z", "T03:04:05+01:30", "T03:04:05-0130", "T03:04:05 +01", "T03:04:05+18:00", "T03:04Z", "Z", "T", "x",
        "T03:04:60", "T03:04:05 Europe/Berlin", "T03:04:05z", "\\n", "T03:04:05Z\\n",
    )]  # fmt: skip
    found += [
        '"12:30"',
        '"2026"',
        '"2026-1-2"',
        '"2026-02-30"',
        '"0000-01-01"',
        '"0001-01-01T00:00+05:00"',
        '"20260102"',
    ]
    found += [
        r'"\ud800"',
        r'"\udc00"',
        r'"\ud83d\ude00"',
        r'"\\ud800"',
        r'"\\\ud800"',
        r'"\ude00\ud83d"',
        r'"\uD83D\uDE00\uD83D"',
    ]
    found += [r'"\ud83d\\ude00"', '"\U0001f600"', '"5, 6: 7"', '"a\\"1\\\\"', '"#n#1"', '""', "[]", "{}"]
    return found


def normal(value: Any) -> Any:
    """A value that can be compared with another one, also if it is NaN."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return value


def test_spark_has_the_same_rule(spark: SparkSession) -> None:
    from gnsq_like.spark.pipeline.parse import FITS, PARSED, parse

    schema = StructType(
        [
            StructField("x", StructType([StructField(f"f{at}", kind) for at, kind in enumerate(KINDS)])),
            StructField("l", ArrayType(DecimalType(10, 2))),
            StructField("m", MapType(StringType(), StringType())),
        ]
    )
    cases = [(at, text) for text in texts() for at in range(len(KINDS))]
    bodies = [f'{{"x": {{"f{at}" : {text}\n}}, "other": [1.5, "\\ud800"]}}' for at, text in cases]
    bodies += ['{"l": [1.25, null]}', '{"l": [1.255, null]}', '{"m": {"k": 1.50}}', '{"m": {"k": "x"}}']
    bodies += [r'{"m": {"k": "\ud800"}}', r'{"m": {"\ud800": 1}}']
    for unit in ("s", "ns"):
        frame = spark.createDataFrame([(at, body.encode()) for at, body in enumerate(bodies)], "at INT, body BINARY")
        rows = sorted(parse(frame, schema, unit).select("at", FITS, PARSED).collect())
        for (at, text), row in zip(cases, rows, strict=False):
            wanted = None if text == "null" else stored(text, KINDS[at], unit)
            case = (text, KINDS[at], unit, row)
            assert row.fits == (wanted is not Misfit), case
            if wanted is Misfit:
                continue
            found = row.parsed.x[f"f{at}"]
            if isinstance(KINDS[at], TimestampType) and found is not None:
                found = found.astimezone(UTC)  # it was in the machine's time zone
            if isinstance(KINDS[at], StringType) and isinstance(wanted, bool | list | dict):
                assert loads(found) == wanted, case
            else:
                assert normal(found) == normal(wanted), case
        rest = rows[len(cases) :]
        assert [row.fits for row in rest] == [True, False, True, True, False, False]
        assert (rest[0].parsed.l, rest[2].parsed.m) == ([Decimal("1.25"), None], {"k": "1.50"})


def test_spark_s_marks_do_not_make_json_of_what_is_none_and_long_bodies_are_read(spark: SparkSession) -> None:
    from gnsq_like.spark.pipeline.parse import FITS, parse

    none = ['{5: "x"}', '{"x": 01}', '{"x": 1.}', '{"x": .5}', '{"x": +1}', '{"x": 1 2}', '{"x": --1}', '{"x": 1e}']
    none += ['{"x": -NaN}', '{"x": INF}', '{"x": +Infinity}', '{"x": "1}', '{"x": tru1}', '{"x": 1-2}', '{"x": 1 :2}']
    none += ['{"x" 5}', '{"y": 1.2.3}', '{"y": 0x1}', '{1, "x": 2}', '{"x": "\\ud80"}', '{"x": \\ud800}']
    long = [
        '{"x": "%s"}' % ("\\\\" * 300_000),
        '{"y": [%s1]}' % ("1.5," * 200_000),
        '{"x": "%s"}' % ("\\u00e9\\ud83d\\ude00" * 50_000),
    ]
    schema = StructType([StructField("x", StringType())])
    frame = spark.createDataFrame([(at, body.encode()) for at, body in enumerate(none + long)], "at INT, body BINARY")
    rows = sorted(parse(frame, schema).select("at", FITS).collect())
    assert [row.fits for row in rows] == [False] * len(none) + [True] * len(long)
