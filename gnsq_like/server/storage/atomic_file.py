"""A small file that is replaced as a whole: its readers, and a machine that crashes, see the old or the new one.

The slow part, waiting for the disk, is a :class:`Draft` that may be stored in another thread. A draft that
was overtaken meanwhile, by a newer one or by ``remove``, is thrown away.
"""

from __future__ import annotations

import itertools
import os
from contextlib import suppress

#: Numbers drafts, of all files: two never have the same name.
_versions = itertools.count(1)


class Draft:
    """New content that is not in place yet."""

    def __init__(self, path: str, data: bytes, version: int) -> None:
        self.path = path
        self.version = version
        self._data = data

    def store(self, sync: bool = True) -> None:
        """Write it beside the file. In any thread; touches nothing else.

        :param sync: wait until it is on the disk
        :raises OSError: if it cannot be written; nothing is left then
        """
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            data = memoryview(self._data)
            while data:  # a disk that is all but full takes a part, and says nothing
                data = data[os.write(fd, data) :]
            if sync:
                os.fsync(fd)
        except OSError:
            self.drop()
            raise
        finally:
            os.close(fd)

    def drop(self) -> None:
        """Remove what was stored."""
        with suppress(OSError):
            os.unlink(self.path)


class AtomicFile:
    """The file. All calls never switch, and wait for the disk only if told so."""

    def __init__(self, path: str) -> None:
        self.path = path
        #: The newest draft's; 0 for none.
        self._version = 0

    def draft(self, data: bytes) -> Draft:
        """New content, to be stored and then published."""
        self._version = next(_versions)
        return Draft(f"{self.path}.{self._version}.tmp", data, self._version)

    def is_newest(self, draft: Draft) -> bool:
        """Whether nothing has overtaken it."""
        return draft.version == self._version

    def publish(self, draft: Draft) -> None:
        """Put a stored draft in place, unless it was overtaken.

        :raises OSError: if that fails; nothing is left of it then
        """
        try:
            if self.is_newest(draft):
                os.replace(draft.path, self.path)
        finally:
            draft.drop()  # unless it is in place now

    def replace(self, data: bytes, sync: bool) -> None:
        """New content at once.

        :param sync: wait until it is on the disk
        :raises OSError: if it cannot be written; the old content is still there then
        """
        draft = self.draft(data)
        draft.store(sync)
        self.publish(draft)

    def remove(self) -> None:
        """Remove the file, if it is there."""
        self._version = 0
        with suppress(FileNotFoundError):
            os.unlink(self.path)
