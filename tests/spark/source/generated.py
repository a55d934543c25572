"""Bodies made at random, to compare the quick way with the judge; by hand, any number of them::

python -m tests.spark.source.generated 1000000
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from gnsq_like.spark.source.by_columns import Parser
from gnsq_like.spark.source.judge import UNITS, Judge, Misfit


def struct(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


SCHEMA = StructType(
    [
        *struct(
            i=IntegerType(),
            l=LongType(),
            y=ByteType(),
            sh=ShortType(),
            d38=DecimalType(38, 0),
            dec=DecimalType(12, 3),
            d5=DecimalType(5, 5),
            dd=DecimalType(38, 18),
            f=DoubleType(),
            g=FloatType(),
            s=StringType(),
            b=BooleanType(),
            t=TimestampType(),
            ntz=TimestampNTZType(),
            dt=DateType(),
            bin=BinaryType(),
            st=struct(x=IntegerType(), y=struct(z=StringType(), w=ArrayType(DecimalType(10, 2)))),
            a=ArrayType(StructType([StructField("k", IntegerType(), False), StructField("t", TimestampType())])),
            aa=ArrayType(ArrayType(DoubleType())),
            ab=ArrayType(BooleanType()),
            m=MapType(StringType(), DoubleType()),
            ms=MapType(StringType(), struct(k=DateType())),
        ).fields,
        StructField("req", StringType(), False),
    ]
)
NAMES = [*SCHEMA.names, "x", "y", "z", "w", "k", "extra"]
#: What damages a body: what JSON is made of, and what is not UTF-8.
DAMAGE = b'{}[]",:0123eE.-+ntfNI\\u\xff\xc3 \n\x00'
TEXTS = ['""', '"a"', r'"\ud800"', r'"\ud83d\ude00"', '"é"', '"NaN"', '"AQI="', '"AQI"', '"AQIDBA=="', '"1.50"', '" 1"']
TEXTS += ['"1_0"', '"+1"', r'"\u0000x"', r'"x\"y"', '"null"', '"true"', '"0x1f"', '"1e2"', '"٣"', '"2026-01-02"']


class Bodies:
    """Makes bodies; the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = random.Random(seed)
        pick = rng.choice
        #: What makes a value for a field that probably fits.
        self._fitting: dict[str, Callable[[], str]] = {
            "i": lambda: pick([self._whole(), str(rng.randrange(-(2**31), 2**31))]),
            "l": lambda: str(rng.randrange(-(2**63), 2**63)),
            "y": lambda: str(rng.randint(-129, 128)),
            "sh": lambda: str(rng.randint(-32769, 32768)),
            "d38": lambda: pick([str(rng.randrange(10 ** rng.randint(1, 39))), self._number()]),
            "dec": lambda: self._quoted_or_not(f"{rng.randint(-(10**9), 10**9)}.{rng.randint(0, 9999)}"),
            "d5": lambda: f"0.{rng.randint(0, 99999)}",
            "dd": lambda: pick([f"{rng.randint(-(10**20), 10**20)}.{rng.randint(0, 10**18)}", self._number()]),
            "f": self._number,
            "g": self._number,
            "s": self._text,
            "b": lambda: pick(["true", "false"]),
            "t": lambda: pick(
                [f'"{self._good_time()}{pick(["", "Z", "+01:30"])}"', f'"{self._time()}"', self._whole()]
            ),
            "ntz": lambda: pick([f'"{self._good_time()}"', f'"{self._time()}"']),
            "dt": lambda: pick([f'"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 29):02d}"', f'"{self._day()}"']),
            "bin": lambda: pick(['"AQI="', '""', self._text()]),
            "req": self._text,
            "st": lambda: (
                f'{{"x": {rng.randint(-9, 9)}, "y": {{"z": {self._text()}, '
                f'"w": [{rng.randint(0, 10**9)}.{rng.randint(0, 99)}, null]}}}}'
            ),
            "a": lambda: f'[{{"k":{rng.randint(0, 9)},"t":"{self._good_time()}"}},null]',
            "aa": lambda: f"[[{self._number()},null],null,[]]",
            "ab": lambda: "[true,null,false]",
            "m": lambda: f"{{{self._text()}: {self._number()}, {self._text()}: null}}",
            "ms": lambda: f'{{{self._text()}: {{"k":"{self._day()}"}}, "q":null}}',
        }

    def one(self) -> bytes:
        """A body; one of ten is damaged."""
        rng = self._rng
        body = bytearray(self._object(0, is_whole=True).encode())
        if rng.random() < 0.1:
            for _ in range(rng.randint(1, 2)):
                at, kind = rng.randrange(len(body)), rng.random()
                if kind < 0.4:
                    body[at] = rng.choice(DAMAGE)
                elif kind < 0.7:
                    del body[at]
                else:
                    body.insert(at, rng.choice(DAMAGE))
        return bytes(body) + rng.choice([b"", b"", b"", b"\n", b" ", b"x"] if rng.random() < 0.1 else [b""])

    def _number(self) -> str:
        rng = self._rng
        whole = rng.choice(["0", str(rng.randrange(1, 10 ** rng.choice([1, 3, 9, 40])))])
        behind = "." + "".join(rng.choices("0123456789", k=rng.choice([1, 2, 6, 25])))
        exponent = rng.choice(["", "", "", "", f"e{rng.randint(-330, 330)}", "E+2", "e-3"])
        return rng.choice(["", "-"]) + whole + rng.choice(["", behind]) + exponent

    def _whole(self) -> str:
        limits = [0, 1, -1, 127, 128, 2**31 - 1, 2**31, -(2**63), 2**63 - 1, 2**63]
        return str(self._rng.choice([*limits, self._rng.randrange(10**12), "-0"]))

    def _quoted_or_not(self, text: str) -> str:
        return self._rng.choice([text, f'"{text}"'])

    def _day(self) -> str:
        rng = self._rng
        year = rng.choice([1, 1583, 1969, 2026, 9999, 0, rng.randrange(10000)])
        return f"{year:04d}-{rng.randint(0, 13):02d}-{rng.randint(0, 32):02d}"

    def _good_time(self) -> str:
        rng = self._rng
        fraction = rng.choice(["", f".{rng.randrange(10**6):06d}", ".123456789", ".5"])
        day = f"{rng.randint(1, 9999):04d}-{rng.randint(1, 12):02d}-28"
        return f"{day}T{rng.randint(0, 23):02d}:59:{rng.randint(0, 59):02d}{fraction}"

    def _time(self) -> str:
        rng = self._rng
        clock = f"{rng.randint(0, 24):02d}:{rng.randint(0, 60):02d}" + rng.choice([f":{rng.randint(0, 60):02d}", ""])
        fraction = rng.choice(["", ".5", ".123456789", ".123456", "."])
        zone = rng.choice(["", "Z", "+01:00", "-0130", "+17:59", "+18:00", " +01", "z", "+01:60", " Z"])
        return self._day() + rng.choice(["T", " ", "", "t"]) + clock + fraction + zone

    def _text(self) -> str:
        return self._rng.choice(TEXTS)

    def _value(self, depth: int) -> str:
        """Any JSON at all."""
        rng = self._rng
        makers: list[Callable[[], str]] = [
            lambda: "null",
            self._number,
            self._whole,
            lambda: f'"{self._time()}"',
            lambda: f'"{self._day()}"',
            self._text,
            lambda: rng.choice(["true", "false"]),
            lambda: rng.choice(["NaN", "Infinity", "-Infinity"]),
            lambda: "[" + ",".join(self._value(depth + 1) for _ in range(rng.randint(0, 3))) + "]",
            lambda: self._object(depth + 1),
        ]
        return rng.choice(makers if depth < 4 else makers[:-2])()

    def _object(self, depth: int, *, is_whole: bool = False) -> str:
        """An object with some of the fields.

        :param is_whole: whether most values are to fit
        """
        rng = self._rng
        names = rng.sample(NAMES, rng.randint(0, 3)) + ["req"] * (is_whole and rng.random() < 0.95)
        if rng.random() < 0.05:
            names += names
        space = rng.choice(["", " ", "\n"])
        parts = []
        for name in names:
            fits = is_whole and name in self._fitting and rng.random() < 0.9
            parts.append(f'"{name}"{space}:{space}{self._fitting[name]() if fits else self._value(depth)}')
        return "{" + f",{space}".join(parts) + "}"


