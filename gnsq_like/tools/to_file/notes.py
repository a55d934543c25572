"""Which files are open, noted on disk, so that a later run finds what this one did not close."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress

from gnsq_like.durable_file import replace_file, sync_directory


class OpenFiles:
    """The notes in a hidden directory beside the files; one for each user, because that may be in /tmp.

    :param directory: that of files in progress
    """

    def __init__(self, directory: str) -> None:
        self._directory = os.path.join(directory, f".to-file-{os.getuid()}")

    def add(self, name: str) -> None:
        """Note that a file is about to be opened; the note is on disk when this returns.

        :param name: relative to the directory of files in progress
        """
        os.makedirs(self._directory, 0o770, exist_ok=True)
        replace_file(self._note(name), name.encode())
        sync_directory(os.path.dirname(self._directory))

    def remove(self, name: str) -> None:
        """Note that a file is closed."""
        with suppress(FileNotFoundError):
            os.unlink(self._note(name))

    def __iter__(self) -> Iterator[str]:
        """The names noted now."""
        with suppress(FileNotFoundError):
            for base in sorted(os.listdir(self._directory)):
                if not base.startswith("."):
                    with suppress(FileNotFoundError), open(os.path.join(self._directory, base), "rb") as file:
                        yield file.read().decode()

    def _note(self, name: str) -> str:
        return os.path.join(self._directory, hashlib.sha256(name.encode()).hexdigest()[:32])
