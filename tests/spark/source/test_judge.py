"""Values are kept exactly or rejected: the judge beside what Python makes of the same text."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

pytest.importorskip("pyspark")

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
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from gnsq_like.spark.source.by_columns import Parser
from gnsq_like.spark.source.judge import Judge, Misfit


class Rejected:
    """Stands for a value that is rejected."""


def stored(cases: Sequence[tuple[str, DataType]], unit: str = "s") -> list[Any]:
    """What is stored for JSON texts as values of these types; Rejected if they do not fit."""
    found: list[Any] = []
    for text, kind in cases:
        schema = StructType([StructField("x", StructType([StructField("f", kind)]))])
        body = f'{{"x": {{"f" : {text}\n}}, "other": [1.5, true, "\\ud800"]}}'.encode()
        [value], [reason] = (each.to_pylist() for each in Parser(schema, unit).parse(pa.array([body])))
        try:
            fields = Judge(schema, unit).fields(body)
        except Misfit as exc:
            assert str(exc) == reason == f"field x.f is not {said(kind)}"
            found.append(Rejected)
        else:
            assert reason is None
            assert repr(pa.array([fields], Parser(schema).made).to_pylist()) == repr([value])
            found.append(value["x"]["f"])
    return found


def said(kind: DataType) -> str:
    return "Unicode" if isinstance(kind, StringType) else f"a valid {kind.simpleString().upper()}"


EXACT: list[tuple[str, DataType, Any]] = [
    ("1.10", StringType(), "1.10"),
    ("12345678901234567890.50", StringType(), "12345678901234567890.50"),
    ("1E+2", StringType(), "1E+2"),
    ("NaN", StringType(), "NaN"),
    (r'"\ud800"', StringType(), Rejected),
    (r'"\ud83d\ude00"', StringType(), "\U0001f600"),
    ("1.239", DecimalType(10, 2), Rejected),
    ("1.230", DecimalType(10, 2), Decimal("1.23")),
    ('"1.23"', DecimalType(10, 2), Decimal("1.23")),
    ("123e-2", DecimalType(10, 2), Decimal("1.23")),
    ("100e-4", DecimalType(10, 2), Decimal("0.01")),
    ("100e-5", DecimalType(10, 2), Rejected),
    ("1e7", DecimalType(10, 2), Decimal(10**7)),
    ("1e8", DecimalType(10, 2), Rejected),
    ("0e999999999", DecimalType(10, 2), Decimal(0)),
    ("1e300", FloatType(), Rejected),
    ("1e-300", FloatType(), Rejected),
    ("1e300", DoubleType(), 1e300),
    ("1e400", DoubleType(), Rejected),
    ("1e-400", DoubleType(), Rejected),
    ("0.0e-400", DoubleType(), 0.0),
    ("-Infinity", DoubleType(), -math.inf),
    ('"1.5"', DoubleType(), Rejected),
    ("true", StringType(), "true"),
    ('{"a": 1.10, "b": [true, "\\\\ud800"]}', StringType(), '{"a":1.10,"b":[true,"\\\\ud800"]}'),
    ('["\\ud800"]', StringType(), Rejected),
    ("true", BooleanType(), True),
    ('"true"', BooleanType(), Rejected),
    ("1", BooleanType(), Rejected),
    ("true", IntegerType(), Rejected),
    ("true", DoubleType(), Rejected),
    ("1", ByteType(), 1),
    ("null", IntegerType(), None),
    ('"1"', IntegerType(), Rejected),
    ("1.0", IntegerType(), Rejected),
    ("128", ByteType(), Rejected),
    ("-128", ByteType(), -128),
    ("1700000000000", TimestampType(), Rejected),
    ('"2026-01-02T03:04:05.123456789+01:00"', TimestampType(), datetime(2026, 1, 2, 2, 4, 5, 123456, UTC)),
    ('"2026-01-02"', TimestampType(), datetime(2026, 1, 2, tzinfo=UTC)),
    ('"12:30"', TimestampType(), Rejected),
    ('"2026-01-02T03:04:05Z"', TimestampNTZType(), Rejected),
    ('"2026-01-02 03:04"', TimestampNTZType(), datetime(2026, 1, 2, 3, 4)),
    ('"2026-01-02T03:04:05Z"', DateType(), Rejected),
    ('"2026-02-30"', DateType(), Rejected),
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
        (f'"2026-01-02{rest}"', TimestampType(), Rejected)
        for rest in ("T24:00", "T3:04", "T03:04:60", "T03:04+18:00", "Z", "T", "x", "T03:04z", "T03:04Z\\n", "T03:4")
    ],
    *[
        (text, DateType(), Rejected)
        for text in ('"2026-1-2"', '"2026-01-2"', '"0000-01-01"', '"20260102"', '"2026"', "5")
    ],
    ('"2026-01-02"', DateType(), date(2026, 1, 2)),
    ('"0001-01-01T00:00+05:00"', TimestampType(), Rejected),
    ('"AQI="', BinaryType(), b"\x01\x02"),
    ('""', BinaryType(), b""),
    *[(text, BinaryType(), Rejected) for text in ('"AQI"', '"A QI="', '"AQI==="', '"-_-_"', "5", "[]")],
    ("[1.25, null]", ArrayType(DecimalType(10, 2)), [Decimal("1.25"), None]),
    ('{"k": 1.50}', MapType(StringType(), StringType()), [("k", "1.50")]),
    ('{"k": 1, "j": 5, "k": 2}', MapType(StringType(), IntegerType()), [("k", 2), ("j", 5)]),
]


@pytest.mark.parametrize(("text", "kind", "wanted"), EXACT)
def test_a_value_is_kept_exactly_or_does_not_fit(text: str, kind: DataType, wanted: Any) -> None:
    [value] = stored([(text, kind)])
    assert repr(value) == repr(wanted) or value == wanted


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


def test_numbers_are_what_python_makes_of_them() -> None:
    whole: dict[DataType, int] = {ByteType(): 8, IntegerType(): 32, LongType(): 64}
    decimals = [DecimalType(10, 2), DecimalType(38, 18), DecimalType(5, 5)]
    kinds: list[DataType] = [StringType(), FloatType(), DoubleType(), *whole, *decimals]
    cases = [(text, kind) for text in numbers() for kind in kinds]
    for (text, kind), value in zip(cases, stored(cases), strict=True):
        case = (text, kind, value)
        if isinstance(kind, StringType):
            assert value == text
        elif isinstance(kind, FloatType | DoubleType):
            if value is not Rejected:
                assert math.isfinite(value) and (value != 0) == (Decimal(text) != 0), case
            if isinstance(kind, DoubleType):
                wanted = float(text)
                fits = math.isfinite(wanted) and (wanted != 0) == (Decimal(text) != 0)
                assert value == (wanted if fits else Rejected), case
        elif isinstance(kind, DecimalType):
            # In units of the last place, it is a whole number of at most as many digits.
            units = Fraction(text) * 10**kind.scale
            fits = units.denominator == 1 and abs(units) < 10**kind.precision
            assert value == (Decimal(text) if fits else Rejected), case
        else:
            fits = (
                re.fullmatch("-?[0-9]+", text) is not None
                and -(1 << whole[kind] - 1) <= int(text) < 1 << whole[kind] - 1
            )
            assert value == (int(text) if fits else Rejected), case


def test_times_as_numbers_have_a_unit() -> None:
    rng = random.Random(6)
    first, last = (
        round((each - datetime(1970, 1, 1)).total_seconds()) for each in (datetime(1, 1, 2), datetime(9999, 12, 30))
    )
    times = [rng.randrange(first * 10**6, last * 10**6) for _ in range(100)] + [1_700_000_000_123_456]
    for unit, factor in (("s", 10**6), ("ms", 1000), ("us", 1)):
        cases = [(str(us // factor), TimestampType()) for us in times]
        wanted = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us // factor * factor) for us in times]
        assert stored(cases, unit) == wanted
    cases = [(str(us * 1000 + 999), TimestampType()) for us in times]
    wanted = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us) for us in times]
    fits = [-(2**63) <= us * 1000 + 999 < 2**63 for us in times]
    assert any(fits)
    assert stored(cases, "ns") == [each if fit else Rejected for each, fit in zip(wanted, fits, strict=True)]


NOT_JSON = ['{5: "x"}', '{"x": 01}', '{"x": 1.}', '{"x": .5}', '{"x": +1}', '{"x": 1 2}', '{"x": --1}', '{"x": 1e}']
NOT_JSON += ['{"x": -NaN}', '{"x": INF}', '{"x": +Infinity}', '{"x": "1}', '{"x": tru1}', '{"x": 1-2}', '{"x": 1 :2}']
NOT_JSON += ['{"x" 5}', '{"y": 1.2.3}', '{"y": 0x1}', '{1, "x": 2}', '{"x": "\\ud80"}', '{"x": \\ud800}']
NOT_JSON += ["{} x", "{}{}", "{},{}", "{}]", '{"x": 1}]}, {"x": [', "\ufeff{}", "{'x': 1}", '{"x": "\n"}', "", " "]


@pytest.mark.parametrize("body", NOT_JSON)
def test_all_of_a_body_is_one_object(body: str) -> None:
    schema = StructType([StructField("x", StringType())])
    column, [reason] = Parser(schema).parse(pa.array([body.encode()]))
    assert reason.as_py().startswith("it is not JSON: ")
    assert column.null_count == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff", "it is not UTF-8"),
        (b'{"y": "\xff"}', "it is not UTF-8"),
        (b"[1]", "it is JSON, but not an object"),
        (b"5", "it is JSON, but not an object"),
        (b"{}", "field a is missing"),
        (b'{"a": null}', "field a is null"),
        (b'{"a": {"b": [1, {"c": 2}]}}', "field a.b[] is not an object"),
        (b'{"a": {"b": {"c": 2}}}', "field a.b is not an array"),
        (b'{"a": {"b": [null, {"c": 2}, {}]}}', "field a.b[].c is missing"),
        (b'{"a": {"m": [1]}}', "field a.m is not an object"),
        (b'{"a": {"m": {"k": "x"}}}', "field a.m{} is not a valid INT"),
        (b'{"a": {"m": {"\\ud800": 1}}}', "field a.m has a key that is not Unicode"),
        (b'{"a": {"m": {"k": "x"}, "b": 5}}', "field a.b is not an array"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "it is nested too deeply"),
        (b'{"a": {"b": [{"c": 5}]}, "z": {"deep": [[]]}}', None),
        (b'{"a": 5, "a": {"b": null}}', None),
        (b' \t{"a": {}} \n', None),
    ],
)
def test_the_structure_is_judged_before_the_values_and_the_reason_names_the_field(
    body: bytes, reason: str | None
) -> None:
    inner = ArrayType(StructType([StructField("c", IntegerType(), False)]))
    parts = StructType([StructField("b", inner), StructField("m", MapType(StringType(), IntegerType()))])
    _, [found] = Parser(StructType([StructField("a", parts, False)])).parse(pa.array([body]))
    assert found.as_py() == reason


def test_long_bodies_are_read() -> None:
    bodies = [
        '{"x": "%s"}' % ("\\\\" * 300_000),
        '{"y": [%s1]}' % ("1.5," * 200_000),
        '{"x": "%s"}' % ("\\u00e9\\ud83d\\ude00" * 50_000),
        '{"y": 1%s}' % ("0" * 100_000),
    ]
    column, reasons = Parser(StructType([StructField("x", StringType())])).parse(
        pa.array([each.encode() for each in bodies])
    )
    assert reasons.null_count == len(bodies)
    assert [each["x"] and len(each["x"]) for each in column.to_pylist()] == [300_000, None, 100_000, None]