class Comparison:
    """Bodies through both ways."""

    def __init__(self, seed: int) -> None:
        self._bodies = Bodies(seed)
        self._rng = random.Random(seed)
        self.bodies = self.fitting = 0
        #: Bodies of which the two ways say different things, with both.
        self.different: list[tuple[bytes, Any, Any]] = []
        #: How often each field had a value in a body that fits.
        self.values: Counter[str] = Counter()

    def run(self, count: int) -> None:
        parsers = {unit: (Parser(SCHEMA, unit), Judge(SCHEMA, unit)) for unit in UNITS}
        for number in range(0, 1 << 62):
            if self.bodies >= count:
                return
            quick, judge = parsers[list(UNITS)[number % len(UNITS)]]
            self._compare(quick, judge, [self._bodies.one() for _ in range(self._rng.choice([1, 7, 400]))])

    def _compare(self, quick: Parser, judge: Judge, bodies: list[bytes]) -> None:
        column, reasons = quick.parse(pa.array(bodies, pa.binary()))
        column.validate(full=True)
        for body, value, reason in zip(bodies, column.to_pylist(), reasons.to_pylist(), strict=True):
            wanted: Any = None
            why = None
            try:
                [wanted] = pa.array([judge.fields(body)], quick.made).to_pylist()
            except Misfit as exc:
                why = str(exc)
            self.bodies += 1
            if why is None:
                self.fitting += 1
                self.values.update(name for name, each in wanted.items() if each is not None)
            if repr((value, reason)) != repr((wanted, why)):
                self.different.append((body, (value, reason), (wanted, why)))


if __name__ == "__main__":
    comparison = Comparison(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    comparison.run(int(sys.argv[1]))
    for each in comparison.different[:20]:
        print(*each, sep="\n    ")
    print(f"{comparison.bodies} bodies, {comparison.fitting} fit, {len(comparison.different)} differ")
    print(dict(comparison.values))
