"""Values are kept exactly or rejected: Spark's expressions beside what Python makes of the same text."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Sequence
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
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from gnsq_like.spark.pipeline.parse import PARSED, WHY, parse
from gnsq_like.spark.pipeline.paths import settle
from gnsq_like.spark.pipeline.values import BARE, HALF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Misfit:
    """Stands for a value that is rejected."""


def stored(spark: SparkSession, cases: Sequence[tuple[str, DataType]], unit: str = "s") -> list[Any]:
    """What is stored for JSON texts as values of these types; Misfit if they do not fit."""
    kinds = list(dict.fromkeys(kind for _, kind in cases))
    fields = [StructField(f"f{at}", kind) for at, kind in enumerate(kinds)]
    schema = StructType([StructField("x", StructType(fields))])
    bodies = [
        (at, f'{{"x": {{"f{kinds.index(kind)}" : {text}\n}}, "other": [1.5, true, "\\ud800"]}}'.encode())
        for at, (text, kind) in enumerate(cases)
    ]
    copy = spark.newSession()
    settle(copy)
    frame = parse(copy.createDataFrame(bodies, "at INT, body BINARY"), schema, unit)
    found: list[Any] = []
    for row, (_, kind) in zip(sorted(frame.select("at", WHY, PARSED).collect()), cases, strict=True):
        value = row.parsed.x[f"f{kinds.index(kind)}"] if row.why is None else Misfit
        found.append(
            value.astimezone(UTC) if isinstance(kind, TimestampType) and isinstance(value, datetime) else value
        )
        assert row.why in (None, f"field x.f{kinds.index(kind)} is not {said(kind)}"), row
    return found


def said(kind: DataType) -> str:
    return "Unicode" if isinstance(kind, StringType) else f"a valid {kind.simpleString().upper()}"


EXACT: list[tuple[str, DataType, Any]] = [
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
    ("true", StringType(), "true"),
    ('{"a": 1.10, "b": [true, "\\\\ud800"]}', StringType(), '{"a":1.10,"b":[true,"\\\\ud800"]}'),
    ('["\\ud800"]', StringType(), Misfit),
    ("true", BooleanType(), True),
    ('"true"', BooleanType(), Misfit),
    ("1", BooleanType(), Misfit),
    ("true", IntegerType(), Misfit),
    ("true", DoubleType(), Misfit),
    ("1", ByteType(), 1),
    ("null", IntegerType(), None),
    ('"1"', IntegerType(), Misfit),
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
    *[
        (f'"2026-01-02{rest}"', TimestampNTZType(), datetime(2026, 1, 2, 3, 4) + timedelta(microseconds=us))
        for rest, us in ((" 03:04", 0), ("T03:04:05.1", 5_100_000), ("T03:04:05.123456789", 5_123_456))
    ],
    *[
        (
            f'"2026-01-02T03:04{rest}"',
            TimestampType(),
            datetime(2026, 1, 2, 3, 4, tzinfo=UTC) - timedelta(minutes=ahead),
        )
        for rest, ahead in (("Z", 0), (":00+01:30", 90), ("-0130", -90), (" +01", 60))
    ],
    *[
        (f'"2026-01-02{rest}"', TimestampType(), Misfit)
        for rest in ("T24:00", "T3:04", "T03:04:60", "T03:04+18:00", "Z", "T", "x", "T03:04z", "T03:04Z\\n", "T03:4")
    ],
    *[
        (text, DateType(), Misfit)
        for text in ('"2026-1-2"', '"2026-01-2"', '"0000-01-01"', '"20260102"', '"2026"', "5")
    ],
    ('"2026-01-02"', DateType(), date(2026, 1, 2)),
    ('"0001-01-01T00:00+05:00"', TimestampType(), Misfit),
    ('"AQI="', BinaryType(), b"\x01\x02"),
    ('""', BinaryType(), b""),
    *[(text, BinaryType(), Misfit) for text in ('"AQI"', '"A QI="', '"AQI==="', '"-_-_"', "5", "[]")],
    ("[1.25, null]", ArrayType(DecimalType(10, 2)), [Decimal("1.25"), None]),
    ('{"k": 1.50}', MapType(StringType(), StringType()), {"k": "1.50"}),
    ('{"k": 1, "j": 5, "k": 2}', MapType(StringType(), IntegerType()), {"k": 2, "j": 5}),
]


def normal(value: Any) -> Any:
    """A value that can be compared with another one, also if it is NaN."""
    return repr(value) if isinstance(value, float) else bytes(value) if isinstance(value, bytearray) else value


def test_a_value_is_kept_exactly_or_does_not_fit(spark: SparkSession) -> None:
    found = stored(spark, [(text, kind) for text, kind, _ in EXACT])
    for (text, kind, wanted), value in zip(EXACT, found, strict=True):
        assert normal(value) == normal(wanted), (text, kind)


def numbers() -> list[str]:
    """Numbers as JSON has them, the same ones in every run, and those at the types' limits."""
    rng = random.Random(5)

    def digits(most: int) -> str:
        return "".join(rng.choices("0123456789", k=rng.randint(1, most)))

    found = [
        rng.choice(["", "-"])
        + rng.choice(["0", str(rng.randrange(1, 10 ** rng.randint(1, 25)))])
        + rng.choice(["", f".{digits(25)}"])
        + rng.choice(["", "", f"e{rng.randint(-40, 40)}", f"E+{rng.randint(0, 999)}", f"e{rng.randint(-999, 999)}"])
        for _ in range(600)
    ]
    return found + [str(sign * (1 << bits) + more) for bits in (7, 31, 63) for sign in (-1, 1) for more in (-1, 0, 1)]


