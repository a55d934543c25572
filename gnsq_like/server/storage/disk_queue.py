"""A queue of messages in files, in the format of NSQ's own disk queue, so that either reads what the other wrote.

``NAME.diskqueue.000000.dat`` and so on hold :mod:`records`. A record that would grow its file beyond
``max_bytes_per_file`` begins the next file; a file is removed when it has been read to its end. The three
lines of ``NAME.diskqueue.meta.dat`` are the queue's state: ``depth``, ``file,position`` of the next read, the
same of the next write.

The metadata lags behind the data: it is updated when files begin or end, and with each sync. What it does not
cover is found by scanning the files, so nothing written is lost when the process is killed, and what was read
since comes again. A record that a crash of the machine has torn is cut off then. After such an end, writing
begins with a new file, as in nsqd. All files are synced when the queue is opened: a killed process has left
some unsynced, which no later sync would touch, and a crash could tear. A file with an invalid record is renamed
to ``.bad``, and reading continues with the next file.

A process may be killed between any two steps. The metadata is what counts: files below its read position were
read to their ends, and are removed when the queue is opened; files without metadata are messages only if
something else, nsqd.dat, names the queue.

Reading and writing use the page cache and happen in the caller's thread: 1000 messages of 200 bytes take
0.6 ms to write and 0.6 ms to read, a single one 2.5 µs. Waiting for the disk is :class:`Sync`, which the caller
runs in another thread: an fsync took 0.4 ms on the machine of this measurement, but takes tens of ms on a
rotating disk, during which the hub would stand still. Data is synced before the metadata that describes it.

Rules for editors: ``put`` adds all or nothing; ``take`` raises only for temporary conditions (too many open
files); a position moves, and the metadata is saved, before a file is removed; whatever changes a file number
saves the metadata.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from gnsq_like.durable_file import naming
from gnsq_like.server.storage.atomic_file import AtomicFile, Draft
from gnsq_like.server.storage.queue_files import (
    HEADER,
    HEADER_BYTES,
    SIZE_BYTES,
    Damaged,
    QueueFiles,
    Record,
    RecordReader,
    count_records,
    cut_torn_record,
)

log = logging.getLogger("gnsq_like.nsqd")

#: Full files that stay open until the next sync; beyond that, which takes small files, ``put`` waits for the disk.
_MOST_FULL = 16
#: Numbers are nsqd's, of 64 bits; a longer one is none.
_META = re.compile(rb"(-?\d{1,18})\n(\d{1,18}),(\d{1,18})\n(\d{1,18}),(\d{1,18})\n")
_MODE = 0o600


class DiskError(Exception):
    """The disk failed; the text is nsqd's."""


def disk_error(exc: OSError, action: str) -> DiskError:
    """The error in Go's words: ``write /data/t.diskqueue.000000.dat: no space left on device``."""
    place = f" {exc.filename}" if exc.filename else ""
    return DiskError(f"{action}{place}: {(exc.strerror or str(exc)).lower()}")


class Sync:
    """What must be waited for until a queue is safe on the disk."""

    def __init__(self, fds: list[tuple[int, str]], draft: Draft) -> None:
        #: With the paths of their files.
        self._fds = fds
        self.draft = draft
        #: Whether it succeeded.
        self.stored = False

    def run(self) -> None:
        """Wait for the disk. In any thread, once.

        :raises OSError: if the disk fails
        """
        try:
            for fd, path in self._fds:
                with naming(path):
                    os.fsync(fd)
            self.draft.store()
            self.stored = True
        finally:
            for fd, _ in self._fds:
                os.close(fd)


