"""A schema's DDL, read without Spark: a wrong one is an error before Java is started.

Spark's own parser needs a session. This one reads what a table of JSON can have, and names a field that it cannot have;
a test compares the two.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

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

from gnsq_like.errors import InvalidOption

_SIMPLE: dict[str, Callable[[], DataType]] = {
    "boolean": BooleanType,
    "tinyint": ByteType,
    "byte": ByteType,
    "smallint": ShortType,
    "short": ShortType,
    "int": IntegerType,
    "integer": IntegerType,
    "bigint": LongType,
    "long": LongType,
    "float": FloatType,
    "real": FloatType,
    "double": DoubleType,
    "string": StringType,
    "binary": BinaryType,
    "date": DateType,
    "timestamp": TimestampType,
    "timestamp_ltz": TimestampType,
    "timestamp_ntz": TimestampNTZType,
}
#: Types of Spark that fields cannot have.
_REFUSED = ("char", "character", "geography", "geometry", "interval", "time", "varchar", "variant", "void")
_EXAMPLE = 'it must be columns such as "user STRING, at TIMESTAMP"'
_MOST_DIGITS = 38
#: Deeper ones are mistakes, and this parser is recursive.
_DEEPEST = 50

_TOKEN = re.compile(
    r"""\s*(?: `(?P<quoted>(?:[^`]|``)+)` | (?P<word>\w+) | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
        | (?P<sign>[<>(),:]) | (?P<end>\Z) )""",
    re.VERBOSE,
)


def schema_of(ddl: str) -> StructType:
    """The schema of a DDL; raises InvalidOption if bodies cannot be parsed or stored with it."""
    return _Parser(ddl).schema()


class _Parser:
    """Reads one DDL from left to right."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._at = 0
        #: The kind and the text of the next token.
        self._kind, self._text = "", ""
        #: The names of the fields around the present one.
        self._path: list[str] = []
        self._next()

    def schema(self) -> StructType:
        whole = self._is_word("struct") and re.match(r"\s*struct\s*<", self._ddl, re.IGNORECASE)
        if whole:
            self._next()
        found = self._struct() if whole else self._fields(None)
        if self._kind != "end":
            raise self._wrong(f"{_EXAMPLE}; {self._here()} is not expected")
        return found

    def _wrong(self, reason: str) -> InvalidOption:
        return InvalidOption("parse.schema", self._ddl, reason)

    def _here(self) -> str:
        return f'"{self._text}"' if self._text else "its end"

    def _next(self) -> str:
        """Go on to the next token; returns the text of the present one."""
        before = self._text
        found = _TOKEN.match(self._ddl, self._at)
        if found is None:
            raise self._wrong(f'{_EXAMPLE}; "{self._ddl[self._at :].strip()[:1]}" is not expected')
        self._at = found.end()
        assert found.lastgroup is not None
        self._kind, self._text = found.lastgroup, found[found.lastgroup]
        return before

    def _is_word(self, word: str) -> bool:
        return self._kind == "word" and self._text.lower() == word

    def _is_sign(self, sign: str) -> bool:
        return self._kind == "sign" and self._text == sign

    def _expect(self, sign: str) -> None:
        if not self._is_sign(sign):
            raise self._wrong(f"{_EXAMPLE}; {sign} is missing before {self._here()}")
        self._next()

    def _fields(self, end: str | None) -> StructType:
        """Fields up to the sign that ends them, or to the end of the text."""
        fields: list[StructField] = []
        while not (self._is_sign(end) if end else False):
            fields.append(self._field())
            if not self._is_sign(","):
                break
            self._next()
        for name, times in Counter(each.name.lower() for each in fields).items():
            if times > 1:
                # Spark could write a table with both, but not read it.
                raise self._wrong(f"there are {times} fields {name}; upper and lower case are the same to Spark")
        return StructType(fields)

    def _field(self) -> StructField:
        if self._kind not in {"word", "quoted"}:
            raise self._wrong(f"{_EXAMPLE}; a name is missing before {self._here()}")
        is_quoted = self._kind == "quoted"
        name = self._next()
        self._path.append(name.replace("``", "`") if is_quoted else name)
        if self._is_sign(":"):
            self._next()
        kind = self._type()
        nullable = True
        if self._is_word("not"):
            self._next()
            if not self._is_word("null"):
                raise self._wrong(f"{_EXAMPLE}; NOT NULL is cut off before {self._here()}")
            self._next()
            nullable = False
        if self._is_word("comment"):
            self._next()
            if self._kind != "text":
                raise self._wrong(f"{_EXAMPLE}; a text is missing after COMMENT")
            self._next()
        return StructField(self._path.pop(), kind, nullable)

    def _type(self) -> DataType:
        if self._kind != "word":
            raise self._wrong(f"{_EXAMPLE}; a type is missing before {self._here()}")
        name = self._next().lower()
        if len(self._path) > _DEEPEST:
            raise self._wrong(f"it is nested more than {_DEEPEST} times")
        if name in _SIMPLE:
            return _SIMPLE[name]()
        if name in {"decimal", "dec", "numeric"}:
            return self._decimal()
        if name == "struct":
            return self._struct()
        if name in {"array", "map"}:
            return self._collection(name)
        field = ".".join(self._path).replace(".[]", "[]").replace(".{}", "{}")
        if name in _REFUSED:
            raise self._wrong(f"field {field} cannot be {name.upper()}: take another type, such as STRING")
        raise self._wrong(f"{_EXAMPLE}; there is no type {name.upper()}, of field {field}")

    def _struct(self) -> StructType:
        self._expect("<")
        found = self._fields(">")
        self._expect(">")
        if not found.fields:
            raise self._wrong(f"a STRUCT needs a field; {_EXAMPLE}")
        return found

    def _collection(self, name: str) -> DataType:
        self._path.append("[]" if name == "array" else "{}")
        self._expect("<")
        first = self._type()
        if name == "array":
            result: DataType = ArrayType(first)
        else:
            if not isinstance(first, StringType):
                raise self._wrong("the keys of a MAP must be STRING, as they are in JSON")
            self._expect(",")
            result = MapType(first, self._type())
        self._expect(">")
        self._path.pop()
        return result

    def _decimal(self) -> DecimalType:
        if not self._is_sign("("):
            return DecimalType()
        numbers: list[int] = []
        while self._is_sign("(" if not numbers else ","):
            self._next()
            if not self._text.isdecimal():
                raise self._wrong(f"a number is missing in DECIMAL, before {self._here()}")
            numbers.append(int(self._next()))
        self._expect(")")
        precision, scale, *_ = [*numbers, 0]
        if len(numbers) > 2 or not 1 <= precision <= _MOST_DIGITS or scale > precision:
            raise self._wrong(f"DECIMAL has 1 to {_MOST_DIGITS} digits, and at most as many behind the point")
        return DecimalType(precision, scale)
