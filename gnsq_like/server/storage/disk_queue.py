"""A queue of messages in files, in the format of NSQ's own disk queue, so that either reads what the other wrote.

``NAME.diskqueue.000000.dat`` and so on hold records. A record that would grow its file beyond
``max_bytes_per_file`` begins the next file; a file is removed when it has been read to its end. The three
lines of ``NAME.diskqueue.meta.dat`` are the queue's state: ``depth``, ``file,position`` of the next read, the
same of the next write.

The metadata lags behind the data: it is updated when files begin or end, and with each sync, and never covers unsynced
messages. Later messages are found by scanning the files, so nothing written is lost when the process is killed, and
messages read since come again. All files are synced when the queue is opened: a killed process has left some unsynced,
which no later sync would touch, and which a crash could tear.

Damage costs only the messages that it covers (:mod:`records`). Files found at a restart are never written to: writing
continues with a new file, so that no new message stands behind old damage. A file in which something was skipped is
kept as ``.bad``. The search behind damage takes steps, between which :meth:`DiskQueue.take` returns.

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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from gnsq_like.runtime.files import naming
from gnsq_like.server.storage.atomic_file import AtomicFile, Draft
from gnsq_like.server.storage.queue_files import QueueFiles, RecordWriter
from gnsq_like.server.storage.queue_state import Place, QueueState
from gnsq_like.server.storage.records import HEADER, HEADER_BYTES, SIZE_BYTES, Damaged, Record, RecordReader

log = logging.getLogger("gnsq_like.nsqd")


class DiskError(Exception):
    """The disk failed; the text is nsqd's."""


def disk_error(exc: OSError, action: str) -> DiskError:
    """The error in Go's words: ``write /data/t.diskqueue.000000.dat: no space left on device``."""
    place = f" {exc.filename}" if exc.filename else ""
    return DiskError(f"{action}{place}: {(exc.strerror or str(exc)).lower()}")


class Sync:
    """The wait for a queue to be safe on the disk."""

    def __init__(self, fds: list[tuple[int, str]], draft: Draft, mark: tuple[Place, int]) -> None:
        self._fds = fds
        #: The end of what it covers.
        self.mark = mark
        #: Descriptors that could not be synced, with the paths of their files, once :meth:`run` has failed.
        self.left: list[tuple[int, str]] = []
        self.draft = draft
        #: Whether it succeeded.
        self.stored = False

    def run(self) -> None:
        """Wait for the disk. In any thread, once.

        :raises OSError: if the disk fails
        """
        while self._fds:
            fd, path = self._fds[0]
            try:
                with naming(path):
                    os.fsync(fd)
            except OSError:
                self.left = self._fds
                raise
            del self._fds[0]
            os.close(fd)
        self.draft.store()
        self.stored = True


