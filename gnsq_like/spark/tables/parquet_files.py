"""Rows become Parquet files that belong to no table yet."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

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
        return DataFile(self._path, size, metadata.num_rows)

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