def test_numbers_are_what_python_makes_of_them(spark: SparkSession) -> None:
    whole: dict[DataType, int] = {ByteType(): 8, IntegerType(): 32, LongType(): 64}
    decimals = [DecimalType(10, 2), DecimalType(38, 18), DecimalType(5, 5)]
    kinds: list[DataType] = [StringType(), FloatType(), DoubleType(), *whole, *decimals]
    cases = [(text, kind) for text in numbers() for kind in kinds]
    for (text, kind), value in zip(cases, stored(spark, cases), strict=True):
        case = (text, kind, value)
        if isinstance(kind, StringType):
            assert value == text
        elif isinstance(kind, FloatType | DoubleType):
            if value is not Misfit:
                assert math.isfinite(value) and (value != 0) == (Decimal(text) != 0), case
            if isinstance(kind, DoubleType):
                wanted = float(text)
                fits = math.isfinite(wanted) and (wanted != 0) == (Decimal(text) != 0)
                assert value == (wanted if fits else Misfit), case
        elif isinstance(kind, DecimalType):
            # In units of the last place, it is a whole number of at most as many digits.
            units = Fraction(text) * 10**kind.scale
            fits = units.denominator == 1 and abs(units) < 10**kind.precision
            assert value == (Decimal(text) if fits else Misfit), case
        else:
            fits = (
                re.fullmatch("-?[0-9]+", text) is not None
                and -(1 << whole[kind] - 1) <= int(text) < 1 << whole[kind] - 1
            )
            assert value == (int(text) if fits else Misfit), case


def test_times_as_numbers_have_a_unit(spark: SparkSession) -> None:
    rng = random.Random(6)
    first, last = (
        round((each - datetime(1970, 1, 1)).total_seconds()) for each in (datetime(1, 1, 2), datetime(9999, 12, 30))
    )
    times = [rng.randrange(first * 10**6, last * 10**6) for _ in range(100)] + [1_700_000_000_123_456]
    for unit, factor in (("s", 10**6), ("ms", 1000), ("us", 1)):
        cases = [(str(us // factor), TimestampType()) for us in times]
        wanted = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us // factor * factor) for us in times]
        assert stored(spark, cases, unit) == wanted
    cases = [(str(us * 1000 + 999), TimestampType()) for us in times]
    wanted = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us) for us in times]
    fits = [-(2**63) <= us * 1000 + 999 < 2**63 for us in times]
    assert any(fits)
    assert stored(spark, cases, "ns") == [each if fit else Misfit for each, fit in zip(wanted, fits, strict=True)]


# -- marks: the patterns, as Spark applies them -------------------------------------------------------


def replaced(pattern: str, text: str, by: str) -> str:
    """Replace all matches; each begins where the last one ended."""
    result, at = "", 0
    while found := re.compile(pattern).match(text, at):
        result += found.expand(by)
        at = found.end()
    return result + text[at:]


def marked(text: str) -> str:
    return replaced(BARE, text, r'\1"#\2"')


def loads(text: str) -> Any:
    """Read JSON with its numbers, true and false as the texts that came."""
    value = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    return lowered(value)


def lowered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: lowered(each) for key, each in value.items()}
    if isinstance(value, list):
        return [lowered(each) for each in value]
    return str(value).lower() if isinstance(value, bool) else value


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


def test_spark_s_marks_do_not_make_json_of_what_is_none_and_long_bodies_are_read(spark: SparkSession) -> None:
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
    rows = sorted(parse(frame, schema).select("at", WHY).collect())
    assert [row.why is None for row in rows] == [False] * len(none) + [True] * len(long)
