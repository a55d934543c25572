"""The files of one disk queue (docs/internals 2.2): their names, which of them exist, and writing them.

``NAME.diskqueue.000000.dat`` and so on hold messages. A damaged one is renamed to ``….dat.bad`` when it has been read,
so that the skipped part can be inspected; until then, an empty file has that name. New files get numbers above all.

A file that could not be removed is still counted, so that the queue does not take it for one of its own later.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from contextlib import suppress

from gnsq_like.runtime.files import check_own, naming, open_own

log = logging.getLogger("gnsq_like.nsqd")

#: A queue's data file, with the queue's name, the file's number, and ".bad" if it is damaged.
DATA_FILE = re.compile(r"(?P<queue>.+)\.diskqueue\.(?P<number>\d{6,})\.dat(?P<bad>\.bad)?")
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
        #: Those of damaged files.
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
        """Remove data files, if they exist; damaged ones are renamed."""
        for number in list(numbers):
            path = self.path(number)
            if number in self._bad:
                with suppress(OSError):
                    os.replace(path, path + ".bad")
            if self._unlink(path):
                self.numbers.discard(number)

    def next_number(self, least: int = 0) -> int:
        """A number from ``least`` on that comes after those of all files."""
        return max([least, *(number + 1 for number in self.numbers | self._bad)])

    def keep_as_bad(self, number: int) -> None:
        """Note that a file is damaged, also for the time after a restart: it will be renamed instead of removed."""
        if number not in self._bad:
            self._bad.add(number)
            with suppress(OSError):
                os.close(open_own(self.path(number) + ".bad", os.O_WRONLY | os.O_CREAT, _MODE))

    def remove_bad(self) -> None:
        """Remove damaged files."""
        self._bad = {number for number in self._bad if not self._unlink(self.path(number) + ".bad")}

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