class DiskQueue:
    """The queue; call :meth:`open` first.

    :param directory: the directory of its files
    :param name: the beginning of their names: a topic, or "topic:channel"
    :param max_bytes_per_file: the largest file, unless its first message is larger
    :param sync_every: messages written and read after which a sync is due
    :param on_unsynced: called when there is something to sync, with the queue and whether the sync is due now
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
        self._files = QueueFiles(directory, name)
        self._meta = AtomicFile(self._files.meta_path)
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
        #: The file that is read, if it is open, and the one that is written; -1 for none.
        self._reader: RecordReader | None = None
        self._writer = -1
        #: Full files, which the next sync closes.
        self._full: list[tuple[int, str]] = []
        #: Messages written and read since the last sync.
        self._operations = 0

    # -- opening -------------------------------------------------------------------------------------

    def open(self, names: Iterable[str] = (), is_known: bool = True) -> None:
        """Restore the queue's state. Waits for the disk.

        :param names: the names of its existing files
        :param is_known: whether nsqd.dat names the queue, so that files without metadata are its messages
        """
        files = self._files
        files.note(names)
        if self._load_meta():
            self._open_at_meta()
        elif files.numbers and (is_known or os.path.exists(files.meta_path)):
            log.warning("DISKQUEUE(%s): no usable metadata, taking all of %d files", self.name, len(files.numbers))
            for number in files.numbers:
                cut_torn_record(files.path(number), 0)
            self._read_file, self._read_at = min(files.numbers), 0
            self._go_to_new_file(max(files.numbers) + 1)
            self._count_again()
        elif files.numbers:
            log.warning("DISKQUEUE(%s): no metadata, removing all of %d files", self.name, len(files.numbers))
            self.clear()
        files.sync()

    def _open_at_meta(self) -> None:
        files = self._files
        number, position = self._write_file, self._write_at
        size = files.size(number)
        last = max([number, *files.numbers])
        if size != position or last > number:
            log.warning(
                "DISKQUEUE(%s): metadata says %d bytes of %s, it has %d and %d come after it; writing to a new file",
                *(self.name, position, files.path(number), size, last - number),
            )
            self._go_to_new_file(last + 1)
            cut_torn_record(files.path(number), position)
            for later in files.numbers:
                if later > number:
                    cut_torn_record(files.path(later), 0)
            self.depth += count_records(files.path(number), position)
            self.depth += sum(count_records(files.path(later), 0) for later in files.numbers if later > number)
        files.remove(each for each in files.numbers if each < self._read_file)
        if self._read_file < self._write_file and self._read_file not in files.numbers:
            later_files = [each for each in files.numbers if each > self._read_file]
            self._read_file, self._read_at = min(later_files, default=self._write_file), 0
            self._count_again()
        # Where the metadata says that all had been read, nothing but a record torn by the kill may follow.
        end = position if self._read_file == number else files.size(self._read_file)
        path = files.path(self._read_file)
        if self._read_at < end and not count_records(path, self._read_at, most=1):
            self._read_at = 0  # no record begins there: read all of this file again rather than none of it
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

    def _count_again(self) -> None:
        """Set the depth to the records in the files, from the read position on."""
        self.depth = 0
        position = self._read_at
        # Only files that exist: damaged metadata may name any numbers.
        for number in sorted(self._files.numbers | {self._read_file}):
            if not self._read_file <= number <= self._write_file:
                continue
            end = self._write_at if number == self._write_file else None
            self.depth += count_records(self._files.path(number), position, end)
            position = 0
        if not self.depth and self._has_more():
            # An invalid record comes next. Reading it sets it aside, which needs a depth.
            self.depth = 1

    # -- writing -------------------------------------------------------------------------------------

    def put(self, records: Sequence[Record]) -> None:
        """Add at the tail, all or none. Never switches.

        :raises DiskError: if the disk fails; nothing is added then
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
        pack = HEADER.pack
        for timestamp_ns, attempts, message_id, body in records:
            length = HEADER_BYTES + len(body)
            if at and at + length > self._max_bytes_per_file:
                self._write(pieces)
                pieces = []
                at = 0
                self._full_up()
            pieces.append(pack(length - SIZE_BYTES, timestamp_ns, attempts, message_id))
            pieces.append(body)
            at += length
        self._write(pieces)

    def _write(self, pieces: list[bytes]) -> None:
        """Write records, each in two pieces, to the current file."""
        if not pieces:
            return
        path = self._files.path(self._write_file)
        if self._writer < 0:
            anew = 0 if self._write_at else os.O_TRUNC
            self._writer = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | anew, _MODE)
            self._files.numbers.add(self._write_file)
            if not self._write_at:
                self._save_meta()
        data = memoryview(b"".join(pieces))
        at = self._write_at
        with naming(path):
            while data:
                written = os.pwrite(self._writer, data, at)
                at += written
                data = data[written:]
        self._write_at = at
        self.depth += len(pieces) // 2

    def _full_up(self) -> None:
        """Go from the current file to the next."""
        if self._reader is not None and self._read_file == self._write_file:
            self._reader.size = self._write_at
        if self._writer >= 0:
            if len(self._full) >= _MOST_FULL:
                fd, path = self._full[0]
                with naming(path):
                    os.fsync(fd)  # if it fails, the next sync tries again
                del self._full[0]
                os.close(fd)
            self._full.append((self._writer, self._files.path(self._write_file)))
            self._writer = -1
            self._on_unsynced(self, True)
        self._write_file += 1
        self._write_at = 0

    def _take_back(self, number: int, position: int, depth: int) -> None:
        """Undo a put that failed: remove what it wrote."""
        self._files.remove(range(number + 1, self._write_file + 1))
        self._close_writer()
        self._write_file, self._write_at, self.depth = number, position, depth
        with suppress(OSError):
            os.truncate(self._files.path(number), position)
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
        """Remove up to ``count`` from the head, stopping when their bodies have ``max_bytes``. Never switches.

        :raises DiskError: if a file cannot be opened at the moment; nothing is removed then
        """
        taken: list[Record] = []
        while self.depth and len(taken) < count and max_bytes > 0:
            try:
                max_bytes = self._read(taken, count, max_bytes)
            except Damaged as damage:
                self._set_aside(str(damage))
            except OSError as exc:
                if not taken:
                    raise disk_error(exc, "open") from exc
                break
            self._check_tail()
        self._note_operations(len(taken))
        return taken

    def _read(self, taken: list[Record], count: int, max_bytes: int) -> int:
        """Take from the current file only; returns what is left of ``max_bytes``.

        :raises Damaged: if the next record is invalid; those before it have been taken
        :raises OSError: if the file cannot be opened at the moment
        """
        if self._reader is None:
            self._reader = RecordReader(self._files.path(self._read_file), self._read_at)
        reader = self._reader
        end = self._write_at if self._read_file == self._write_file else reader.size
        before = len(taken)
        try:
            return reader.take(taken, end, count, max_bytes)
        finally:
            self._read_at = reader.position
            self.depth -= len(taken) - before
            if self._read_at >= end and self._read_file < self._write_file:
                self._leave_read_file()

    def _leave_read_file(self) -> None:
        """Go to the next file, and remove this one, which is read to its end."""
        number = self._read_file
        self._go_to_next_read_file()
        self._save_meta_if_possible()
        self._files.remove([number])

    def _go_to_next_read_file(self) -> None:
        self._close_reader()
        later = [number for number in self._files.numbers if number > self._read_file]
        self._read_file = min([*later, max(self._read_file + 1, self._write_file)])
        self._read_at = 0

    def _set_aside(self, reason: str) -> None:
        """Rename the file that is read to .bad, and go to the next."""
        number = self._read_file
        log.error(
            "DISKQUEUE(%s): reading at %d of %s - %s; skipping the rest of the file, which becomes .bad",
            *(self.name, self._read_at, self._files.path(number), reason),
        )
        if number == self._write_file:
            self._close_writer()
            self._go_to_new_file(self._write_file + 1)
        self._files.set_aside(number)
        self._go_to_next_read_file()
        self._save_meta_if_possible()

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _has_more(self) -> bool:
        return (self._read_file, self._read_at) < (self._write_file, self._write_at)

    def _check_tail(self) -> None:
        """Make depth and positions agree on whether anything is left."""
        if not self._has_more():
            if self.depth:
                log.error("DISKQUEUE(%s): %d messages are missing", self.name, self.depth)
            self.depth = 0
            if (self._read_file, self._read_at) > (self._write_file, self._write_at):
                self._go_to_new_file(self._read_file + 1)
                self._go_to_next_read_file()
        elif self.depth <= 0:
            self._count_again()

    # -- emptying, closing ---------------------------------------------------------------------------

    def clear(self) -> None:
        """Drop all messages and remove the files, but not those that were set aside."""
        self._close_reader()
        self._close_writer()
        self._close_full()
        self._go_to_new_file(max([self._write_file, *self._files.numbers]) + 1)
        self._read_file, self._read_at = self._write_file, 0
        self.depth = 0
        self._operations = 0
        if self._files.numbers:
            self._save_meta_if_possible()  # one step, so that a kill leaves all of the messages or none
            self._files.remove(self._files.numbers)
        if not self._files.numbers:
            with suppress(OSError):
                self._meta.remove()

    def discard(self) -> None:
        """Drop all messages for good, and remove every file of the queue."""
        self.clear()
        self._files.remove_set_aside()

    def close(self) -> None:
        """Write everything to disk and close the files. Waits for the disk.

        :raises DiskError: if the disk fails
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
        for fd, _ in self._full:
            os.close(fd)
        self._full = []

    # -- syncing -------------------------------------------------------------------------------------

    def begin_sync(self) -> Sync | None:
        """What must be waited for to sync the queue as it is now; None if nothing changed since the last sync.

        :raises OSError: if there are too many open files
        """
        if not self._operations:
            return None
        fds = self._full
        if self._writer >= 0:
            fds = [*fds, (os.dup(self._writer), self._files.path(self._write_file))]
        self._full = []
        self._operations = 0
        return Sync(fds, self._meta.draft(self._meta_text()))

    def end_sync(self, sync: Sync) -> None:
        """Store the metadata of a sync that has run, whether or not it succeeded, unless it was overtaken.

        :raises OSError: if that fails
        """
        if sync.stored:
            self._meta.publish(sync.draft)
        elif self._meta.is_newest(sync.draft):
            self._operations += 1  # have another sync

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
