"""Files that an earlier run did not close: truncated to their readable part, and handed to the output.

Open files are noted on disk, in a directory of this user's own, because the files may be in /tmp. A note identifies the
file and its size when it was opened: it is never truncated below that size, and a file that does not match its note is
reported and left alone. A file is also noted before it is created, so that a kill in between does not leave an empty
file, which is not a valid compressed one.

The part that is cut off was never synced, so its messages were never finished and are delivered again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import BinaryIO

from gnsq_like.runtime.files import (
    NotOurs,
    directory_below,
    private_directory,
    remove_file,
    replace_file,
    trust,
    why_not_ours,
)
from gnsq_like.tools.to_file.members import COMPRESSIONS, member_ends
from gnsq_like.tools.to_file.outputs import Output
from gnsq_like.tools.to_file.plan import REV, FilePlan

logger = logging.getLogger(__name__)

_TAIL_BYTES = 64 * 1024
#: Of the longest note that is read; a name has 4 KB at most, and up to 6 bytes for each in JSON.
_MOST_BYTES = 32 * 1024


@dataclass(frozen=True)
class Note:
    """A file that is open, or about to be created."""

    #: Relative to the directory of files in progress, without "..".
    name: str
    #: None if it is that of the file's directory, whose number may be another after a restart of the machine.
    device: int | None = None
    #: None if the file is about to be made.
    inode: int | None = None
    #: Bytes, when it was opened.
    size: int = 0
    #: Whether it was made then.
    made: bool = True

    @classmethod
    def of(cls, name: str, file: int, directory: int, *, made: bool) -> Note:
        """The note of a file that was just opened, by its descriptor and that of its directory."""
        state = os.fstat(file)
        device = None if state.st_dev == os.fstat(directory).st_dev else state.st_dev
        return cls(name, device, state.st_ino, state.st_size, made)

    def fits(self, state: os.stat_result, directory: int) -> bool:
        """Whether a file is the one that was opened or created."""
        if self.inode is None:
            return not why_not_ours(state) and not state.st_size
        device = os.fstat(directory).st_dev if self.device is None else self.device
        is_ours = stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid()
        return is_ours and (state.st_dev, state.st_ino) == (device, self.inode) and state.st_size >= self.size

    @property
    def base(self) -> str:
        """The name of its own file."""
        digest = hashlib.sha256(self.name.encode(errors="surrogateescape")).hexdigest()[:32]
        return digest if self.inode is not None else f"{digest}.new"


class OpenFiles:
    """The notes in a hidden directory beside the files; one for each user.

    :param directory: that of files in progress
    """

    def __init__(self, directory: str) -> None:
        self._root = directory
        self._name = f".to-file-{os.getuid()}"

    def add(self, note: Note) -> None:
        """Note that a file is about to be made, or is open; the note is on disk when this returns.

        Next for a file that was made: the same when it is open, before its first byte.

        :raises NotOurs: the directory of notes is another user's
        """
        with private_directory(self._root, self._name) as (descriptor, _):
            replace_file(note.base, json.dumps(asdict(note)).encode(), mode=0o600, directory=descriptor)
            if note.made and note.inode is not None:
                remove_file(Note(note.name).base, directory=descriptor)

    def remove(self, note: Note) -> None:
        """Note that a file is closed."""
        with suppress(FileNotFoundError), private_directory(self._root, self._name, make=False) as (descriptor, _):
            os.unlink(note.base, dir_fd=descriptor)

    def __iter__(self) -> Iterator[Note]:
        """The notes now. Those that others may have written, or that cannot be read, are reported and removed.

        :raises NotOurs: the directory of notes is another user's
        """
        with suppress(FileNotFoundError), private_directory(self._root, self._name, make=False) as (descriptor, wide):
            for base in sorted(os.listdir(descriptor)):
                content = _read(base, descriptor)
                if content is None:  # closed meanwhile, by another process
                    continue
                note = _parsed(content)
                if note is not None and not wide:
                    yield note
                elif wide or not base.startswith("."):  # else what a kill left of a note
                    why = "other users could write there" if wide else "it is damaged, or an older version's"
                    path = os.path.join(self._root, self._name, base)
                    logger.warning("%s is ignored, because %s: %.400r", path, why, content)
                    remove_file(base, directory=descriptor)
            if wide:
                trust(descriptor)


def _read(base: str, directory: int) -> bytes | None:
    """The content of a note; empty if it cannot be read, None if it is gone."""
    try:
        descriptor = os.open(base, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(_MOST_BYTES) or b""
    except FileNotFoundError:
        return None
    except OSError:
        return b""


def _parsed(content: bytes) -> Note | None:
    """Parse a note; None if it is malformed."""
    try:
        note = Note(**json.loads(content))
        parts = note.name.split("/")
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    is_below = not {"", ".", ".."} & set(parts) and "\0" not in note.name
    are_numbers = all(isinstance(each, int | None) for each in (note.device, note.inode)) and isinstance(note.size, int)
    return note if is_below and are_numbers else None


def recover(plan: FilePlan, output: Output) -> list[str]:
    """Deal with all leftovers in the directory of files in progress; returns their names. Blocks.

    A file that a process has open is not a leftover. Those of other topics are recovered, too: they follow the same
    rules.

    :raises NotOurs: the directory of notes is another user's
    """
    notes = OpenFiles(plan.directory)
    found = []
    for note in notes:
        if _recover_one(plan, output, note):
            found.append(note.name)
            notes.remove(note)
    return found


def _recover_one(plan: FilePlan, output: Output, note: Note) -> bool:
    """Whether the note may go."""
    path = os.path.join(plan.directory, note.name)
    place, base = os.path.split(note.name)
    try:
        with directory_below(plan.directory, place, make=False) as directory:
            if not note.fits(os.stat(base, dir_fd=directory, follow_symlinks=False), directory):
                if note.inode is not None:
                    logger.warning("%s is left as it is: it is not what an earlier run opened", path)
                return True
            descriptor = os.open(base, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            with os.fdopen(descriptor, "r+b") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                except OSError:
                    pass  # no locks on this file system
                end = _cut_back(file, path, note, directory)
                if not end and note.made:
                    os.unlink(base, dir_fd=directory)
    except FileNotFoundError:
        return True
    except NotOurs as exc:
        logger.warning("%s is left as it is: %s: %s", path, exc.filename, exc.strerror)
        return True
    if end and plan.moves:
        output.take(note.name, *_template_of(note.name))
    return True


def _cut_back(file: BinaryIO, path: str, note: Note, directory: int) -> int:
    """Truncate a file to its readable part, but not below its size when it was opened; sync it, and return its size."""
    state = os.fstat(file.fileno())
    if not note.fits(state, directory):
        raise NotOurs(path, "it was replaced just now")
    end = max(note.size, _end_of_whole(file, path, note.size, state.st_size))
    if end < state.st_size:
        if state.st_nlink > 1:
            raise NotOurs(path, f"it has {state.st_nlink} links")
        logger.warning("%s was not closed: cut back from %d to %d bytes", path, state.st_size, end)
        file.truncate(end)
    os.fsync(file.fileno())
    return end


def _end_of_whole(file: BinaryIO, path: str, start: int, end: int) -> int:
    """Where the last whole member, or in a plain file the last line after ``start``, ends; 0 for none."""
    compression = next((name for name, each in COMPRESSIONS.items() if path.endswith(each.suffix)), "")
    if compression:
        return max(member_ends(file, compression), default=0)
    while end > start:
        chunk = max(start, end - _TAIL_BYTES)
        file.seek(chunk)
        newline = file.read(end - chunk).rfind(b"\n")
        if newline >= 0:
            return chunk + newline + 1
        end = chunk
    return 0


def _template_of(name: str) -> tuple[str, int]:
    """A file's name with <REV> in the place of its number, and that number."""
    match = re.search(r"-(\d{6})(?=\D|$)", name)
    if match is None:
        return name, 0
    return name[: match.start()] + REV + name[match.end() :], int(match[1])
