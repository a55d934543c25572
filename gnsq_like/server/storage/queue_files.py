"""The files of one disk queue (docs/internals 2.2): their names, which of them exist, and the records in them.

``NAME.diskqueue.000000.dat`` and so on hold messages; a damaged one is set aside as ``….dat.bad``.

A file that could not be removed is still counted, so that the queue does not take it for one of its own later.

A record is an int32 size, then the message as on the wire. The format has no checksums. A record counts as valid if it
ends within its file and an id follows where the next record's id must be; so a wrong size is noticed before its body is
returned. Nothing after an invalid record can be trusted.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from struct import Struct

from gnsq_like.durable_file import naming
from gnsq_like.own_files import check_own, open_own

log = logging.getLogger("gnsq_like.nsqd")

#: A queue's data file, with the queue's name, the file's number, and ".bad" if it was set aside.
DATA_FILE = re.compile(r"(?P<queue>.+)\.diskqueue\.(?P<number>\d{6,})\.dat(?P<bad>\.bad)?")
#: A message: timestamp in ns, attempts, id, body.
Record = tuple[int, int, bytes, bytes]
#: Size, timestamp, attempts, id.
HEADER = Struct(">iqH16s")
HEADER_BYTES = HEADER.size
SIZE_BYTES = 4
#: The smallest size: a message without a body.
_LEAST_SIZE = HEADER_BYTES - SIZE_BYTES
#: Where the id is in a record.
_ID_START, _ID_END = HEADER_BYTES - 16, HEADER_BYTES
_HEX = b"0123456789abcdef"
#: Bytes per read.
_CHUNK = 128 * 1024
#: Full files that stay open until the next sync; beyond that, which takes small files, the writer waits for the disk.
_MOST_FULL = 16
_MODE = 0o600


class QueueFiles:
    """The data files of the queue ``name`` in ``directory``."""

    def __init__(self, directory: str, name: str) -> None:
        self.name = name
        self._start_of_path = os.path.join(directory, f"{name}.diskqueue.")
        self.meta_path = self._start_of_path + "meta.dat"
        #: The numbers of the data files that exist.
        self.numbers: set[int] = set()
        #: Those of the files that were set aside.
        self._bad: set[int] = set()

    def note(self, names: Iterable[str]) -> None:
        """Note files that were found in the directory."""
        for name in names:
            if match := DATA_FILE.fullmatch(name):
                (self._bad if match["bad"] else self.numbers).add(int(match["number"]))

    def path(self, number: int) -> str:
        """The path of a data file."""
        return f"{self._start_of_path}{number:06d}.dat"

    def cut(self, number: int, size: int) -> None:
        """Cut a data file, if it exists; errors are ignored."""
        with suppress(OSError):
            check_own(self.path(number))
            os.truncate(self.path(number), size)

    def size(self, number: int) -> int:
        """Its bytes; 0 if it does not exist."""
        try:
            return os.stat(self.path(number)).st_size
        except OSError:
            return 0

    def sync(self) -> None:
        """Wait until all that is in the files is on the disk."""
        for number in sorted(self.numbers):
            try:
                fd = os.open(self.path(number), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            except OSError as exc:
                log.error("DISKQUEUE(%s): failed to sync %s - %s", self.name, self.path(number), exc)

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove data files, if they exist."""
        for number in list(numbers):
            if self._unlink(self.path(number)):
                self.numbers.discard(number)

    def remove_set_aside(self) -> None:
        """Remove the files that were set aside."""
        self._bad = {number for number in self._bad if not self._unlink(self.path(number) + ".bad")}

    def set_aside(self, number: int) -> None:
        """Rename a damaged file to ``.bad``, if it exists."""
        path = self.path(number)
        with suppress(OSError):
            os.rename(path, path + ".bad")
            self._bad.add(number)
        self.numbers.discard(number)

    def _unlink(self, path: str) -> bool:
        """Remove a file; returns whether it is gone."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as exc:
            log.error("DISKQUEUE(%s): failed to remove data file - %s", self.name, exc)
            return False
        return True


class Damaged(Exception):
    """The record at the read position is invalid, or its file does not exist."""


def count_records(path: str, position: int, end: int | None = None, most: float = math.inf) -> int:
    """Count a file's valid records from ``position`` to the first invalid one, or to ``end``; stop at ``most``."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            count = 0
            end = len(data) if end is None else end
            while count < most and position + HEADER_BYTES <= end:
                size, _, _, message_id = HEADER.unpack_from(data, position)
                position += SIZE_BYTES + size
                if size < _LEAST_SIZE or position > end or message_id.strip(_HEX):
                    break
                count += 1
            return count
    except (OSError, ValueError):  # the file does not exist, or is empty
        return 0


def cut_torn_record(path: str, position: int) -> None:
    """Remove the beginning of a record, or zeros, from a file's end: what a crash left of the last write.

    With it, the record before could not be told from one with a wrong size. Nothing is removed behind an invalid
    record.

    :param position: where a record begins, or the end
    """
    try:
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            end = len(data)
            while position + HEADER_BYTES <= end:
                size, _, _, message_id = HEADER.unpack_from(data, position)
                if size < _LEAST_SIZE or message_id.strip(_HEX):
                    if data[position:].strip(b"\0"):
                        return
                    break
                if position + SIZE_BYTES + size > end:
                    break
                position += SIZE_BYTES + size
            if position < end:
                file.truncate(position)
    except (OSError, ValueError):  # the file does not exist, or is empty
        pass


