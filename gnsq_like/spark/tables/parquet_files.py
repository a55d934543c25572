"""Rows become Parquet files that belong to no table yet.

The files' statistics are for Delta's log: readers pass over files that cannot have what they look for. There is no
minimum and maximum of a type for which readers disagree (NaN), for which JSON is not exact (decimals), or for which
they would be of no use. Long texts would make the log long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from gnsq_like.spark.tables.data_file import DataFile, file_system

#: Bytes in memory of a row group, and its rows. Larger ones cost memory: a task holds several of them.
_GROUP_BYTES, _GROUP_ROWS = 64 << 20, 1 << 16


class FileWriter:
    """Writes batches into a new file.

    :param table: the URL of the table
    :param path: that of the file, relative to the table
    """

    def __init__(self, table: str, path: str, schema: pa.Schema) -> None:
        self._system, root = file_system(table)
        self._path = path
        self._place = f"{root}/{self._path}"
        self._schema = schema
        self._is_whole = False
        #: The rows of the next row group.
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        #: The metadata of the whole file.
        self._made: list[parquet.FileMetaData] = []
        self._system.create_dir(self._place.rpartition("/")[0], recursive=True)
        self._stream = self._system.open_output_stream(self._place)
        # Times are in microseconds and in UTC, which Arrow's own schema in the file could contradict.
        self._writer = parquet.ParquetWriter(
            self._stream,
            schema,
            version="2.6",
            coerce_timestamps="us",
            store_schema=False,
            metadata_collector=self._made,
        )

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows; they are written once there are enough for a row group."""
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= _GROUP_BYTES or self._waiting_rows >= _GROUP_ROWS:
            self._write_group()

    def close(self) -> DataFile:
        """Complete the file, and return it."""
        if self._waiting:
            self._write_group()
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        self._is_whole = True
        [metadata] = self._made
        return DataFile(self._path, size, metadata.num_rows, stats_of(metadata, self._schema))

    def drop(self) -> None:
        """Remove the file, unless it is complete."""
        if self._is_whole:
            return
        for step in (self._writer.close, self._stream.close, partial(self._system.delete_file, self._place)):
            # After a write to a full disk has failed, closing fails, too, and that error would hide the first one.
            with suppress(OSError, pa.ArrowException):
                step()

    def _write_group(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=self._waiting_rows)
        self._waiting = []
        self._waiting_rows = self._waiting_bytes = 0


# -- statistics -----------------------------------------------------------------------------------------


#: How many columns have statistics; Delta's own default.
_MOST_COLUMNS = 32
#: Characters of a text that is given as minimum or maximum.
_LONGEST = 64


class _Leaf(NamedTuple):
    """A column of the file. ``path`` is empty if it is part of an array or a map."""

    path: tuple[str, ...]
    kind: pa.DataType


def stats_of(metadata: parquet.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """The statistics of a whole file, as Delta's JSON has them."""
    result: dict[str, Any] = {
        "numRecords": metadata.num_rows,
        "minValues": {},
        "maxValues": {},
        "nullCount": {},
    }
    plain = [(number, leaf) for number, leaf in enumerate(_leaves(schema)) if leaf.path]
    for number, leaf in plain[:_MOST_COLUMNS]:
        found = [metadata.row_group(group).column(number).statistics for group in range(metadata.num_row_groups)]
        if any(each is None for each in found):
            continue
        if all(each.has_null_count for each in found):
            _put(result["nullCount"], leaf.path, sum(each.null_count for each in found))
        bounds = [each for each in found if each.has_min_max]
        # A group without bounds has nothing but nulls, or values too long for bounds.
        if not bounds or any(each.num_values and not each.has_min_max for each in found):
            continue
        lowest, highest = min(each.min for each in bounds), max(each.max for each in bounds)
        least, most = _text(lowest, leaf.kind), _text(highest, leaf.kind)
        if least is not None and most is not None:
            _put(result["minValues"], leaf.path, least)
            _put(result["maxValues"], leaf.path, most)
    return result


def _leaves(schema: pa.Schema) -> Iterator[_Leaf]:
    for field in schema:
        yield from _of_field((field.name,), field.type)


def _of_field(path: tuple[str, ...], kind: pa.DataType) -> Iterator[_Leaf]:
    """The columns of a field in the order of the file."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _of_field((*path, field.name) if path else (), field.type)
    elif pa.types.is_list(kind):
        yield from _of_field((), kind.value_type)
    elif pa.types.is_map(kind):
        yield from _of_field((), kind.key_type)
        yield from _of_field((), kind.item_type)
    else:
        yield _Leaf(path, kind)


def _put(into: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = value


def _text(value: Any, kind: pa.DataType) -> Any:
    """A bound as JSON has it; None if it is not to be given."""
    if pa.types.is_integer(kind):
        return value
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else None
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return None
