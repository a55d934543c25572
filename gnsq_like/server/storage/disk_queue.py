"""A queue of messages in files, in the format of nsqd's own disk queue, so that either reads what the other wrote.

``NAME.diskqueue.000000.dat`` and so on hold records: int32 size, then the message as on the wire: int64
timestamp, uint16 attempts, 16 bytes id, body. A file that would grow beyond ``max_bytes_per_file`` is left
and the next begun; a file that is read to its end is removed. ``NAME.diskqueue.meta.dat`` says in three
lines where the queue stands: ``depth``, ``file,position`` of the next read, the same of the next write.

Meta lags behind the data: it is brought up to date when files begin or end, and with each sync. What it
does not know of yet is found again by looking at the files, so nothing written is lost when the process is
killed; what was read since comes again. After such an end, writing begins with a new file, as in nsqd.

The format has no checksums. A record counts as sound when it ends within its file and the id of the
record behind it is an id; so a wrong size is noticed before its body is given out. From there on nothing
can be known of a file: it is renamed to ``.bad``, and reading goes on with the next.

Reading and writing go through the page cache and are done where they are asked for: 1000 messages of 200
bytes take 0.6 ms to write and 0.6 ms to read, one alone 2.5 µs. What waits for the disk is :class:`Sync`,
which its caller runs in a thread: an fsync took 0.4 ms on the machine where this was measured, but a disk
that turns takes tens, and everybody on the hub would wait. Data is synced before the meta that speaks of it.

Rules for editors: ``put`` adds all or nothing; ``take`` raises only what may pass (too many open files);
a position is moved before a file is removed; whatever moves a file number saves the meta.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from struct import Struct

from gnsq_like.server.storage.atomic_file import AtomicFile, Draft

log = logging.getLogger("gnsq_like.nsqd")

#: A message: timestamp in ns, attempts, id, body.
Record = tuple[int, int, bytes, bytes]

#: Size, timestamp, attempts, id.
_HEADER = Struct(">iqH16s")
_HEADER_BYTES = _HEADER.size
_SIZE_BYTES = 4
#: Where the id is in a record.
_ID_START, _ID_END = _HEADER_BYTES - 16, _HEADER_BYTES
#: The least size: a message without a body.
_LEAST_SIZE = _HEADER_BYTES - _SIZE_BYTES
_HEX = b"0123456789abcdef"
#: Bytes read from a file in one go.
_CHUNK = 128 * 1024
#: Full files that stay open until the next sync; with more of them, which are small then, ``put`` waits for the disk.
_MOST_FULL = 16
_META = re.compile(rb"(-?\d+)\n(\d+),(\d+)\n(\d+),(\d+)\n")
_MODE = 0o600


class DiskError(Exception):
    """The disk does not take what must be written; the text is nsqd's."""


def disk_error(exc: OSError, action: str) -> DiskError:
    """What happened, as Go words it: ``write /data/t.diskqueue.000000.dat: no space left on device``."""
    place = f" {exc.filename}" if exc.filename else ""
    return DiskError(f"{action}{place}: {(exc.strerror or str(exc)).lower()}")


class _Damaged(Exception):
    """The record at the read position is not sound, or its file is not there."""


class Sync:
    """What is to be waited for until a queue is safe on the disk."""

    def __init__(self, fds: list[int], draft: Draft) -> None:
        self._fds = fds
        self.draft = draft
        #: Whether it is done.
        self.stored = False

    def run(self) -> None:
        """Wait for the disk. In any thread, once.

        :raises OSError: if the disk refuses
        """
        try:
            for fd in self._fds:
                os.fsync(fd)
            self.draft.store()
            self.stored = True
        finally:
            for fd in self._fds:
                os.close(fd)


