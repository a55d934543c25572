"""Compaction of an hour of plain Parquet files, and deletion of old hours.

Plain files have no log that says which of them count, so an hour's files can only be exchanged with their directory:
the new directory is written beside the table, synced, and takes the place of the old one in a single step
(``renameat2`` with RENAME_EXCHANGE). A process that opens the hour's directory finds the old files or the new ones, and
never both. But names that were read in the old one exist no longer. A reader that has listed some of them, and fails
where a file is gone, is right when it lists the hour again. A reader that leaves out what is gone lacks rows without an
error. Many do while they list: Arrow, and Hadoop's local file system for Spark, read the names in a directory and then
look at each, so they lack the whole hour if it is exchanged in between. So only hours are compacted that hardly anybody
reads.

A killed compaction leaves a directory beside the table, which the next one removes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs, parquet

from gnsq_like.durable_file import sync_directory
from gnsq_like.spark.tables.data_file import directories, file_system
from gnsq_like.spark.tables.errors import TableError
from gnsq_like.spark.tables.parquet_files import open_writer

#: Files smaller than this share of the target are compacted, if there are several.
_SMALL = 0.75
#: Bytes in memory of what is read at once.
_PIECE_BYTES = 64 << 20

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


class Hour(NamedTuple):
    """A directory of a table."""

    start: datetime
    #: Relative to the table.
    path: str

    @property
    def end(self) -> datetime:
        """When the next hour begins."""
        return self.start + timedelta(hours=1)


class Compacted(NamedTuple):
    """What became of an hour's files."""

    before: int
    after: int


class Stopped(Exception):
    """A compaction was to end; nothing has changed."""


def hours_of(table: str) -> list[Hour]:
    """The hours that a table has directories for, in order."""
    found = [
        Hour(start, f"{day}/{hour}")
        for day in directories(table)
        if day.startswith("date=")
        for hour in directories(f"{table}/{day}")
        if (start := _start(day, hour)) is not None
    ]
    return sorted(found)


def _start(day: str, hour: str) -> datetime | None:
    """When an hour began, by the names of its directories; None if they are others."""
    (is_day, _, date), (is_hour, _, number) = day.partition("="), hour.partition("=")
    if (is_day, is_hour) != ("date", "hour"):
        return None
    try:
        return datetime.fromisoformat(date).replace(tzinfo=UTC) + timedelta(hours=int(number))
    except ValueError:
        return None


def drop_hour(table: str, hour: Hour) -> None:
    """Delete an hour. Raises TableError."""
    system, root = file_system(table)
    try:
        system.delete_dir(f"{root}/{hour.path}")
        if isinstance(system, fs.LocalFileSystem):
            with suppress(OSError):  # it has other hours
                Path(root, hour.path).parent.rmdir()
    except OSError as exc:
        raise TableError(f"{table}/{hour.path} cannot be deleted: {exc}") from exc


def workshop(table: Path) -> Path:
    """The directory beside a table where its new hours are made."""
    return table.with_name(f".{table.name}-compaction")


def compact_hour(table: Path, hour: Hour, target: int, stop: Callable[[], bool]) -> Compacted | None:
    """Write an hour's files into few; None if they are few. No other process may write to the hour, or compact it.

    :param target: bytes of a file
    :param stop: asked now and then; once it is true, Stopped is raised
    :raises TableError: it cannot be done; nothing has changed
    """
    old = table / hour.path
    files = _listing(old)
    if sum(size < _SMALL * target for size, _ in files.values()) < 2 or any(map(_has_int96, files)):
        return None
    try:
        with _new_directory(table) as new:
            batch = new / _new_batch()
            batch.mkdir(parents=True)
            rows, count = _rewrite(list(files), batch, target, stop)
            _check(table, hour.path, rows, files)
            if count >= len(files):
                return None
            _replace(old, new, batch)
    except (OSError, pa.ArrowException) as exc:
        raise TableError(f"{old} cannot be compacted: {exc}") from exc
    return Compacted(len(files), count)


def fold_files(table: Path, path: str, fold: Callable[[list[pa.Table]], pa.Table]) -> Compacted:
    """Write the rows of a day or an hour into one file, and return how many there were and are.

    No other process may write there.

    :param path: the directory, relative to the table
    :param fold: makes the new rows, which all arrived at the same time
    :raises TableError: it cannot be done; nothing has changed
    """
    old = table / path
    try:
        files = _listing(old)
        schema = united([parquet.read_schema(each) for each in files])
        rows = [fitted(parquet.ParquetFile(each).read(), schema) for each in files]
        made = fold(rows)
        with _new_directory(table) as new:
            hour = made["seen_at"][0].as_py().astimezone(UTC).hour if len(made) else 0
            batch = (new if "/" in path else new / f"hour={hour}") / _new_batch()
            batch.mkdir(parents=True)
            with open(batch / f"part-00000-{uuid4().hex}.parquet", "wb") as stream:
                with open_writer(stream, made.schema) as writer:
                    writer.write_table(made)
                stream.flush()
                os.fsync(stream.fileno())
            before = sum(map(len, rows))
            _check(table, path, before, files)
            _replace(old, new, batch)
    except (OSError, pa.ArrowException) as exc:
        raise TableError(f"{old} cannot be folded: {exc}") from exc
    return Compacted(before, len(made))


