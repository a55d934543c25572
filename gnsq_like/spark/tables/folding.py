"""Folding a table of partial sums: the rows of a day, or of an hour, become one row for each window and its keys.

Readers add up all rows (docs/pipeline.rst), so a sum must never be there twice or be missing. So the files of a day or
an hour are replaced in one commit. A day or an hour with one file is folded already.

The folded rows get the latest time of arrival among them, because a file belongs to one hour.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from gnsq_like.spark.tables.data_file import file_system
from gnsq_like.spark.tables.errors import TableError

#: The directory of a table's definitions, which readers pass over.
DEFINITIONS = "_window"
#: The column of arrival.
SEEN = "seen_at"


@dataclass(frozen=True)
class Folding:
    """How rows are put together.

    :param added: by column "sum", "min" or "max"; all other columns but ``seen_at`` are keys
    """

    added: Mapping[str, str]

    def fold(self, tables: Iterable[pa.Table]) -> pa.Table:
        """One row for each combination of keys. Raises TableError if a sum has no room in its type."""
        found: pa.Table | None = None
        for table in tables:
            both = table if found is None else pa.concat_tables([found, table.select(found.schema.names)])
            found = self._grouped(both)
        assert found is not None
        last = pa.scalar(pc.max(found[SEEN]).as_py(), found.schema.field(SEEN).type)
        position = found.schema.get_field_index(SEEN)
        return found.set_column(position, found.schema.field(SEEN), pa.repeat(last, found.num_rows))

    def _grouped(self, table: pa.Table) -> pa.Table:
        schema = table.schema
        functions = {**{name: how for name, how in self.added.items() if name in schema.names}, SEEN: "max"}
        keys = [name for name in schema.names if name not in functions]
        wanted = list(functions.items())
        for name, how in functions.items():
            if how == "sum" and pa.types.is_integer(schema.field(name).type):
                # Sums of integers would wrap around.
                position = table.schema.get_field_index(name)
                table = table.set_column(position, name, table[name].cast(pa.decimal128(19)))
            if how == "max" and pa.types.is_floating(schema.field(name).type):
                # To Spark, NaN is greater than all numbers.
                table = table.append_column(f"{name} is nan", pc.is_nan(table[name]))
                wanted.append((f"{name} is nan", "max"))
        grouped = table.group_by(keys, use_threads=False).aggregate(wanted)
        columns: list[Any] = []
        for field in schema:
            how = functions.get(field.name, "")
            column = grouped[f"{field.name}_{how}" if how else field.name]
            if f"{field.name} is nan_max" in grouped.column_names:
                is_nan = pc.fill_null(grouped[f"{field.name} is nan_max"], False)
                column = pc.if_else(is_nan, pa.scalar(float("nan"), field.type), column)
            try:
                columns.append(column.cast(field.type))
            except pa.ArrowException as exc:
                raise TableError(f"the sums of {field.name} are too large for {field.type}: {exc}") from exc
        return pa.table(columns, schema=schema)


@dataclass(frozen=True, order=True)
class Unit:
    """A day, or an hour of one that is not over."""

    start: datetime
    is_day: bool

    @property
    def end(self) -> datetime:
        """When the next one begins."""
        return self.start + (timedelta(days=1) if self.is_day else timedelta(hours=1))

    @property
    def path(self) -> str:
        """Its directory, relative to the table."""
        day = f"date={self.start:%Y-%m-%d}"
        return day if self.is_day else f"{day}/hour={self.start.hour}"

    def __str__(self) -> str:
        return f"{self.start:%Y-%m-%d}" if self.is_day else f"{self.start:%Y-%m-%d %H}:00"


def units_of(hours: Sequence[datetime], before: datetime) -> list[Unit]:
    """What can be folded of these hours: days that have ended by then, and hours of the day that has not.

    :param hours: their starts, one for each file
    """
    found: dict[Unit, int] = {}
    for start in hours:
        utc = start.astimezone(UTC)
        day, hour = Unit(utc.replace(hour=0, minute=0), True), Unit(utc, False)
        unit = day if day.end <= before else hour
        if unit.end <= before:
            found[unit] = found.get(unit, 0) + 1
    return sorted(unit for unit, count in found.items() if count > 1)


def folding_of(table: str) -> Folding | None:
    """How the rows of a table are folded, by its definition; None if it has none. Raises TableError."""
    system, root = file_system(table)
    try:
        listed = system.get_file_info(fs.FileSelector(f"{root}/{DEFINITIONS}", allow_not_found=True))
        for each in sorted(listed, key=lambda each: each.base_name, reverse=True):
            if not each.base_name.endswith(".json") or each.base_name.startswith((".", "_")):
                continue
            with system.open_input_stream(each.path) as stream:
                content = stream.read()
            try:
                return Folding(json.loads(content)["added"])
            except (ValueError, KeyError):
                continue  # a process was killed while it wrote
    except OSError as exc:
        raise TableError(f"{table} cannot be read: {exc}") from exc
    return None
