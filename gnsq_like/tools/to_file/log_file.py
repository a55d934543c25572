"""One topic's files: opened, written, rotated, synced and closed as in docs/internals 6.1. Every method blocks.

A file is noted before it is created, and again when it is open and before its first byte, so that a later run finds
files that this one did not close (``leftovers``). A process holds a shared lock on its open files, so that they are not
taken for leftovers. A file's name, and those of directories created for it, are on disk before the first sync returns.

A file that was renamed or removed, by logrotate for example, is noticed at the next sync, and another one is opened.
Messages that were not synced before the file was removed are written again.

No link is followed below the directory of files, and where others may write, a file that may be theirs is refused
(``own_files``): the default directory is /tmp.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from gnsq_like.runtime.files import directory_below, naming, open_own
from gnsq_like.runtime.native import wall_clock
from gnsq_like.tools.to_file.leftovers import Note, OpenFiles
from gnsq_like.tools.to_file.members import Compressor, new_member
from gnsq_like.tools.to_file.outputs import Output
from gnsq_like.tools.to_file.plan import FilePlan, with_revision

logger = logging.getLogger(__name__)

#: Bytes that are compressed or written at once.
_BLOCK_BYTES = 1024 * 1024
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK


class LogFile:
    """The files of one topic, one after the other.

    :param output: where they go when they are closed
    :param clock: seconds since the epoch
    """

    def __init__(self, plan: FilePlan, topic: str, output: Output, clock: Callable[[], float] = wall_clock) -> None:
        self._plan = plan
        self._topic = topic
        self._output = output
        self._clock = clock
        self._template = plan.template(topic)
        self._notes = OpenFiles(plan.directory)
        #: The current name, with <REV> left in it, and its number.
        self._name = ""
        self._revision = 0
        #: Of the file that is open; -1 for none.
        self._descriptor = -1
        #: Its note; its name is relative to the plan's directory.
        self._note = Note("")
        self._opened_at = 0.0
        #: Bytes by which the size is judged: those of the file when it was opened, and those written to it since.
        self._size = 0
        #: The member that is being written; None before its first byte.
        self._member: Compressor | None = None
        #: Messages written since the last sync.
        self._unsynced: list[bytes] = []

    def write(self, bodies: Sequence[bytes], sync: bool) -> bool:
        """Write messages, each with a newline; rotate where that is due.

        :param sync: whether to sync them
        :returns: whether all that was written so far is synced
        :raises OSError: none of these messages, and none that were not synced before, may be finished
        """
        if bodies and self._is_due_by_time():
            self._next_file()
            sync = True
        limit = self._plan.rotate_size
        block: list[bytes] = []
        size = 0
        for body in bodies:
            if limit and self._size > limit:
                self._write(block, size)
                block, size = [], 0
                self._next_file()
                sync = True
            block.append(body)
            size += len(body) + 1
            self._size += len(body) + 1
            if size >= _BLOCK_BYTES:
                self._write(block, size)
                block, size = [], 0
        self._write(block, size)
        if sync:
            self.sync()
        return sync

    def tick(self) -> None:
        """Rotate if that is due by time or size, though there is no message. Syncs the file that it closes."""
        if not self._is_due_by_time() and not (self._plan.rotate_size and self._size > self._plan.rotate_size):
            return
        if self._plan.skip_empty_files:
            self.close()
        else:
            self._next_file()

    def sync(self) -> None:
        """Wait until everything written is on disk, and can be read up to there.

        If the file has been renamed or removed, there is none afterwards, or a new one.
        """
        if self._descriptor < 0:
            return
        if self._member is not None:
            self._write_all(self._member.flush())
            self._member = None
        with naming(self._path):
            os.fsync(self._descriptor)
        unsynced, self._unsynced = self._unsynced, []
        state = os.fstat(self._descriptor)
        if _is_at(self._path, state):
            return
        self._notes.remove(self._note)
        self.abandon()
        if state.st_nlink:
            logger.warning("[%s] %s was renamed: going on in another file", self._topic, self._path)
        else:
            logger.warning("[%s] %s was removed: writing %d messages again", self._topic, self._path, len(unsynced))
            self.write(unsynced, sync=True)

    def close(self) -> None:
        """Sync and close the file, and hand it to the output; nothing if there is none."""
        if self._descriptor < 0:
            return
        if self._plan.compression and self._member is None and not os.fstat(self._descriptor).st_size:
            # An empty file is not a compressed one.
            self._member = new_member(self._plan.compression, self._plan.compression_level)
        self.sync()
        if self._descriptor < 0:  # it was renamed
            return
        # While it is locked, so that no other process takes it for a leftover.
        self._output.take(self._note.name, self._name, self._revision)
        self._notes.remove(self._note)
        self.abandon()

    def abandon(self) -> None:
        """Close the file without syncing, and without handing it to the output."""
        self._member = None
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    # -- opening ------------------------------------------------------------------------------------

    def _is_due_by_time(self) -> bool:
        now = self._clock()
        if self._descriptor < 0 or self._plan.dated(self._template, now) != self._name:
            return True
        interval = self._plan.rotate_interval
        return bool(interval) and now - self._opened_at > interval

    def _next_file(self) -> None:
        """Close the file, and open the next that is free and not too large."""
        self.close()
        self._opened_at = self._clock()
        name = self._plan.dated(self._template, self._opened_at)
        self._revision = 0 if name != self._name else self._revision + 1
        self._name = name
        while not self._open(with_revision(name, self._revision)):
            self._revision += 1

    def _open(self, name: str) -> bool:
        """Open a file; whether it may be written to."""
        if self._plan.moves and self._output.exists(name):
            return False
        path = os.path.join(self._plan.directory, name)
        with directory_below(self._plan.directory, os.path.dirname(name)) as directory:
            made = not os.path.lexists(path)
            if made:
                self._notes.add(Note(name))
            elif self._plan.is_exclusive:
                return False
            flags = _FLAGS | os.O_CREAT | os.O_EXCL if made else _FLAGS
            try:
                descriptor = open_own(path, flags, directory=directory)
            except (FileExistsError, FileNotFoundError):  # another process was faster
                return self._open(name)
            try:
                self._lock(descriptor, path)
                is_there = _is_at(os.path.basename(path), os.fstat(descriptor), directory)
                note = Note.of(name, descriptor, directory, made=made)
                is_full = bool(self._plan.rotate_size) and note.size > self._plan.rotate_size
                if is_there and not is_full:
                    self._notes.add(note)
                    os.fsync(directory)
            except BaseException:
                os.close(descriptor)
                raise
        if not is_there or is_full:
            os.close(descriptor)
            return not is_there and self._open(name)
        logger.info("[%s] opening %s", self._topic, path)
        self._descriptor, self._note, self._size = descriptor, note, note.size
        return True

    def _lock(self, descriptor: int, path: str) -> None:
        """Take the shared lock; another process that recovers the file has it alone until that is done."""
        with suppress(OSError):  # some file systems have no locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.warning("[%s] waiting for another process to release %s", self._topic, path)
                fcntl.flock(descriptor, fcntl.LOCK_SH)

    def _write(self, block: list[bytes], size: int) -> None:
        if not block:
            return
        self._unsynced += block
        data = b"\n".join([*block, b""])
        if self._plan.compression:
            if self._member is None:
                self._member = new_member(self._plan.compression, self._plan.compression_level)
            data = self._member.compress(data)
        self._write_all(data)

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        with naming(self._path):
            while rest:  # an almost full disk accepts part of it without an error
                rest = rest[os.write(self._descriptor, rest) :]

    @property
    def _path(self) -> str:
        return os.path.join(self._plan.directory, self._note.name)


def _is_at(path: str, file: os.stat_result, directory: int | None = None) -> bool:
    """Whether a path leads to a file."""
    try:
        return os.path.samestat(os.stat(path, dir_fd=directory, follow_symlinks=False), file)
    except (FileNotFoundError, NotADirectoryError):
        return False
