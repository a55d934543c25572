"""Sums by window of time: counts, sums, minima and maxima of a table's rows, in a small table of their own.

Which messages a batch has is arbitrary (``transform``), so its sums alone mean nothing. But counts, sums, minima and
maxima of two batches can be combined into those of both. So each batch adds *partial sums*: one row for each window and
each combination of keys that the batch has. A view adds them up, and ``maintain`` folds those of hours that are over
(``tables.folding``). A late message changes no row: it adds a partial sum to an old window.

Times, keys and values are computed from each row alone, which is checked as for a transformation; only the functions of
``_ADDED`` are applied to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gnsq_like.errors import InvalidOption, UsageError, did_you_mean
from gnsq_like.spark.options import duration
from gnsq_like.spark.pipeline.transform import VIEW, Transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: The keys of [windows.NAME], and the columns that every table of windows has beside its own.
KEYS = ("length", "time", "by", "columns", "where", "place")
START, END, SEEN = "window_start", "window_end", "seen_at"
#: What combines two partial results, by the function.
_ADDED = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}

_NAME = re.compile(r"[a-z_][a-z0-9_]*")
#: "date" and "hour" are directories of a table.
_TAKEN = {START, END, SEEN, "date", "hour", "batch"}
_TIME = "gnsq_like_time"
_LONGEST_NAME = 64


@dataclass(frozen=True)
class WindowTable:
    """A table [windows.NAME], read.

    :raises InvalidOption: from :meth:`read`
    """

    #: The option, as errors name it.
    option: str
    #: Seconds.
    length: float
    #: Expressions of Spark: of the time, of the keys and of what is added up, by their columns.
    time: str
    keys: Mapping[str, str]
    #: The function and the expression by column; "*" for each row.
    sums: Mapping[str, tuple[str, str]]
    where: str = ""

    @classmethod
    def read(cls, given: Mapping[str, Any], option: str) -> WindowTable:
        """Read a table of the configuration."""
        for key, value in given.items():
            if key not in KEYS:
                hint = did_you_mean(key, KEYS) or f"; there are {', '.join(KEYS)}"
                raise InvalidOption(f"{option}.{key}", value, f"there is no such key{hint}")
        table = cls(
            option,
            _length(given.get("length"), f"{option}.length"),
            _text(given.get("time", "nsq.timestamp"), f"{option}.time"),
            _keys(given.get("by", []), f"{option}.by"),
            _sums(given.get("columns"), f"{option}.columns"),
            _text(given["where"], f"{option}.where") if "where" in given else "",
        )
        if "place" in given:
            _text(given["place"], f"{option}.place")
        names = [*table.keys, *table.sums]
        for name in names:
            if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
                reason = "it must have lower-case letters, digits and _, and begin with a letter"
                raise InvalidOption(f"{option}: the column", name, reason)
            if name in _TAKEN or names.count(name) > 1:
                raise InvalidOption(f"{option}: the column", name, "there is another column of this name")
        return table

    @property
    def added(self) -> dict[str, str]:
        """By column: what combines two partial results, "sum", "min" or "max"."""
        return {name: _ADDED[function] for name, (function, _) in self.sums.items()}

    @property
    def definition(self) -> dict[str, Any]:
        """What must stay the same while the table exists, as JSON has it."""
        return {
            "length": self.length,
            "time": self.time,
            "where": self.where,
            "by": dict(self.keys),
            "columns": {name: f"{function}({expression})" for name, (function, expression) in self.sums.items()},
        }


def check_windows(given: Mapping[str, Any], option: str = "windows") -> None:
    """Raise InvalidOption unless these are tables of windows by their names. Does not need Spark."""
    if not isinstance(given, Mapping):
        raise InvalidOption(option, given, f"it must be a table: [{option}.NAME]")
    for name, each in given.items():
        if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
            reason = "the name must have lower-case letters, digits and _, and begin with a letter"
            raise InvalidOption(f"{option}.{name}", name, reason)
        if not isinstance(each, Mapping):
            raise InvalidOption(f"{option}.{name}", each, f"it must be a table: [{option}.{name}]")
        WindowTable.read(each, f"{option}.{name}")


def without_places(windows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The same windows beside another table ``data``."""
    return {name: {key: each for key, each in given.items() if key != "place"} for name, given in windows.items()}


def places_by_topic(
    windows: Mapping[str, Mapping[str, Any]], own: Collection[str], data: str, place_of: Callable[[str], str]
) -> dict[str, dict[str, Any]]:
    """The windows of one of several topics, each with its place.

    :param own: the names of those that the topic alone has, whose places are as they are given
    :param data: the place of the table, or tables, of all topics
    :param place_of: the place of the topic below that of all
    """

    def place(name: str, given: Mapping[str, Any]) -> str:
        found = str(given.get("place", ""))
        return found if found and name in own else place_of(found or f"{data}-windows/{name}")

    return {name: {**given, "place": place(name, given)} for name, given in windows.items()}


