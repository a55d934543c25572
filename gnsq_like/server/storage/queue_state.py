"""Where a disk queue is read and written, and how many messages lie between: its metadata (docs/internals 2.2).

The metadata lags behind the files, and a crash may have damaged either. :meth:`QueueState.restore` finds out what there
is; afterwards the read position is never behind the write position.
"""

from __future__ import annotations

import logging
import os
import re
from typing import NamedTuple

from gnsq_like.server.storage.queue_files import QueueFiles, count_records, cut_torn_record

log = logging.getLogger("gnsq_like.nsqd")

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

    def to_meta(self) -> bytes:
        """The content of the metadata's file."""
        return b"%d\n%d,%d\n%d,%d\n" % (self.depth, *self.read, *self.write)

    @property
    def has_more(self) -> bool:
        """Whether anything is left to read, valid or not."""
        return self.read < self.write

    def go_to_next_file(self) -> None:
        """Continue reading in the next file that exists, or in the one that is written next."""
        self.read = Place(min(each for each in {*self._files.numbers, self.write.number} if each > self.read.number), 0)

    def check_tail(self) -> None:
        """Make depth and positions agree on whether anything is left."""
        if not self.has_more:
            if self.depth:
                log.error("DISKQUEUE(%s): %d messages are missing", self._files.name, self.depth)
            self.depth = 0
        elif self.depth <= 0:
            self.count_again()

    def count_again(self) -> None:
        """Set the depth to the records in the files, from the read position on."""
        self.depth = 0
        position = self.read.at
        # Only files that exist: damaged metadata may name any numbers.
        for number in sorted(self._files.numbers | {self.read.number}):
            if not self.read.number <= number <= self.write.number:
                continue
            end = self.write.at if number == self.write.number else None
            self.depth += count_records(self._files.path(number), position, end)
            position = 0
        if not self.depth and self.has_more:
            # An invalid record comes next. Reading it sets it aside, which needs a depth.
            self.depth = 1

    # -- restoring -----------------------------------------------------------------------------------

    def restore(self, is_known: bool) -> bool:
        """Find out what is in the files; returns whether they are the queue's.

        :param is_known: whether nsqd.dat names the queue, so that files without metadata are its messages
        """
        files = self._files
        if self._load():
            self._continue_from_meta()
        elif files.numbers and (is_known or os.path.exists(files.meta_path)):
            log.warning("DISKQUEUE(%s): no usable metadata, taking all of %d files", files.name, len(files.numbers))
            for number in files.numbers:
                cut_torn_record(files.path(number), 0)
            self.read = Place(min(files.numbers), 0)
            self.write = Place(max(files.numbers) + 1, 0)
            self.count_again()
        elif files.numbers:
            log.warning("DISKQUEUE(%s): no metadata, removing all of %d files", files.name, len(files.numbers))
            return False
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
        size = files.size(number)
        last = max([number, *files.numbers])
        if size != position or last > number:
            log.warning(
                "DISKQUEUE(%s): metadata says %d bytes of %s, it has %d and %d come after it; writing to a new file",
                *(files.name, position, files.path(number), size, last - number),
            )
            self.write = Place(last + 1, 0)
            cut_torn_record(files.path(number), position)
            self.depth += count_records(files.path(number), position)
            for later in files.numbers:
                if later > number:
                    cut_torn_record(files.path(later), 0)
                    self.depth += count_records(files.path(later), 0)
        files.remove(each for each in files.numbers if each < self.read.number)
        if self.read.number < self.write.number and self.read.number not in files.numbers:
            self.go_to_next_file()
            self.count_again()
        # Where the metadata says that all had been read, nothing but a record torn by the kill may follow.
        end = position if self.read.number == number else files.size(self.read.number)
        path = files.path(self.read.number)
        if self.read.at < end and not count_records(path, self.read.at, most=1):
            self.read = Place(self.read.number, 0)  # no record begins there: read all of this file rather than none
            self.count_again()
        self.check_tail()
