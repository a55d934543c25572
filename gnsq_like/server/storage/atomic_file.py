"""A small file that is replaced as a whole, from a hub that must not wait for the disk.

The slow part is in :class:`Draft`, which may be stored in another thread. A draft that was superseded meanwhile, by a
newer one or by ``remove``, is discarded.
"""

from __future__ import annotations

import os
from contextlib import suppress

from gnsq_like.runtime.files import remove_file, replace_file, temporary_beside, write_file

_MODE = 0o600


class Draft:
    """New content that is not in place yet."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self._data = data

    def store(self) -> None:
        """Write it beside the file and wait for the disk. In any thread; touches nothing else.

        :raises OSError: if it cannot be written; nothing is left then
        """
        write_file(self.path, self._data, mode=_MODE)


class AtomicFile:
    """The file. No call switches; only ``replace`` with ``sync`` waits for the disk."""

    def __init__(self, path: str) -> None:
        self.path = path
        #: The newest draft; None when the file was replaced or removed since.
        self._newest: Draft | None = None

    def draft(self, data: bytes) -> Draft:
        """New content, to be stored and then published."""
        self._newest = Draft(temporary_beside(self.path), data)
        return self._newest

    def is_newest(self, draft: Draft) -> bool:
        """Whether the draft has not been superseded."""
        return draft is self._newest

    def publish(self, draft: Draft) -> None:
        """Put a stored draft in place, unless it was superseded.

        :raises OSError: if that fails; nothing is left of it then
        """
        try:
            if self.is_newest(draft):
                os.replace(draft.path, self.path)
        finally:
            remove_file(draft.path)  # unless it is in place now

    def replace(self, data: bytes, sync: bool) -> None:
        """Replace the content at once.

        :param sync: wait until it is on the disk
        :raises OSError: if it cannot be written; the old content is still there then
        """
        self._newest = None
        replace_file(self.path, data, mode=_MODE, sync=sync)

    def remove(self) -> None:
        """Remove the file, if it exists."""
        self._newest = None
        with suppress(FileNotFoundError):
            os.unlink(self.path)