class RecordReader:
    """Reads one file.

    :param position: where the first record begins
    :raises Damaged: if the file does not exist
    :raises OSError: if it cannot be opened at the moment
    """

    def __init__(self, path: str, position: int) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Damaged("no such file") from None
        #: Where the next record begins.
        self.position = position
        #: Where the last one ends, if nothing more is written to the file.
        self.size = os.fstat(self._fd).st_size
        #: Bytes read ahead, and where in the file they begin.
        self._chunk = b""
        self._chunk_at = position

    def take(self, taken: list[Record], end: int, count: int, max_bytes: int) -> int:
        """Add records to ``taken`` until it has ``count`` or their bodies have ``max_bytes``.

        :param end: where the last record ends
        :return: what is left of ``max_bytes``
        :raises Damaged: if the next record is invalid; those before it have been added
        """
        chunk, offset = self._chunk, self.position - self._chunk_at
        unpack = HEADER.unpack_from
        while len(taken) < count and max_bytes > 0 and self.position < end:
            if offset + HEADER_BYTES > len(chunk):
                chunk, offset = self._load(end, HEADER_BYTES), 0
            size, timestamp_ns, attempts, message_id = unpack(chunk, offset)
            stop = self.position + SIZE_BYTES + size
            if size < _LEAST_SIZE or stop > end or message_id.strip(_HEX):
                raise Damaged(f"invalid record of size {size}")
            after = offset + SIZE_BYTES + size
            needed = after if stop == end else after + HEADER_BYTES
            if needed > len(chunk):
                chunk = self._load(end, needed - offset)
                after -= offset
                offset = 0
            if stop != end and chunk[after + _ID_START : after + _ID_END].strip(_HEX):
                raise Damaged("invalid record behind this one")
            body = chunk[offset + HEADER_BYTES : after]
            taken.append((timestamp_ns, attempts, message_id, body))
            max_bytes -= len(body)
            self.position = stop
            offset = after
        return max_bytes

    def _load(self, end: int, needed: int) -> bytes:
        """Read ahead from the position: at least ``needed`` bytes."""
        try:
            wanted = min(max(needed, _CHUNK), end - self.position)
            self._chunk = os.pread(self._fd, wanted, self.position)
        except OSError as exc:
            raise Damaged(str(exc)) from None
        self._chunk_at = self.position
        if len(self._chunk) < needed:
            raise Damaged("the file ends within a record")
        return self._chunk

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class RecordWriter:
    """Writes one file after another, and keeps full ones open until the next sync.

    A descriptor is kept with the path of its file, which errors name.
    """

    def __init__(self) -> None:
        #: The file that is written; None for none.
        self._current: tuple[int, str] | None = None
        self._full: list[tuple[int, str]] = []

    @property
    def is_open(self) -> bool:
        """Whether a file is being written."""
        return self._current is not None

    def open(self, path: str, *, anew: bool) -> None:
        """Begin with a file; raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | (os.O_TRUNC if anew else 0)
        self._current = open_own(path, flags, _MODE), path

    def write(self, data: bytes, at: int) -> None:
        """Write to the open file; raises OSError."""
        assert self._current is not None
        fd, path = self._current
        rest = memoryview(data)
        with naming(path):
            while rest:
                written = os.pwrite(fd, rest, at)
                at += written
                rest = rest[written:]

    def full_up(self) -> None:
        """The open file is full. Waits for the disk if there are many.

        :raises OSError: if that fails; the file is still open then
        """
        assert self._current is not None
        if len(self._full) >= _MOST_FULL:
            fd, path = self._full[0]
            with naming(path):
                os.fsync(fd)  # if it fails, the next sync tries again
            del self._full[0]
            os.close(fd)
        self._full.append(self._current)
        self._current = None

    def take_unsynced(self) -> list[tuple[int, str]]:
        """Descriptors of all that was written since the last sync; the caller closes them.

        :raises OSError: if there are too many open files
        """
        unsynced = self._full
        if self._current is not None:
            fd, path = self._current
            unsynced = [*unsynced, (os.dup(fd), path)]
        self._full = []
        return unsynced

    def keep(self, unsynced: list[tuple[int, str]], existing: Iterable[str]) -> None:
        """Have the next sync try again with descriptors of :meth:`take_unsynced` whose files could not be synced.

        Those of files that are gone, or that the next sync covers anyway, are closed.
        """
        kept = {path for _, path in self._full}
        if self._current is not None:
            kept.add(self._current[1])
        wanted = set(existing) - kept
        self._full = [each for each in unsynced if each[1] in wanted] + self._full
        for fd, path in unsynced:
            if path not in wanted:
                os.close(fd)

    def leave(self) -> None:
        """Close the file that is written; the next one is opened anew."""
        if self._current is not None:
            os.close(self._current[0])
            self._current = None

    def close(self) -> None:
        """Close all files."""
        self.leave()
        for fd, _ in self._full:
            os.close(fd)
        self._full = []
