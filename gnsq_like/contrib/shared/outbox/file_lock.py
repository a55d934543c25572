"""One relay at a time for a database that is a file: a lock on another file, which ends with its process."""

from __future__ import annotations

import fcntl
import os


class FileLock:
    """A lock between processes, and between two of these objects in one.

    :param path: the file, made if it is missing and never removed; "" for no lock at all
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None

    def acquire(self) -> bool:
        """Take the lock unless another has it, and return whether it is ours. Does not wait."""
        if self._file is not None or not self._path:
            return True
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except BaseException:
            os.close(file)
            raise
        self._file = file
        return True

    def release(self) -> None:
        """Give the lock back, if it is ours."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def lock_path(database: str) -> str:
    """The file to lock beside a database of SQLite, by that database's name; "" if it is in memory. Pure."""
    if not database or ":memory:" in database or "mode=memory" in database:
        return ""
    return f"{database.removeprefix('file:').partition('?')[0]}.nsq-relay"
