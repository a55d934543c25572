"""A disk queue's metadata: the positions of reading and writing, and the number of messages between (docs/internals
2.2).

The metadata lags behind the files, and a crash may have damaged either. :meth:`QueueState.restore` finds out what there
is; afterwards the read position is never behind the write position.
"""

from __future__ import annotations

import logging
import os
import re
from typing import NamedTuple

from gnsq_like.server.storage.queue_files import QueueFiles
from gnsq_like.server.storage.records import count_records, is_at_record

log = logging.getLogger("gnsq_like.nsqd")

_META_TEXT = b"%d\n%d,%d\n%d,%d\n"
#: nsqd's numbers have 64 bits, so longer ones do not match.
_META = re.compile(rb"(-?\d{1,18})\n(\d{1,18}),(\d{1,18})\n(\d{1,18}),(\d{1,18})\n")


class Place(NamedTuple):
    """A position in one of the files."""

    number: int
    at: int


class QueueState:
    """The state of the queue in ``files``: empty until :meth:`restore`."""

    def __init__(self, files: QueueFiles) -> None:
        self._files = files
        #: Messages in the queue.
        self.depth = 0
        #: The next read and the next write.
        self.read = Place(0, 0)
        self.write = Place(0, 0)
        #: Records written since the queue was opened.
        self.written = 0
        #: Up to where all is on the disk, and how many of the records written are before that.
        self._synced = self.write, 0

    def to_meta(self) -> bytes:
        """The content of the metadata's file."""
        return _META_TEXT % (self.depth, *self.read, *self.write)

    def to_synced_meta(self) -> bytes:
        """The metadata without what has not been synced: a crash may lose that, but not what the metadata names."""
        place, written = self._synced
        write = max(place, Place(self.read.number, 0))
        return _META_TEXT % (max(0, self.depth - self.written + written), *min(self.read, write), *write)

    @property
    def mark(self) -> tuple[Place, int]:
        """The end of what has been written, for :meth:`note_synced`."""
        return self.write, self.written

    def note_synced(self, mark: tuple[Place, int]) -> None:
        """All that was written before this mark is on the disk, or gone."""
        self._synced = max(self._synced, mark)

    @property
    def has_more(self) -> bool:
        """Whether anything is left to read, valid or not."""
        return self.read < self.write

    def go_to_next_file(self) -> None:
        """Continue reading in the next file that exists, or in the one that is written next."""
        self.read = Place(min(each for each in {*self._files.numbers, self.write.number} if each > self.read.number), 0)

    def unread_files(self) -> list[int]:
        """The numbers of files that have something left to read, valid or not."""
        files, (number, at) = self._files, self.read
        return [each for each in sorted(files.numbers) if each > number or (each == number and files.size(each) > at)]

    def begin_anew(self) -> None:
        """Drop all messages, and continue with a new file."""
        self.read = self.write = Place(self._files.next_number(self.write.number + 1), 0)
        self.depth = 0
        self.note_synced(self.mark)

    def check_tail(self) -> None:
        """Make depth and positions agree on whether anything is left."""
        if not self.has_more:
            if self.depth:
                log.error("DISKQUEUE(%s): %d messages are missing", self._files.name, self.depth)
            self.depth = 0
        elif self.depth <= 0:
            self.depth = 1  # more than the metadata said; counting might take seconds

    # -- restoring -----------------------------------------------------------------------------------

    def restore(self, is_known: bool) -> bool:
        """Read the state from the files; returns whether they are the queue's. Writing continues with a new file.

        :param is_known: whether nsqd.dat names the queue, so that files without metadata are its messages
        """
        files = self._files
        if self._load():
            self._continue_from_meta()
        elif files.numbers and (is_known or os.path.exists(files.meta_path)):
            log.warning("DISKQUEUE(%s): no usable metadata, taking all of %d files", files.name, len(files.numbers))
            self.read = Place(min(files.numbers), 0)
            self.write = Place(files.next_number(), 0)
            self._count_all()
        elif files.numbers:
            log.warning("DISKQUEUE(%s): no metadata, removing all of %d files", files.name, len(files.numbers))
            return False
        else:
            self.read = self.write = Place(files.next_number(), 0)
        return True

    def _load(self) -> bool:
        path, name = self._files.meta_path, self._files.name
        try:
            with open(path, "rb") as file:
                found = _META.match(file.read())
        except FileNotFoundError:
            return False
        except OSError as exc:
            log.error("DISKQUEUE(%s): failed to read metadata - %s", name, exc)
            return False
        if found is None:
            log.error("DISKQUEUE(%s): damaged metadata in %s", name, path)
            return False
        depth, *positions = map(int, found.groups())
        read, write = Place(*positions[:2]), Place(*positions[2:])
        if read > write:
            log.error("DISKQUEUE(%s): %s says that more was read than written", name, path)
            return False
        self.depth, self.read, self.write = depth, read, write
        return True

    def _continue_from_meta(self) -> None:
        files = self._files
        number, position = self.write
        self.write = Place(files.next_number(number + 1), 0)
        size = files.size(number)
        later = [each for each in files.numbers if each > number]
        if size != position or later:
            log.warning(
                "DISKQUEUE(%s): metadata says %d bytes of %s, it has %d and %d files come after it",
                *(files.name, position, files.path(number), size, len(later)),
            )
            self.depth += count_records(files.path(number), position)
            self.depth += sum(count_records(files.path(each)) for each in later)
        files.remove(each for each in files.numbers if each < self.read.number)
        path = files.path(self.read.number)
        if self.read.at >= files.size(self.read.number):
            is_right = self.read == (number, position) or self.read.number in files.numbers
            self.go_to_next_file()
        else:
            is_right = is_at_record(path, self.read.at)
            if not is_right:
                self.read = Place(self.read.number, 0)  # read all of this file rather than none
        if not is_right or size < position or self.depth <= 0:
            self._count_all()
        if not self.has_more:
            self.depth = 0

    def _count_all(self) -> None:
        """Set the depth to the records in the files, from the read position on."""
        self.depth = 0
        for number in self.unread_files():
            at = self.read.at if number == self.read.number else 0
            self.depth += count_records(self._files.path(number), at)