class DiskQueue:
    """The queue; call :meth:`open` first.

    :param directory: the directory of its files
    :param name: the beginning of their names: a topic, or "topic:channel"
    :param max_bytes_per_file: the largest file, unless its first message is larger
    :param sync_every: messages written and read after which a sync is due
    :param on_unsynced: called when there is something to sync, with the queue and whether the sync is due now
    :param on_search: called when :meth:`take` has searched damage for some ms and must be called again to go on
    """

    def __init__(
        self,
        directory: str,
        name: str,
        max_bytes_per_file: int = 100 * 1024 * 1024,
        sync_every: int = 2500,
        on_unsynced: Callable[[DiskQueue, bool], None] = lambda queue, now: None,
        on_search: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._files = QueueFiles(directory, name)
        self._meta = AtomicFile(self._files.meta_path)
        self._state = QueueState(self._files)
        self._max_bytes_per_file = max_bytes_per_file
        self._sync_every = sync_every
        self._on_unsynced = on_unsynced
        self._on_search = on_search
        #: The file that is read, if it is open.
        self._reader: RecordReader | None = None
        self._writer = RecordWriter()
        #: Messages written and read since the last sync.
        self._operations = 0

    @property
    def depth(self) -> int:
        """Messages in the queue."""
        return self._state.depth

    def open(self, names: Iterable[str] = (), is_known: bool = True) -> None:
        """Restore the queue's state. Waits for the disk.

        :param names: the names of its existing files
        :param is_known: whether nsqd.dat names the queue, so that files without metadata are its messages
        """
        self._files.note(names)
        state, files = self._state, self._files
        if not state.restore(is_known):
            self.clear()
        elif not state.depth and files.numbers:
            for number in state.unread_files():
                log.error("DISKQUEUE(%s): no message in %s, which is kept as .bad", self.name, files.path(number))
                files.keep_as_bad(number)
            self.clear()
        files.sync()
        state.note_synced(state.mark)

    # -- writing -------------------------------------------------------------------------------------

    def put(self, records: Sequence[Record]) -> None:
        """Add at the tail, all or none. Never switches.

        :raises DiskError: if the disk fails; nothing is added then
        """
        before = self._state.mark
        try:
            self._append(records)
        except OSError as exc:
            action = "write" if self._writer.is_open else "open"
            self._take_back(*before)
            raise disk_error(exc, action) from exc
        finally:
            self._note_operations(len(records))

    def _append(self, records: Sequence[Record]) -> None:
        pieces: list[bytes] = []
        at = self._state.write.at
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
        state = self._state
        number, at = state.write
        if not self._writer.is_open:
            self._writer.open(self._files.path(number), anew=not at)
            self._files.numbers.add(number)
            if not at:
                self._meta.replace(state.to_synced_meta(), sync=False)
        data = b"".join(pieces)
        self._writer.write(data, at)
        state.write = Place(number, at + len(data))
        state.depth += len(pieces) // 2
        state.written += len(pieces) // 2

    def _full_up(self) -> None:
        """Go from the current file to the next."""
        number, at = self._state.write
        if self._reader is not None and self._state.read.number == number:
            self._reader.size = at
        if self._writer.is_open:
            self._writer.full_up()
            self._on_unsynced(self, True)
        self._state.write = Place(number + 1, 0)

    def _take_back(self, write: Place, written: int) -> None:
        """Undo a put that failed: remove its records."""
        state = self._state
        self._files.remove(range(write.number + 1, state.write.number + 1))
        self._writer.leave()
        state.depth -= state.written - written
        state.write, state.written = write, written
        self._files.cut(write.number, write.at)
        self._save_meta()

    # -- reading -------------------------------------------------------------------------------------

    def take(self, count: int, max_bytes: int) -> list[Record]:
        """Remove up to ``count`` from the head, stopping when their bodies have ``max_bytes``. Never switches.

        Returns none from a queue that is not empty while it searches for the next record behind damage.

        :raises DiskError: if a file cannot be opened at the moment; nothing is removed then
        """
        taken: list[Record] = []
        try:
            while self.depth and len(taken) < count and max_bytes > 0:
                try:
                    max_bytes = self._read(taken, count, max_bytes)
                except Damaged as damage:
                    if not self._skip(str(damage)):
                        self._on_search()
                        break
                self._state.check_tail()
        except OSError as exc:
            if not taken:
                raise disk_error(exc, "open") from exc
        self._note_operations(len(taken))
        return taken

    def _read(self, taken: list[Record], count: int, max_bytes: int) -> int:
        """Take from the current file only; returns what is left of ``max_bytes``.

        :raises Damaged: if the next record is invalid; those before it have been taken
        :raises OSError: if the file cannot be opened at the moment
        """
        state = self._state
        number, at = state.read
        if self._reader is None:
            self._reader = RecordReader(self._files.path(number), at)
        reader = self._reader
        end = state.write.at if number == state.write.number else reader.size
        before = len(taken)
        try:
            return reader.take(taken, end, count, max_bytes)
        finally:
            state.read = Place(number, reader.position)
            state.depth -= len(taken) - before
            if reader.position >= end and number < state.write.number:
                self._go_to_next_file()
                self._files.remove([number])

    def _go_to_next_file(self) -> None:
        """Leave the file that is read."""
        self._close_reader()
        self._state.go_to_next_file()
        self._save_meta()

    def _skip(self, reason: str) -> bool:
        """Go on behind damage; returns whether the search for the next record has ended."""
        state, reader = self._state, self._reader
        number, at = state.read
        if reader is None or not reader.is_searching:
            log.error(
                "DISKQUEUE(%s): reading at %d of %s - %s; searching for the next message, and keeping the file as .bad",
                *(self.name, at, self._files.path(number), reason),
            )
            if number == state.write.number:
                self._full_up()
        if reader is None:  # the file does not exist
            self._files.numbers.discard(number)
            self._go_to_next_file()
            return True
        self._files.keep_as_bad(number)
        if not reader.skip(reader.size):
            return False
        log.error("DISKQUEUE(%s): skipped %d bytes", self.name, reader.position - at)
        state.read = Place(number, reader.position)
        if reader.position >= reader.size:
            self._go_to_next_file()
            self._files.remove([number])
        return True

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # -- emptying, closing ---------------------------------------------------------------------------

    def clear(self) -> None:
        """Drop all messages and remove the files, but not those kept as ``.bad``."""
        self._close_reader()
        self._writer.close()
        self._state.begin_anew()
        self._operations = 0
        if self._files.numbers:
            self._save_meta()  # one step, so that a kill leaves all of the messages or none
            self._files.remove(self._files.numbers)
        if not self._files.numbers:
            with suppress(OSError):
                self._meta.remove()

    def discard(self) -> None:
        """Drop all messages for good, and remove every file of the queue."""
        self.clear()
        self._files.remove_bad()

    def close(self) -> None:
        """Write everything to disk and close the files. Waits for the disk.

        :raises DiskError: if the disk fails
        """
        try:
            sync = self.begin_sync()
            if sync is not None:
                try:
                    sync.run()
                finally:
                    self.end_sync(sync)
        except OSError as exc:
            raise disk_error(exc, "sync") from exc
        finally:
            self._close_reader()
            self._writer.close()

    # -- syncing -------------------------------------------------------------------------------------

    def begin_sync(self) -> Sync | None:
        """The sync of the queue as it is now, to be run; None if nothing changed since the last sync.

        :raises OSError: if there are too many open files
        """
        if not self._operations:
            return None
        fds = self._writer.take_unsynced()
        self._operations = 0
        return Sync(fds, self._meta.draft(self._state.to_meta()), self._state.mark)

    def end_sync(self, sync: Sync) -> None:
        """Store the metadata of a sync that has run, whether or not it succeeded, unless it was superseded.

        :raises OSError: if that fails
        """
        if sync.stored:
            self._state.note_synced(sync.mark)
            self._meta.publish(sync.draft)
            return
        self._writer.keep(sync.left, [self._files.path(number) for number in self._files.numbers])
        if self._meta.is_newest(sync.draft):
            self._operations += 1  # have another sync

    def _note_operations(self, count: int) -> None:
        if count:
            self._operations += count
            self._on_unsynced(self, self._operations >= self._sync_every)

    def _save_meta(self) -> None:
        """Store the metadata without waiting for the disk, if possible."""
        try:
            self._meta.replace(self._state.to_synced_meta(), sync=False)
        except OSError as exc:
            log.error("DISKQUEUE(%s): failed to write metadata - %s", self.name, exc)
