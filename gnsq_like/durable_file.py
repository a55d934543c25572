"""Writes files atomically and durably: readers, and a crash, see all of the content or none.

The content is written under a temporary name in the same directory and synced; then the file gets its final name, and
the directory, which holds the names, is synced. A new file gets its name by ``link``, which fails if the name is taken;
a file is replaced by ``rename``, which overwrites.

Every call waits for the disk; in a thread that has a hub, call it in another thread.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

#: Every temporary name begins with this; code that lists the directory must skip such names.
TEMPORARY_PREFIX = "."


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Context manager that names the file in errors of its descriptor, which name none: a full disk, mostly."""
    try:
        yield
    except OSError as exc:
        if exc.filename is None:
            exc.filename = os.fspath(path)
        raise


def temporary_beside(path: str | os.PathLike[str]) -> str:
    """A new temporary name in the directory of ``path``."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f"{TEMPORARY_PREFIX}{name}.{secrets.token_hex(6)}.tmp")


def write_file(
    path: str | os.PathLike[str],
    data: bytes | memoryview,
    *,
    mode: int = 0o666,
    sync: bool = True,
    directory: int | None = None,
) -> None:
    """Write a file that must not exist.

    :param mode: its permissions, reduced by the umask
    :param sync: whether to wait until the content is on disk
    :param directory: the descriptor of the directory that a relative path begins in; None for the current one
    :raises OSError: if it cannot be written; no part of it remains
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode, dir_fd=directory)
    try:
        with naming(path), ExitStack() as unless_written:
            unless_written.callback(remove_file, path, directory=directory)
            rest = memoryview(data)
            while rest:  # an almost full disk accepts part of it without an error
                rest = rest[os.write(descriptor, rest) :]
            if sync:
                os.fsync(descriptor)
            unless_written.pop_all()
    finally:
        os.close(descriptor)


def create_file(path: str | os.PathLike[str], data: bytes | memoryview, *, mode: int = 0o666) -> bool:
    """Create a file with this content, unless the name is taken. Of several concurrent calls, exactly one succeeds.

    :return: whether the file was created; if not, the existing one is unchanged
    :raises OSError: if it cannot be written; nothing remains, or the whole file if only the last sync failed
    """
    temporary = temporary_beside(path)
    write_file(temporary, data, mode=mode)
    try:
        os.link(temporary, path)
        created = True
    except FileExistsError:
        # NFS reports this also after success, if its first reply was lost.
        created = os.stat(temporary).st_nlink > 1
    finally:
        remove_file(temporary)
    sync_directory(os.path.dirname(path))
    return created


def replace_file(
    path: str | os.PathLike[str],
    data: bytes | memoryview,
    *,
    mode: int = 0o666,
    sync: bool = True,
    directory: int | None = None,
) -> None:
    """Create a file with this content, or replace the existing one.

    :param sync: whether to wait for the disk; without it, a crash may leave the old content, but never a part
    :param directory: as for :func:`write_file`
    :raises OSError: if it cannot be written; the old content remains, or the new one if only the last sync failed
    """
    temporary = temporary_beside(path)
    write_file(temporary, data, mode=mode, sync=sync, directory=directory)
    try:
        os.replace(temporary, path, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        remove_file(temporary, directory=directory)
        raise
    if sync:
        sync_directory(os.path.dirname(path), directory=directory)


def remove_file(path: str | os.PathLike[str], *, directory: int | None = None) -> None:
    """Remove a file, ignoring errors."""
    with suppress(OSError):
        os.unlink(path, dir_fd=directory)


def sync_directory(path: str | os.PathLike[str], *, directory: int | None = None) -> None:
    """Wait until the names in a directory are on disk; an empty path is the one that relative paths begin in."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
