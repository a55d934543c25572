"""One topic's files: opened, written, rotated, synced and closed as docs/internals 6.1 says. Every method blocks.

A file is noted before it is opened, so that a later run finds what this one did not close (``leftovers``). Whoever has
a file open holds a shared lock on it, so that it is not taken for a leftover. Its name, and those of directories made
for it, are on disk before the first sync returns.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from gnsq_like.durable_file import naming, sync_directory
from gnsq_like.runtime.native import wall_clock
from gnsq_like.tools.to_file.leftovers import OpenFiles
from gnsq_like.tools.to_file.members import Compressor, new_member
from gnsq_like.tools.to_file.outputs import Output
from gnsq_like.tools.to_file.plan import FilePlan, with_revision

logger = logging.getLogger(__name__)

#: Bytes that are compressed or written at once.
_BLOCK_BYTES = 1024 * 1024


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
        #: Of the file that is open; -1 for none. Its name is relative to the plan's directory.
        self._descriptor = -1
        self._file_name = ""
        self._opened_at = 0.0
        #: Bytes by which the size is judged: those of the file when it was opened, and those written to it since.
        self._size = 0
        #: The member that is being written; None before its first byte.
        self._member: Compressor | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a file."""
        return self._descriptor >= 0

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
        """Wait until all that was written is on disk, and can be read up to there."""
        if self._descriptor < 0:
            return
        if self._member is not None:
            self._write_all(self._member.flush())
            self._member = None
        with naming(self._path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Sync and close the file, and hand it to the output; nothing if there is none."""
        if self._descriptor < 0:
            return
        if self._plan.compression and self._member is None and not os.fstat(self._descriptor).st_size:
            # An empty file is not a compressed one.
            self._member = new_member(self._plan.compression, self._plan.compression_level)
        self.sync()
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
        self._output.take(self._path, self._name, self._revision)
        self._notes.remove(self._file_name)

    def abandon(self) -> None:
        """Close the file as it is, without syncing; for the end after an error."""
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
        made = make_directories(os.path.dirname(path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        flags |= os.O_EXCL if self._plan.is_exclusive else os.O_APPEND
        if self._plan.is_exclusive and os.path.lexists(path):
            return False
        # Before the file, so that there is no moment in which a crash leaves a file without a note.
        self._notes.add(name)
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileExistsError:  # another process was faster, and has noted it, too
            return False
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        size = os.fstat(descriptor).st_size
        if self._plan.rotate_size and size > self._plan.rotate_size:
            os.close(descriptor)
            self._notes.remove(name)
            return False
        for directory in {os.path.dirname(path), *made}:
            sync_directory(directory)
        logger.info("[%s] opening %s", self._topic, path)
        self._descriptor, self._file_name, self._size = descriptor, name, size
        return True

    def _write(self, block: list[bytes], size: int) -> None:
        if not block:
            return
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
        return os.path.join(self._plan.directory, self._file_name)


def make_directories(path: str) -> list[str]:
    """Make a directory and its parents; returns the directories in which one was made."""
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for each in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(each, 0o770)
    return [os.path.dirname(each) or "." for each in missing]
