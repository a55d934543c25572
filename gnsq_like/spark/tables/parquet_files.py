"""Rows of Spark become Parquet files that belong to no table yet.

Each task writes files of its own by pyarrow, in a private data source; Spark then gives the reports of the tasks that
count to a process beside the driver's, which passes them on in a file. A task that Spark tries again writes a new file,
and the old one stays as an orphan (``data_file.clean``).

The files' statistics are for Delta's log: readers pass over files that cannot have what they look for. There is no
minimum and maximum of a type for which readers disagree (NaN), for which JSON is not exact (decimals), or for which
they would be of no use. Long texts would make the log long.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from gnsq_like.spark.tables.data_file import DataFile, file_system, new_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


#: Bytes in memory of a row group, and its rows.
_GROUP_BYTES, _GROUP_ROWS = 128 << 20, 1 << 20


def prepare(spark: SparkSession) -> None:
    """Make the private data source known to a session."""
    spark.dataSource.register(ParquetFiles)


def write_files(rows: DataFrame, table: str, at: datetime) -> list[DataFile]:
    """Write rows of one hour into new files below a table, and return them; none if there are no rows.

    :param table: the URL of the table
    :param at: a time in the hour
    """
    with tempfile.TemporaryDirectory(prefix="gnsq_like-files-") as directory:
        report = Path(directory) / "files.json"
        writer = rows.write.format(ParquetFiles.name()).mode("append")
        writer.options(table=table, at=at.astimezone(UTC).isoformat(), report=str(report)).save()
        return [DataFile(**each) for each in json.loads(report.read_text())]


class ParquetFiles(DataSource):
    """The private data source. Options: the table's URL, a time in the hour, and the file for the report."""

    @classmethod
    def name(cls) -> str:
        return "gnsq_like_parquet_files"

    def writer(self, schema: StructType, overwrite: bool) -> ParquetFilesWriter:
        at = datetime.fromisoformat(self.options["at"])
        return ParquetFilesWriter(self.options["table"], at, self.options["report"])


@dataclass
class Wrote(WriterCommitMessage):
    """The report of a task: its file, unless it had no rows."""

    file: DataFile | None


class ParquetFilesWriter(DataSourceArrowWriter):
    """Writes a file in each task."""

    def __init__(self, table: str, at: datetime, report: str) -> None:
        self._table = table
        self._at = at
        self._report = report

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Wrote:
        return Wrote(write_file(iterator, self._table, self._at))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        files = [asdict(each.file) for each in messages if isinstance(each, Wrote) and each.file is not None]
        Path(self._report).write_text(json.dumps(files))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        system, root = file_system(self._table)
        for each in messages:
            if isinstance(each, Wrote) and each.file is not None:
                with suppress(OSError):
                    system.delete_file(f"{root}/{each.file.path}")


def write_file(batches: Iterator[pa.RecordBatch], table: str, at: datetime) -> DataFile | None:
    """Write batches of one hour into a new file below a table; None, and no file, if they have no rows."""
    groups = _grouped(batches)
    first = next(groups, None)
    if first is None:
        return None
    system, root = file_system(table)
    path = new_path(at)
    full = f"{root}/{path}"
    system.create_dir(full.rpartition("/")[0], recursive=True)
    made: list[parquet.FileMetaData] = []
    try:
        with system.open_output_stream(full) as stream:
            with open_writer(stream, first.schema, made) as writer:
                writer.write_table(first, row_group_size=_GROUP_ROWS)
                for group in groups:
                    writer.write_table(group, row_group_size=_GROUP_ROWS)
            size = stream.tell()
    except BaseException as exc:
        with suppress(OSError):
            system.delete_file(full)
        # What a full disk stopped cannot be closed either, and that error hides the first one.
        if isinstance(exc.__context__, OSError):
            raise exc.__context__ from None
        raise
    [metadata] = made
    return DataFile(path, size, metadata.num_rows, stats_of(metadata, first.schema))


def open_writer(
    stream: Any, schema: pa.Schema, made: list[parquet.FileMetaData] | None = None
) -> parquet.ParquetWriter:
    """A writer of Parquet that all readers understand; it adds the file's metadata to ``made`` when it is closed.

    Times are in microseconds and in UTC, which Arrow's own schema in the file could contradict.
    """
    return parquet.ParquetWriter(
        stream, schema, version="2.6", coerce_timestamps="us", store_schema=False, metadata_collector=made
    )


def _grouped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches as tables that are large enough for a row group each; none is empty."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
        if sum(each.nbytes for each in waiting) >= _GROUP_BYTES or sum(map(len, waiting)) >= _GROUP_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


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