def _text(value: Any, option: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidOption(option, value, "it must be text")
    return value.strip()


def _length(value: Any, option: str) -> float:
    try:
        seconds = duration(value) if isinstance(value, str) else None
    except UsageError as exc:
        raise InvalidOption(option, value, str(exc)) from None
    if seconds is None or seconds < 1 or seconds != int(seconds):
        raise InvalidOption(option, value, 'it must be given, as whole seconds: "5m"')
    return seconds


def _keys(value: Any, option: str) -> dict[str, str]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidOption(option, value, 'it must be a list of expressions: ["page", "lower(country) AS country"]')
    found: dict[str, str] = {}
    for each in value:
        text = _text(each, option)
        named = re.fullmatch(r"(?is)(.+?)\s+AS\s+(\w+)", text)
        plain = re.fullmatch(r"(?:\w+\.)*(\w+)", text)
        if named is None and plain is None:
            raise InvalidOption(option, each, "give it a name: … AS name")
        expression, name = (named[1], named[2]) if named else (text, plain[1] if plain else "")
        if name in found:
            raise InvalidOption(option, each, f"there are two columns {name}: give them different names by AS")
        found[name] = expression
    return found


def _sums(value: Any, option: str) -> dict[str, tuple[str, str]]:
    if not isinstance(value, Mapping) or not value:
        raise InvalidOption(option, value, 'it must be a table of what is added up: { clicks = "count(*)" }')
    found: dict[str, tuple[str, str]] = {}
    for name, each in value.items():
        call = re.fullmatch(r"(?is)(\w+)\s*\((.+)\)", _text(each, f"{option}.{name}"))
        function = call[1].lower() if call else ""
        if call is None or function not in _ADDED:
            reason = f"it must be one of {', '.join(_ADDED)} of an expression"
            if function in {"avg", "mean"}:
                reason = "averages cannot be added: use sum and count, and divide them in the view"
            raise InvalidOption(f"{option}.{name}", each, reason)
        expression = call[2].strip()
        if expression.lower().startswith("distinct"):
            raise InvalidOption(f"{option}.{name}", each, "counts of different values cannot be added")
        if expression == "*" and function != "count":
            raise InvalidOption(f"{option}.{name}", each, f"{function} needs an expression")
        found[name] = (function, expression)
    return found


class WindowSums:
    """The partial sums of a batch.

    :param table: the configuration
    """

    def __init__(self, table: WindowTable) -> None:
        self.table = table
        values = {name: "1" if each == "*" else each for name, (_, each) in table.sums.items()}
        columns = {_TIME: table.time, **table.keys, **values}
        # On lines of their own: an expression may end in a comment.
        chosen = ",\n".join(f"({expression}\n) AS `{name}`" for name, expression in columns.items())
        where = f"\nWHERE ({table.where}\n)" if table.where else ""
        self._transform = Transform({"sql": f"SELECT {chosen}\nFROM {VIEW}{where}"}, table.option)

    def check(self, spark: SparkSession, schema: StructType | None, kept: Sequence[str]) -> StructType:
        """The table's columns; raises InvalidOption if it cannot be made.

        :param schema: of the body of the table's rows; None for bytes
        :param kept: the columns beside the body
        """
        from pyspark.sql import functions as F
        from pyspark.sql.types import BinaryType

        try:
            found = self._transform.check(spark, schema, kept)
        except InvalidOption as exc:
            raise InvalidOption(self.table.option, self.table.definition, exc.reason) from exc
        self._check_types(found)
        empty = spark.range(0).select(
            F.lit(None).cast(schema or BinaryType()).alias("body"),
            *[F.lit(None).cast(_KINDS.get(name, "string")).alias(name) for name in kept],
        )
        made: StructType = self.apply(empty, schema, kept, datetime.fromtimestamp(0)).schema
        return made

    def apply(self, rows: DataFrame, schema: StructType | None, kept: Sequence[str], seen_at: datetime) -> DataFrame:
        """The partial sums of a batch's rows of the table."""
        from pyspark.sql import functions as F

        table = self.table
        chosen = self._transform.apply(rows, schema, kept).select("body.*")
        length = F.lit(int(table.length * 1_000_000))
        at = F.unix_micros(_TIME)
        start = at - F.pmod(at, length)
        functions = {"count": F.count, "sum": F.sum, "min": F.min, "max": F.max}
        sums = [functions[function](F.col(name)).alias(name) for name, (function, _) in table.sums.items()]
        grouped = chosen.groupBy(start.alias(START), *map(F.col, table.keys)).agg(*sums)
        return grouped.select(
            F.timestamp_micros(F.col(START)).alias(START),
            F.timestamp_micros(F.col(START) + length).alias(END),
            *table.keys,
            *table.sums,
            F.lit(seen_at).alias(SEEN),
        ).coalesce(1)

    def _check_types(self, found: StructType) -> None:
        from pyspark.sql import types

        plain = (types.IntegralType, types.DecimalType, types.DateType, types.TimestampType, types.TimestampNTZType)
        keys = (*plain, types.StringType, types.BooleanType)
        numbers = (types.NumericType,)
        if not isinstance(found[_TIME].dataType, types.TimestampType):
            raise self._wrong("time", self.table.time, "it must be a TIMESTAMP")
        for name, expression in self.table.keys.items():
            if not isinstance(found[name].dataType, keys):
                raise self._wrong("by", expression, f"{_said(found, name)} cannot be a key: CAST it to STRING")
        for name, (function, expression) in self.table.sums.items():
            wanted = {"sum": numbers, "min": (*plain, *numbers), "max": (*plain, *numbers)}.get(function)
            if wanted is not None and not isinstance(found[name].dataType, wanted):
                text = f"{function}({expression})"
                raise self._wrong(f"columns.{name}", text, f"{function} of {_said(found, name)} cannot be added")

    def _wrong(self, key: str, value: str, reason: str) -> InvalidOption:
        return InvalidOption(f"{self.table.option}.{key}", value, reason)


_KINDS = {"timestamp": "timestamp", "seen_at": "timestamp", "attempts": "int"}


def _said(found: StructType, name: str) -> str:
    return found[name].dataType.simpleString().upper()