class DiskQueue:
    """The queue; :meth:`open` comes first.

    :param directory: where its files are
    :param name: what their names begin with: a topic, or "topic:channel"
    :param max_bytes_per_file: bytes that a file has at most, unless its first message is larger
    :param sync_every: messages written and read after which a sync is due
    :param on_unsynced: called when there is something to sync, with the queue and whether it is due now
    """

    def __init__(
        self,
        directory: str,
        name: str,
        max_bytes_per_file: int = 100 * 1024 * 1024,
        sync_every: int = 2500,
        on_unsynced: Callable[[DiskQueue, bool], None] = lambda queue, now: None,
    ) -> None:
        self.name = name
        self._start_of_path = os.path.join(directory, f"{name}.diskqueue.")
        self._meta = AtomicFile(self._start_of_path + "meta.dat")
        self._max_bytes_per_file = max_bytes_per_file
        self._sync_every = sync_every
        self._on_unsynced = on_unsynced
        #: Messages in the queue.
        self.depth = 0
        #: The next read and the next write: number of the file, position in it.
        self._read_file = 0
        self._read_at = 0
        self._write_file = 0
        self._write_at = 0
        #: The files that are open; -1 for none.
        self._reader = -1
        self._writer = -1
        #: Files that are full, and to be closed with the next sync.
        self._full: list[int] = []
        #: What was read of the file ahead of the read position, and where in the file it begins.
        self._chunk = b""
        self._chunk_at = 0
        #: Size of the file that is read, when nothing more is written to it.
        self._read_size = 0
        #: Messages written and read since the last sync.
        self._operations = 0

    def _path(self, number: int) -> str:
        return f"{self._start_of_path}{number:06d}.dat"

    # -- opening -------------------------------------------------------------------------------------

    def open(self, numbers: Sequence[int]) -> None:
        """Find out where the queue stands.

        :param numbers: of the data files that are there
        """
        if not self._load_meta():
            if numbers:
                log.warning("DISKQUEUE(%s): no metadata, taking all of %d files", self.name, len(numbers))
                self._read_file, self._read_at = min(numbers), 0
                self._go_to_new_file(max(numbers) + 1)
                self._count_again()
            return
        number, position = self._write_file, self._write_at
        size = self._size_of(number)
        last = max([number, *numbers])
        if size != position or last > number:
            log.warning(
                "DISKQUEUE(%s): metadata says %d bytes of %s, it has %d and %d come after it; writing to a new file",
                *(self.name, position, self._path(number), size, last - number),
            )
            self._go_to_new_file(last + 1)
            self.depth += self._count(number, position)
            self.depth += sum(self._count(later, 0) for later in range(number + 1, last + 1))
        if self._read_at < self._size_of(self._read_file) and not self._count(self._read_file, self._read_at, most=1):
            self._read_at = 0  # nothing begins there: rather all of this file again than none of it
            self._count_again()
        self._check_tail()

    def _load_meta(self) -> bool:
        try:
            with open(self._meta.path, "rb") as file:
                found = _META.match(file.read())
        except FileNotFoundError:
            return False
        except OSError as exc:
            log.error("DISKQUEUE(%s): failed to read metadata - %s", self.name, exc)
            return False
        if found is None:
            log.error("DISKQUEUE(%s): damaged metadata in %s", self.name, self._meta.path)
            return False
        depth, *positions = map(int, found.groups())
        if positions[:2] > positions[2:]:
            log.error("DISKQUEUE(%s): %s says that more was read than written", self.name, self._meta.path)
            return False
        self.depth = depth
        self._read_file, self._read_at, self._write_file, self._write_at = positions
        return True

    def _size_of(self, number: int) -> int:
        try:
            return os.stat(self._path(number)).st_size
        except OSError:
            return 0

    def _count_again(self) -> None:
        """Set the depth to what is in the files from the read position on."""
        self.depth = self._count(self._read_file, self._read_at)
        self.depth += sum(self._count(number, 0) for number in range(self._read_file + 1, self._write_file + 1))
        if not self.depth and self._has_more():
            # Whatever is there, it is not sound; it is met, and set aside, as if there were one message.
            self.depth = 1

    def _count(self, number: int, position: int, most: float = math.inf) -> int:
        """The sound records of a file, from ``position`` to the first that is not; it stops at ``most``."""
        try:
            with (
                open(self._path(number), "rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                count = 0
                end = self._write_at if number == self._write_file else len(data)
                while count < most and position + _HEADER_BYTES <= end:
                    size, _, _, message_id = _HEADER.unpack_from(data, position)
                    position += _SIZE_BYTES + size
                    if size < _LEAST_SIZE or position > end or message_id.strip(_HEX):
                        break
                    count += 1
                return count
        except (OSError, ValueError):  # there is no such file, or nothing in it
            return 0

    # -- writing -------------------------------------------------------------------------------------

    def put(self, records: Sequence[Record]) -> None:
        """Add at the tail; all or none. Never switches.

        :raises DiskError: if the disk does not take them; nothing is added then
        """
        before = self._write_file, self._write_at, self.depth
        try:
            self._append(records)
        except OSError as exc:
            action = "write" if self._writer >= 0 else "open"
            self._take_back(*before)
            raise disk_error(exc, action) from exc
        finally:
            self._note_operations(len(records))

    def _append(self, records: Sequence[Record]) -> None:
        pieces: list[bytes] = []
        at = self._write_at
        pack = _HEADER.pack
        for timestamp_ns, attempts, message_id, body in records:
            length = _HEADER_BYTES + len(body)
            if at and at + length > self._max_bytes_per_file:
                self._write(pieces)
                pieces = []
                at = 0
                self._full_up()
            pieces.append(pack(length - _SIZE_BYTES, timestamp_ns, attempts, message_id))
            pieces.append(body)
            at += length
        self._write(pieces)

    def _write(self, pieces: list[bytes]) -> None:
        """Write records, each in two pieces, to the current file."""
        if not pieces:
            return
        path = self._path(self._write_file)
        if self._writer < 0:
            anew = 0 if self._write_at else os.O_TRUNC
            self._writer = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | anew, _MODE)
            if not self._write_at:
                self._save_meta()
        data = memoryview(b"".join(pieces))
        at = self._write_at
        try:
            while data:
                written = os.pwrite(self._writer, data, at)
                at += written
                data = data[written:]
        except OSError as exc:
            exc.filename = path
            raise
        self._write_at = at
        self.depth += len(pieces) // 2

    def _full_up(self) -> None:
        """Leave the current file for the next."""
        if self._read_file == self._write_file:
            self._read_size = self._write_at
        if self._writer >= 0:
            self._full.append(self._writer)
            self._on_unsynced(self, True)
            if len(self._full) > _MOST_FULL:
                fd = self._full.pop(0)
                os.fsync(fd)
                os.close(fd)
        self._writer = -1
        self._write_file += 1
        self._write_at = 0

    def _take_back(self, number: int, position: int, depth: int) -> None:
        """Undo a put that failed: whatever of it is in the files goes."""
        for later in range(number + 1, self._write_file + 1):
            with suppress(OSError):
                os.unlink(self._path(later))
        self._close_writer()
        self._write_file, self._write_at, self.depth = number, position, depth
        with suppress(OSError):
            os.truncate(self._path(number), position)
        self._save_meta_if_possible()

    def _go_to_new_file(self, number: int) -> None:
        self._write_file = number
        self._write_at = 0

    def _close_writer(self) -> None:
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    # -- reading -------------------------------------------------------------------------------------

    def take(self, count: int, max_bytes: int) -> list[Record]:
        """Remove up to ``count`` from the head, and no more once their bodies have ``max_bytes``. Never switches.

        :raises DiskError: if a file cannot be opened at the moment; nothing is removed then
        """
        taken: list[Record] = []
        while self.depth and len(taken) < count and max_bytes > 0:
            try:
                max_bytes = self._read(taken, count, max_bytes)
            except _Damaged as damage:
                self._set_aside(str(damage))
            except OSError as exc:
                if not taken:
                    raise disk_error(exc, "open") from exc
                break
            self._check_tail()
        self._note_operations(len(taken))
        return taken

    def _read(self, taken: list[Record], count: int, max_bytes: int) -> int:
        """Take from the current file only; gives what is left of ``max_bytes``.

        :raises _Damaged: when what comes next is not sound; what was taken until then is
        :raises OSError: if the file cannot be opened at the moment
        """
        self._open_reader()
        end = self._write_at if self._read_file == self._write_file else self._read_size
        chunk, offset = self._chunk, self._read_at - self._chunk_at
        unpack = _HEADER.unpack_from
        before = len(taken)
        try:
            while len(taken) < count and max_bytes > 0 and self._read_at < end:
                if offset + _HEADER_BYTES > len(chunk):
                    chunk, offset = self._load(end, _HEADER_BYTES), 0
                size, timestamp_ns, attempts, message_id = unpack(chunk, offset)
                stop = self._read_at + _SIZE_BYTES + size
                if size < _LEAST_SIZE or stop > end or message_id.strip(_HEX):
                    raise _Damaged(f"invalid record of size {size}")
                after = offset + _SIZE_BYTES + size
                needed = after if stop == end else after + _HEADER_BYTES
                if needed > len(chunk):
                    chunk = self._load(end, needed - offset)
                    after -= offset
                    offset = 0
                if stop != end and chunk[after + _ID_START : after + _ID_END].strip(_HEX):
                    raise _Damaged("invalid record behind this one")
                body = chunk[offset + _HEADER_BYTES : after]
                taken.append((timestamp_ns, attempts, message_id, body))
                max_bytes -= len(body)
                self._read_at = stop
                offset = after
        finally:
            self.depth -= len(taken) - before
            if self._read_at >= end and self._read_file < self._write_file:
                self._leave_read_file()
        return max_bytes

    def _load(self, end: int, needed: int) -> bytes:
        """Read on from the read position: at least ``needed`` bytes."""
        try:
            wanted = min(max(needed, _CHUNK), end - self._read_at)
            self._chunk = os.pread(self._reader, wanted, self._read_at)
        except OSError as exc:
            raise _Damaged(str(exc)) from None
        self._chunk_at = self._read_at
        if len(self._chunk) < needed:
            raise _Damaged("the file ends within a record")
        return self._chunk

    def _open_reader(self) -> None:
        if self._reader >= 0:
            return
        try:
            self._reader = os.open(self._path(self._read_file), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _Damaged("no such file") from None
        self._chunk, self._chunk_at = b"", self._read_at
        self._read_size = os.fstat(self._reader).st_size

    def _leave_read_file(self) -> None:
        """The file is read to its end: go to the next, and remove it."""
        path = self._path(self._read_file)
        self._go_to_next_read_file()
        self._save_meta_if_possible()
        with suppress(OSError):
            os.unlink(path)

    def _go_to_next_read_file(self) -> None:
        self._close_reader()
        self._read_file += 1
        self._read_at = 0

    def _set_aside(self, reason: str) -> None:
        """Nothing more can be made of the file that is read: keep it as .bad, go to the next."""
        path = self._path(self._read_file)
        log.error(
            "DISKQUEUE(%s): reading at %d of %s - %s; going to the next file, what there is of this one becomes .bad",
            *(self.name, self._read_at, path, reason),
        )
        if self._read_file == self._write_file:
            self._close_writer()
            self._go_to_new_file(self._write_file + 1)
        with suppress(OSError):
            os.rename(path, path + ".bad")
        self._go_to_next_read_file()
        self._save_meta_if_possible()

    def _close_reader(self) -> None:
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1
        self._chunk = b""

    def _has_more(self) -> bool:
        return (self._read_file, self._read_at) < (self._write_file, self._write_at)

    def _check_tail(self) -> None:
        """Depth and positions must agree on whether anything is left."""
        if not self._has_more():
            if self.depth:
                log.error("DISKQUEUE(%s): %d messages less than there should be", self.name, self.depth)
            self.depth = 0
            if (self._read_file, self._read_at) > (self._write_file, self._write_at):
                self._go_to_new_file(self._read_file + 1)
                self._go_to_next_read_file()
        elif self.depth <= 0:
            self._count_again()

    # -- emptying, closing ---------------------------------------------------------------------------

    def clear(self) -> None:
        """Drop all messages, and remove the files."""
        self._close_reader()
        self._close_writer()
        self._close_full()
        for number in range(self._read_file, self._write_file + 1):
            with suppress(OSError):
                os.unlink(self._path(number))
        with suppress(OSError):
            self._meta.remove()
        self._go_to_new_file(self._write_file + 1)
        self._read_file, self._read_at = self._write_file, 0
        self.depth = 0
        self._operations = 0

    def close(self) -> None:
        """Bring everything to the disk and close the files. Waits for the disk.

        :raises DiskError: if the disk refuses
        """
        try:
            sync = self.begin_sync()
            if sync is not None:
                sync.run()
                self.end_sync(sync)
        except OSError as exc:
            raise disk_error(exc, "sync") from exc
        finally:
            self._close_reader()
            self._close_writer()
            self._close_full()

    def _close_full(self) -> None:
        for fd in self._full:
            os.close(fd)
        self._full = []

    # -- syncing -------------------------------------------------------------------------------------

    def begin_sync(self) -> Sync | None:
        """What is to be waited for, with the queue as it is now; None if nothing happened since the last time.

        :raises OSError: if there are too many open files
        """
        if not self._operations:
            return None
        fds = self._full
        if self._writer >= 0:
            fds = [*fds, os.dup(self._writer)]
        self._full = []
        self._operations = 0
        return Sync(fds, self._meta.draft(self._meta_text()))

    def end_sync(self, sync: Sync) -> None:
        """It has been run, well or not; the meta follows, unless it was overtaken.

        :raises OSError: if that fails
        """
        if sync.stored:
            self._meta.publish(sync.draft)
        elif self._meta.is_newest(sync.draft):
            self._operations += 1  # the next sync has to make good for this one

    def _note_operations(self, count: int) -> None:
        if count:
            self._operations += count
            self._on_unsynced(self, self._operations >= self._sync_every)

    def _meta_text(self) -> bytes:
        positions = self.depth, self._read_file, self._read_at, self._write_file, self._write_at
        return b"%d\n%d,%d\n%d,%d\n" % positions

    def _save_meta(self) -> None:
        self._meta.replace(self._meta_text(), sync=False)

    def _save_meta_if_possible(self) -> None:
        try:
            self._save_meta()
        except OSError as exc:
            log.error("DISKQUEUE(%s): failed to write metadata - %s", self.name, exc)
