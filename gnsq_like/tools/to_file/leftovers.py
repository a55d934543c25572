"""Files that an earlier run did not close: they are cut back to what can be read, and handed to the output.

Which files are open is noted on disk.
What is cut off was never synced, so its messages were never finished and are delivered again.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress

from gnsq_like.durable_file import replace_file, sync_directory
from gnsq_like.tools.to_file.members import COMPRESSIONS, member_ends
from gnsq_like.tools.to_file.outputs import Output
from gnsq_like.tools.to_file.plan import REV, FilePlan


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


logger = logging.getLogger(__name__)

_TAIL_BYTES = 64 * 1024


def recover(plan: FilePlan, output: Output) -> list[str]:
    """Deal with all leftovers in the directory of files in progress; returns their names. Blocks.

    A file that a process has open is none. Those of other topics are dealt with, too: they follow the same rules.
    """
    notes = OpenFiles(plan.directory)
    found = []
    for name in notes:
        if _recover_one(plan, output, name):
            found.append(name)
            notes.remove(name)
    return found


def _recover_one(plan: FilePlan, output: Output, name: str) -> bool:
    """Whether the note may go."""
    path = os.path.join(plan.directory, name)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    with os.fdopen(descriptor, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass  # no locks on this file system
        size = os.fstat(descriptor).st_size
        end = _end_of_whole(path, size)
        if end < size:
            logger.warning("%s was not closed: cut back from %d to %d bytes", path, size, end)
            file.truncate(end)
        os.fsync(descriptor)
    if not end:
        os.unlink(path)
    elif plan.moves:
        output.take(path, *_template_of(name))
    return True


def _end_of_whole(path: str, size: int) -> int:
    """Where the last whole member, or in a plain file the last line, ends."""
    compression = next((name for name, each in COMPRESSIONS.items() if path.endswith(each.suffix)), "")
    with open(path, "rb") as file:
        if compression:
            return max(member_ends(file, compression), default=0)
        end = size
        while end:
            start = max(0, end - _TAIL_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0


def _template_of(name: str) -> tuple[str, int]:
    """A file's name with <REV> in the place of its number, and that number."""
    match = re.search(r"-(\d{6})(?=\D|$)", name)
    if match is None:
        return name, 0
    return name[: match.start()] + REV + name[match.end() :], int(match[1])