@contextmanager
def _new_directory(table: Path) -> Iterator[Path]:
    """A directory beside the table, which may be exchanged with one of its own; the block's end removes it."""
    shop = workshop(table)
    shutil.rmtree(shop, ignore_errors=True)  # of a killed one
    try:
        yield shop / "hour"
    finally:
        shutil.rmtree(shop, ignore_errors=True)


def _new_batch() -> str:
    return f"batch=compacted-{uuid4().hex[:12]}"


def _replace(old: Path, new: Path, batch: Path) -> None:
    """Put a new directory, with its files in ``batch``, in place of an old one."""
    for each in (batch, *batch.parents):
        sync_directory(each)
        if each == new:
            break
    exchange(new, old)
    sync_directory(old.parent)


def _has_int96(path: Path) -> bool:
    """Whether times are in the old type, of which the file does not say that they are in UTC."""
    columns = parquet.read_metadata(path).schema
    return any(columns.column(number).physical_type == "INT96" for number in range(len(columns)))


def count_files(table: Path, hour: Hour) -> int:
    """The number of an hour's files."""
    return len(_listing(table / hour.path))


def _listing(directory: Path) -> dict[Path, tuple[int, int]]:
    """An hour's files in order, with their sizes and times; hidden ones are not the table's."""
    found = sorted(
        path
        for path in directory.rglob("*.parquet")
        if not any(part.startswith((".", "_")) for part in path.relative_to(directory).parts)
    )
    return {path: (status.st_size, status.st_mtime_ns) for path in found for status in [path.stat()]}


def _check(table: Path, path: str, rows: int, files: dict[Path, tuple[int, int]]) -> None:
    """Raise TableError if the new files must not take the place of the old ones."""
    counted = sum(parquet.read_metadata(path).num_rows for path in files)
    if rows != counted:
        raise TableError(f"{table / path} has {counted} rows, of which {rows} were read: it stays as it is")
    if _listing(table / path) != files:
        raise TableError(f"{table / path} was changed during its compaction: it stays as it is")


def _rewrite(files: list[Path], directory: Path, target: int, stop: Callable[[], bool]) -> tuple[int, int]:
    """Write files into new ones; returns the numbers of rows and of files."""
    schema = united([parquet.read_schema(path) for path in files])
    rows = count = 0
    pieces = _pieces(files, schema)
    piece = next(pieces, None)
    while piece is not None:
        count += 1
        with open(directory / f"part-{count:05d}-{uuid4().hex}.parquet", "wb") as stream:
            with open_writer(stream, schema) as writer:
                while piece is not None and stream.tell() < target:
                    if stop():
                        raise Stopped
                    writer.write_table(piece)
                    rows += piece.num_rows
                    piece = next(pieces, None)
            stream.flush()
            os.fsync(stream.fileno())
    return rows, count


def _pieces(files: list[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of files in order, in pieces that are good row groups."""
    waiting: list[pa.Table] = []
    for path in files:
        with parquet.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                waiting.append(fitted(file.read_row_group(number), schema))
                if sum(each.nbytes for each in waiting) >= _PIECE_BYTES:
                    yield pa.concat_tables(waiting)
                    waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def united(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """A schema with the columns and fields of all."""
    found = pa.schema([])
    for each in schemas:
        found = _union(found, each)
    return found.remove_metadata()


def _union(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The columns of both, with the fields of both."""
    return pa.schema(list(_of_struct(pa.struct(list(one)), pa.struct(list(other)))))


def _of_struct(one: pa.StructType, other: pa.StructType) -> Iterator[pa.Field]:
    theirs = {field.name: field for field in other}
    for field in one:
        found = theirs.pop(field.name, None)
        kind = field.type if found is None else _merged(field.type, found.type)
        yield pa.field(field.name, kind)
    for field in theirs.values():
        yield pa.field(field.name, _merged(field.type, field.type))


def _merged(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return pa.struct(list(_of_struct(one, other)))
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(pa.field("element", _merged(one.value_type, other.value_type)))
    if pa.types.is_map(one) and pa.types.is_map(other):
        return pa.map_(one.key_type, _merged(one.item_type, other.item_type))
    return one


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with all columns of a schema; what it lacks is null."""
    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table.select(schema.names).cast(schema)


def exchange(one: Path, other: Path) -> None:
    """Give each of two directories the name of the other, in one step. Raises OSError where that is impossible."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        raise OSError(errno.ENOSYS, "this system cannot exchange two directories in one step") from None
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        if number in {errno.EINVAL, errno.ENOSYS}:
            raise OSError(number, "this file system cannot exchange two directories in one step")
        raise OSError(number, os.strerror(number), str(other))
