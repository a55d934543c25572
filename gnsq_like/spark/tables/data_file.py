"""Data files: their names, the hour that each belongs to, and the file systems they are in.

::

    <table>/date=2026-11-21/hour=13/part-<uuid>.parquet
    <table>/date=2026-11-21/hour=13/batch=<query>-000042/part-<uuid>.parquet

Tables with a log of their own have the first form: directories help people who look at them, and the care of tables. A
table of plain files has the second: a batch has a directory that belongs to it alone. The query's id is in its name
because a query with a new checkpoint counts its batches from 0 again. Date and hour are those of ``seen_at``, in UTC:
when the pipeline received the messages. So an hour that is over never changes, and no message is too late.

:func:`clean` removes those that belong to no table: of killed tasks, of drivers killed before the commit, and those
that a table has dropped. A file may be there before the commit that adds it. So only files are removed that are older
than a day, and the files are listed before the table's log is read: what is committed in between is in the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs, parquet

from gnsq_like.errors import NSQError

#: The directories of an hour, and the relative path of a data file.
_HOUR = re.compile(r"date=(\d{4}-\d\d-\d\d)/hour=(\d{1,2})")
_PATH = re.compile(rf"{_HOUR.pattern}/part-[0-9a-f]{{32}}\.parquet")
#: How many characters of the query's id are in a batch's name.
_ID_LENGTH = 12


class TableError(NSQError):
    """A table cannot be read, written or maintained; the text says which and why."""


class BatchOutOfOrder(TableError):
    """The table has a later batch of the same query than the one that is to be written."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file with rows of one hour."""

    #: Relative to the table.
    path: str
    #: Bytes.
    size: int
    rows: int

    @property
    def partition(self) -> dict[str, str]:
        """Date and hour, as text."""
        found = _PATH.fullmatch(self.path)
        assert found is not None
        return {"date": found[1], "hour": found[2]}


def hour_directory(at: datetime) -> str:
    """The directory of an hour, relative to its table."""
    utc = at.astimezone(UTC)
    return f"date={utc:%Y-%m-%d}/hour={utc.hour}"


def batch_name(query_id: str, number: int) -> str:
    """The name of a batch in tables of plain files."""
    return f"{query_id.replace('-', '')[:_ID_LENGTH]}-{number:06d}"


def batch_directory(seen_at: datetime, batch: str) -> str:
    """The directory of a batch, relative to its table."""
    return f"{hour_directory(seen_at)}/batch={batch}"


