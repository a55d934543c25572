"""Disks: real files in memory, and a note of what would survive a crash of the machine.

A disk is a directory. Its files are written as usual; beside that, each ``fsync`` notes what has reached the disk: the
content of its file, and, as with the journal of a usual file system, the names in the directory as they are then. After
``crash`` the directory holds what was noted. Of what was written later, some may be there as well: of the names, an
earlier state since then; of a file's content, a part of what was appended, perhaps followed by zeros, as where a file
system has noted a size and not written all blocks. ``flip`` damages what is there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from gevent import monkey

_open = monkey.get_original("os", "open")
_close = monkey.get_original("os", "close")


class _File:
    """A file, whatever its name is at the moment."""

    def __init__(self) -> None:
        #: What has reached the disk; None if nothing has.
        self.synced: bytes | None = None


class Disk:
    """The disk of one process.

    :param random: decides what of the unsynced survives a crash
    """

    def __init__(self, directory: Path, random: Random) -> None:
        self.directory = directory
        self._prefix = f"{directory}/"
        self._random = random
        #: Faults: no space is left; fsync fails.
        self.is_full = False
        self.fails_to_sync = False
        #: How often fsync succeeded.
        self.syncs = 0
        self._names: dict[str, _File] = {}
        #: The names since the last sync, oldest first, the first of them synced.
        self._states: list[dict[str, _File]] = [{}]
        #: Open descriptors, each with its file; None for the directory.
        self._open: dict[int, _File | None] = {}

    # -- what the process calls ------------------------------------------------------------------------

    def opened(self, path: str, flags: int, descriptor: int) -> None:
        """A file was opened, and perhaps created."""
        name = self._name(path)
        if not name:
            self._open[descriptor] = None
            return
        if flags & os.O_CREAT and name not in self._names:
            self._change(name, _File())
        if name in self._names:
            self._open[descriptor] = self._names[name]

    def check_space(self) -> None:
        """Before a write."""
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def synced(self, descriptor: int) -> None:
        """``fsync`` is called."""
        if self.fails_to_sync:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        file = self._open.get(descriptor)
        if file is not None:
            file.synced = self._content(descriptor)
        self._states = [dict(self._names)]
        self.syncs += 1

    def duplicated(self, descriptor: int, copy: int) -> None:
        self._open[copy] = self._open[descriptor]

    def closed(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)

    def has_open(self, descriptor: int) -> bool:
        return descriptor in self._open

    def renamed(self, old: str, new: str, *, keep: bool = False) -> None:
        """A file has a new name, and keeps the old one too after ``link``."""
        file = self._names.get(self._name(old))
        if file is not None:
            self._change(self._name(new), file)
            if not keep:
                self._change(self._name(old), None)

    def removed(self, path: str) -> None:
        self._change(self._name(path), None)

    def _change(self, name: str, file: _File | None) -> None:
        if file is None:
            self._names.pop(name, None)
        else:
            self._names[name] = file
        self._states.append(dict(self._names))

    def _name(self, path: str) -> str:
        return path[len(self._prefix) :]

    @staticmethod
    def _content(descriptor: int) -> bytes:
        # Opened anew, because it may be open for writing only.
        copy = _open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
        try:
            return os.read(copy, os.fstat(copy).st_size)
        finally:
            _close(copy)

    # -- the end of a process, and of a machine --------------------------------------------------------

    def release(self) -> None:
        """Its process was killed: the kernel closes what it had open, and keeps what it has written."""
        for descriptor in list(self._open):
            with suppress(OSError):
                _close(descriptor)
        self._open.clear()

    def crash(self) -> None:
        """After the end of its process: lose what has not reached the disk."""
        written = {file: path.read_bytes() for file, path in self._paths() if path.exists()}
        left = {file: self._after_crash(file, content) for file, content in written.items()}
        survivors = self._random.choice(self._states)
        for path in self.directory.iterdir():
            path.unlink()
        for name, file in survivors.items():
            Path(self.directory, name).write_bytes(left.get(file, file.synced or b""))
        self._names = dict(survivors)
        self._states = [dict(survivors)]

    def flip(self, name: str, at: int, bit: int) -> None:
        """A bit of a file is another one, and stays so."""
        path, file = Path(self.directory, name), self._names[name]
        content = bytearray(path.read_bytes())
        content[at] ^= 1 << bit
        path.write_bytes(content)
        if file.synced is not None:
            file.synced = bytes(content[: len(file.synced)])

    def _paths(self) -> list[tuple[_File, Path]]:
        return [(file, Path(self.directory, name)) for name, file in self._names.items()]

    def _after_crash(self, file: _File, written: bytes) -> bytes:
        synced = file.synced or b""
        if written.startswith(synced) and len(written) > len(synced):
            synced = written[: self._random.randrange(len(synced), len(written) + 1)]
            if self._random.random() < 0.3:
                # More than was written: zeros that end with the last record could be its own.
                synced = synced.ljust(len(written) + self._random.randrange(1, 600), b"\0")
        file.synced = synced
        return synced

    def least_survivors(self) -> list[dict[str, bytes]]:
        """What each crash that is possible now leaves at least: the contents of files by their names."""
        return [{name: file.synced or b"" for name, file in state.items()} for state in self._states]


def install(disks: dict[str, Disk]) -> None:
    """From now on the functions of ``os`` note what happens to files below these directories."""

    def disk_of(path: Any) -> Disk | None:
        if disks and isinstance(path, str):
            for directory, disk in disks.items():
                if path.startswith(directory):
                    return disk
        return None

    def holder(descriptor: int) -> Disk | None:
        for disk in disks.values():
            if disk.has_open(descriptor):
                return disk
        return None

    def make_open(original: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            directory = named.get("dir_fd")
            disk = disk_of(path) if directory is None else holder(directory)
            whole = path if disk is None or directory is None else f"{disk.directory}/{path}"
            if disk is not None and flags & os.O_CREAT and not os.path.exists(whole):
                disk.check_space()
            descriptor = original(path, flags, *rest, **named)
            if disk is not None:
                disk.opened(whole, flags, descriptor)
            return descriptor

        return call

    def make_write(original: Callable[..., int]) -> Callable[..., int]:
        def call(descriptor: int, *rest: Any) -> int:
            if disks and (disk := holder(descriptor)) is not None:
                disk.check_space()
            return original(descriptor, *rest)

        return call

    def make_fsync(original: Callable[..., None]) -> Callable[..., None]:
        def call(descriptor: int) -> None:
            disk = holder(descriptor)
            if disk is None:
                original(descriptor)
            else:
                disk.synced(descriptor)

        return call

    def make_dup(original: Callable[..., int]) -> Callable[..., int]:
        def call(descriptor: int) -> int:
            copy = original(descriptor)
            if (disk := holder(descriptor)) is not None:
                disk.duplicated(descriptor, copy)
            return copy

        return call

    def make_close(original: Callable[..., None]) -> Callable[..., None]:
        def call(descriptor: int) -> None:
            if disks and (disk := holder(descriptor)) is not None:
                disk.closed(descriptor)
            original(descriptor)

        return call

    def make_rename(keep: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
        def make(original: Callable[..., None]) -> Callable[..., None]:
            def call(old: Any, new: Any, **named: Any) -> None:
                original(old, new, **named)
                if (disk := disk_of(old)) is not None:
                    disk.renamed(old, new, keep=keep)

            return call

        return make

    def make_unlink(original: Callable[..., None]) -> Callable[..., None]:
        def call(path: Any, **named: Any) -> None:
            original(path, **named)
            if (disk := disk_of(path)) is not None:
                disk.removed(path)

        return call

    makers: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
        "open": make_open,
        "write": make_write,
        "pwrite": make_write,
        "fsync": make_fsync,
        "dup": make_dup,
        "close": make_close,
        "replace": make_rename(keep=False),
        "rename": make_rename(keep=False),
        "link": make_rename(keep=True),
        "unlink": make_unlink,
    }
    for name, make in makers.items():
        setattr(os, name, make(getattr(os, name)))
