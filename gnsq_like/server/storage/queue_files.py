"""The files of one disk queue (docs/internals 2.2): their names, and which of them exist.

``NAME.diskqueue.000000.dat`` and so on hold messages; a damaged one is set aside as ``….dat.bad``.

A file that could not be removed is still counted, so that the queue does not take it for one of its own later.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from contextlib import suppress

log = logging.getLogger("gnsq_like.nsqd")

#: A queue's data file, with the queue's name, the file's number, and ".bad" if it was set aside.
DATA_FILE = re.compile(r"(?P<queue>.+)\.diskqueue\.(?P<number>\d{6,})\.dat(?P<bad>\.bad)?")


class QueueFiles:
    """The data files of the queue ``name`` in ``directory``."""

    def __init__(self, directory: str, name: str) -> None:
        self._name = name
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
                log.error("DISKQUEUE(%s): failed to sync %s - %s", self._name, self.path(number), exc)

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
            log.error("DISKQUEUE(%s): failed to remove data file - %s", self._name, exc)
            return False
        return True