def time_of(us: int) -> datetime:
    """A time by its microseconds since the epoch."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def hour_of(day: str, hour: str) -> datetime | None:
    """When an hour began, by the names of its two directories; None if they are others."""
    found = _HOUR.fullmatch(f"{day}/{hour}")
    try:
        return datetime.fromisoformat(found[1]).replace(tzinfo=UTC, hour=int(found[2])) if found else None
    except ValueError:
        return None


def new_path(at: datetime) -> str:
    """A path for a new file, relative to its table."""
    return f"{hour_directory(at)}/part-{uuid4().hex}.parquet"


#: The directory of a table of plain files for those that are not part of it yet; readers skip names with "_".
_WRITING = "_writing"


def hidden_path() -> str:
    """A path for a new file that readers do not see, relative to its table."""
    return f"{_WRITING}/{uuid4().hex}"


def is_hidden(path: str) -> bool:
    """Whether a relative path is one of :func:`hidden_path`."""
    return path.startswith(f"{_WRITING}/")


def place(table: str, directory: str, files: Sequence[DataFile]) -> None:
    """Make hidden files the content of a directory, and of what it had, remove the rest. Raises TableError.

    Not atomic: a reader may see a part of a batch, and a batch that is killed here is repeated.

    :param directory: relative to the table; it goes if there are no files
    """
    check_files(table, files)
    try:
        _place(*file_system(table), directory, files)
    except OSError as exc:
        raise TableError(f"{table}/{directory} cannot be written: {exc}") from exc


def _place(system: fs.FileSystem, root: str, directory: str, files: Sequence[DataFile]) -> None:
    target = f"{root}/{directory}"
    found = system.get_file_info(fs.FileSelector(target, allow_not_found=True))
    if not files:
        if found or system.get_file_info(target).type == fs.FileType.Directory:
            system.delete_dir(target)
        return
    system.create_dir(target, recursive=True)
    names = [f"part-{number:05d}.parquet" for number in range(len(files))]
    for file, name in zip(files, names, strict=True):
        system.move(f"{root}/{file.path}", f"{target}/{name}")
    for each in found:
        if each.base_name not in names:
            system.delete_file(each.path)


def check_files(table: str, files: Sequence[DataFile]) -> None:
    """Raise TableError if a file is not there in full: a table that lists it could not be read."""
    system, root = file_system(table)
    found = system.get_file_info([f"{root}/{each.path}" for each in files])
    for info, file in zip(found, files, strict=True):
        if info.size != file.size:
            raise TableError(
                f"the file {table}/{file.path} was written by a task and is not here in full: {table} must be a place "
                f"that all machines share"
            )


def drop_files(table: str, files: Sequence[DataFile]) -> None:
    """Remove files that are not part of the table and will not be."""
    system, root = file_system(table)
    for each in files:
        with suppress(OSError):  # the next maintenance removes it
            system.delete_file(f"{root}/{each.path}")


def is_data_file(path: str) -> bool:
    """Whether a relative path is one of :func:`new_path`."""
    return _PATH.fullmatch(path) is not None


def file_system(url: str) -> tuple[fs.FileSystem, str]:
    """The file system of a URL, and its path there. Credentials are those of the environment."""
    if urlsplit(url).scheme == "file":
        return fs.LocalFileSystem(), url.removeprefix("file://")
    # Spark does not decode the characters of a path.
    system, path = fs.FileSystem.from_uri(url.replace("s3a://", "s3://", 1).replace("%", "%25"))
    return system, path


def list_names(url: str) -> list[str]:
    """The names in a directory; empty if there is no such directory."""
    return [each.base_name for each in _listed(url)]


def directories(url: str) -> list[str]:
    """The names of the directories in a directory; empty if there is no such directory."""
    return [each.base_name for each in _listed(url) if each.type == fs.FileType.Directory]


def _listed(url: str) -> list[fs.FileInfo]:
    system, path = file_system(url)
    found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return [each for each in found if not each.base_name.startswith(".")]  # such as Hadoop's checksums


def read_text(url: str) -> str:
    """The text of a small file."""
    system, path = file_system(url)
    with system.open_input_stream(path) as stream:
        data: bytes = stream.read()
    return data.decode()


def write_text(url: str, text: str) -> None:
    """Write a small file, with its directory."""
    system, path = file_system(url)
    system.create_dir(path.rpartition("/")[0], recursive=True)
    with system.open_output_stream(path) as stream:
        stream.write(text.encode())


# -- removal --------------------------------------------------------------------------------------------


#: A batch that takes longer from its first file to its commit fails (:func:`check_files`).
UNTRACKED_AGE = timedelta(days=1)


def clean(table: str, is_ours: Callable[[str], bool], tracked: Callable[[], Set[str]], now: datetime) -> list[str]:
    """Remove the files of a table that it does not know; returns their relative paths.

    :param is_ours: whether a relative path can be that of a file of the table
    :param tracked: returns the relative paths that a reader may need
    """
    system, root = file_system(table)
    found = system.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
    old = {
        each.path.removeprefix(f"{root}/")
        for each in found
        if each.type == fs.FileType.File and each.mtime is not None and each.mtime < now - UNTRACKED_AGE
    }
    candidates = sorted(filter(is_ours, old))
    if not candidates:
        return []
    known = tracked()
    removed = [path for path in candidates if path not in known]
    for path in removed:
        with suppress(FileNotFoundError):
            system.delete_file(f"{root}/{path}")
    return removed


# -- writing --------------------------------------------------------------------------------------------


#: Bytes in memory of a row group, and its rows. Larger ones cost memory: a task holds several of them.
_GROUP_BYTES, _GROUP_ROWS = 64 << 20, 1 << 16
#: The largest dictionary of a column. Larger ones are those of columns whose values hardly repeat, such as ids: there a
#: dictionary takes processor time, and makes the file larger.
_DICTIONARY_BYTES = 128 << 10


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
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
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
