"""The records in a file of a disk queue, and how reading goes on behind damage (docs/internals 2.2).

A record is an int32 size, then the message as on the wire: timestamp, attempts, id, body. There are no checksums, so
the bytes after a record have to show whether it is whole:

1. In a row, a record counts if its size fits, its id is 16 hex digits, and another record or the end of the file
   follows. If what follows is not recognized, it is the following record that is damaged, unless one wrong byte in the
   present one's size explains what is found. A torn header or zeros follow where a crash cut off the last write.
2. Behind damage, the next record is searched for. A record whose id is damaged is stepped over by its size, if that
   leads to another one. If the id is intact, the size must be wrong: the record ends where one wrong bit in its size
   would lead, or before the next younger one. (A body may hold whole records, but they are older than its message.)
3. A record that was found counts only if its size fits, its id was made within a minute of its timestamp, and it ends
   at the end of the file or before another such.

Damage that this cannot detect: within a body, a timestamp or a number of attempts, an id of other hex digits, zeros
that end with the file, and a wrong size that leads exactly to a later record: the body has those between as its end.

Files are read by ``pread``, which reports a bad sector as an error; with a mapped file it would kill the process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from gnsq_like.server.broker.message import made_at_ns

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
#: Bytes per read, and per step of a search: a step takes some ms, during which nothing else happens in nsqd.
_CHUNK = 128 * 1024
_SEARCH_STEP = 128 * 1024
#: Timestamp and id are made at the same moment, but ids go on where a clock was set back a little.
_MOST_APART_NS = 60 * 10**9
#: The changes of a size by one wrong bit, or one wrong byte.
_WRONG_BITS = [1 << bit for bit in range(32)]
_WRONG_BYTES = [byte << shift for shift in (0, 8, 16, 24) for byte in range(1, 256)]


class Damaged(Exception):
    """The record at the read position is invalid, or its file does not exist."""


class _Header(NamedTuple):
    """A possible header of a record."""

    size: int
    #: Where the record ends.
    stop: int
    timestamp_ns: int
    message_id: bytes

    def fits(self, end: int) -> bool:
        return self.size >= _LEAST_SIZE and self.stop <= end

    @property
    def has_id(self) -> bool:
        return not self.message_id.strip(_HEX)

    @property
    def is_sure(self) -> bool:
        """Whether it is certainly a header."""
        return self.has_id and abs(made_at_ns(self.message_id) - self.timestamp_ns) <= _MOST_APART_NS


class RecordReader:
    """Reads one file.

    :param position: where the first record begins
    :raises Damaged: if the file does not exist
    :raises OSError: if it cannot be opened at the moment
    """

    def __init__(self, path: str, position: int = 0) -> None:
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
        #: Up to where the next record has been searched for, and where it begins at the latest; 0 without a search.
        self._searched = self._latest = 0

    @property
    def is_searching(self) -> bool:
        """Whether :meth:`skip` has begun and not ended."""
        return self._searched > 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    # -- in a row ------------------------------------------------------------------------------------

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
            needed = min(after + HEADER_BYTES, offset + end - self.position)
            if needed > len(chunk):
                chunk = self._load(end, needed - offset)
                after -= offset
                offset = 0
            if stop != end:
                # Usually it is enough to see that another id follows, and a timestamp less than 78 hours away.
                next_id = chunk[after + _ID_START : after + _ID_END]
                begin = chunk[offset + SIZE_BYTES : offset + SIZE_BYTES + 2]
                is_usual = len(next_id) == 16 and chunk[after + SIZE_BYTES : after + SIZE_BYTES + 2] == begin
                if (not is_usual or next_id.strip(_HEX)) and not self._is_whole(stop, end):
                    raise Damaged(f"no record behind this one of size {size}")
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

    def _is_whole(self, stop: int, end: int) -> bool:
        """Whether the record at the position ends at ``stop``, although perhaps no intact one follows."""
        if self._is_cut_off(self.position, stop, end):
            return True
        header = self._header(stop)
        if header is not None and (header.is_sure or (header.fits(end) and self._has_record(header.stop, end))):
            return True
        has_other_end = any(self._has_record(each, end) for each in self._ends(_WRONG_BYTES, end))
        return not has_other_end and not self._has_zeros(stop, end)

    def _is_cut_off(self, begin: int, stop: int, end: int) -> bool:
        """Whether a crash has cut off what was written behind a record: zeros or a torn header follow, or both."""
        if self._has_zeros(stop, end):
            return self._read(stop - 1, 1) != b"\0"  # else they may begin within its body
        torn = self._read(stop, min(HEADER_BYTES, end - stop)).rstrip(b"\0")
        return len(torn) < HEADER_BYTES and _begins_as(torn, self._read(begin, HEADER_BYTES))

    def _has_zeros(self, at: int, end: int) -> bool:
        return at < end and not self._read(at, min(HEADER_BYTES, end - at)).strip(b"\0")

    def _has_record(self, at: int, end: int) -> bool:
        """Whether a record seems to begin there, or the end is there."""
        header = self._header(at)
        return at == end or (header is not None and (header.is_sure or (header.has_id and header.fits(end))))

    # -- behind damage -------------------------------------------------------------------------------

    def skip(self, end: int) -> bool:
        """Search for the next record; call it when Damaged was raised, again and again until it returns True.

        :param end: where the last record ends
        :return: whether the search has ended: the position is then that of a record, or the end
        """
        if not self._searched:
            self._searched, self._latest = self._possible(end)
        found = self._search(end) if self._searched < self._latest else None
        if found is None and self._searched < self._latest:
            return False
        self.position = self._latest if found is None else found
        self._searched = 0
        return True

    def _possible(self, end: int) -> tuple[int, int]:
        """Between which places the record behind the damaged one at the position begins."""
        first, header = self.position + 1, self._header(self.position)
        if header is None or (header.fits(end) and self._has_zeros(header.stop, end)):
            return first, end
        if header.has_id:
            ends = [each for each in self._ends(_WRONG_BITS, end) if self._is_followed(each, end)]
            return first, min(ends, default=end)
        if header.fits(end) and self._is_followed(header.stop, end):
            return header.stop, header.stop
        return first, end

    def _search(self, end: int) -> int | None:
        """Go on by a step; returns where a record begins, a younger one than that at the position."""
        damaged = self._header(self.position)
        older = damaged.message_id if damaged is not None and damaged.is_sure else b""
        begin, self._searched = self._searched, self._searched + _SEARCH_STEP
        data = self._read(begin, min(_SEARCH_STEP + HEADER_BYTES - 1, end - begin))
        # The first byte of a size that fits, and of a timestamp between 2012 and 2159, as an id can have it.
        pattern = re.compile(rb"[\0-\x%02x].{3}[\x12-\x52].{9}([0-9a-f]{16})" % min(end - begin >> 24, 127), re.DOTALL)
        match = pattern.search(data)
        while match and (at := begin + match.start()) < self._latest:
            header = self._header(at)
            if match[1] > older and header is not None and header.fits(end) and header.is_sure:
                stop = header.stop
                if self._is_followed(stop, end) or self._is_cut_off(at, stop, end):
                    return at
            match = pattern.search(data, match.start() + 1)
        return None

    def _is_followed(self, at: int, end: int) -> bool:
        """Whether a record certainly begins there, perhaps with a damaged id, or the end is there."""
        header = self._header(at)
        if at == end or header is None:
            return at == end
        if header.is_sure:
            return True
        following = self._header(header.stop) if header.fits(end) else None
        return following is not None and following.is_sure

    def _ends(self, wrong: Iterable[int], end: int) -> list[int]:
        """Where the record at the position would end if its size were not wrong in one of these ways."""
        size = int.from_bytes(self._read(self.position, SIZE_BYTES))
        lengths = [size ^ each for each in wrong]
        stops = [self.position + SIZE_BYTES + length for length in lengths if length >= _LEAST_SIZE]
        return [stop for stop in stops if stop <= end]

    def _header(self, at: int) -> _Header | None:
        """A possible header there; None if the file ends before, or cannot be read there."""
        data = self._read(at, HEADER_BYTES)
        if len(data) < HEADER_BYTES:
            return None
        size, timestamp_ns, _, message_id = HEADER.unpack(data)
        return _Header(size, at + SIZE_BYTES + size, timestamp_ns, message_id)

    def _read(self, at: int, count: int) -> bytes:
        try:
            return os.pread(self._fd, count, at)
        except OSError:  # a bad sector
            return b""


def _begins_as(torn: bytes, header: bytes) -> bool:
    """Whether bytes at the end of a file look like the beginning of a header, which a crash has torn.

    :param header: that of the record before, of about the same time
    """
    size, timestamp = torn[:SIZE_BYTES], torn[SIZE_BYTES:_ID_START]
    if torn[0] or (len(size) == SIZE_BYTES and int.from_bytes(size) < _LEAST_SIZE):
        return False  # 16 MiB or more, or too small
    return (not timestamp or abs(timestamp[0] - header[SIZE_BYTES]) <= 1) and not torn[_ID_START:].strip(_HEX)


# -- whole files, at the start: these wait for the disk ------------------------------------------------


def count_records(path: str, position: int = 0) -> int:
    """Count the records of a file from ``position`` on, those behind damage too."""
    count = 0
    with suppress(Damaged, OSError):
        reader = RecordReader(path, position)
        try:
            while reader.position < reader.size:
                count += _step(reader)
        finally:
            reader.close()
    return count


def is_at_record(path: str, position: int) -> bool:
    """Whether an intact record begins at ``position``, or one is damaged there that reading from the start reaches."""
    with suppress(Damaged, OSError):
        reader = RecordReader(path, position)
        try:
            with suppress(Damaged):
                reader.take([], reader.size, 1, 1)
                return True
        finally:
            reader.close()
        reader = RecordReader(path)
        try:
            while reader.position < position:
                _step(reader, most=1)
            return reader.position == position
        finally:
            reader.close()
    return False


def _step(reader: RecordReader, most: int = 1000) -> int:
    """Go on by some records, or over damage; returns the number of records."""
    taken: list[Record] = []
    try:
        reader.take(taken, reader.size, most, _CHUNK)
    except Damaged:
        if not taken:
            while not reader.skip(reader.size):
                pass
    return len(taken)
