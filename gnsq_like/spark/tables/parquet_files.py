"""Rows of Spark become Parquet files that belong to no table yet.

Each task writes files of its own by pyarrow, in a private data source; Spark then gives the reports of the tasks that
count to a process beside the driver's, which passes them on in a file. A task that Spark tries again writes a new file,
and the old one stays as an orphan (``cleaning``).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from gnsq_like.spark.tables.data_file import DataFile, file_system, new_path
from gnsq_like.spark.tables.stats import stats_of

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
