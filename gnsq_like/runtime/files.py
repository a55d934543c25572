"""Files that are written whole and last, and files where other users may write, as in /tmp.

**Whole**: readers, and a crash, see all of the content or none. It is written under a temporary name in the same
directory and synced; then the file gets its final name, and the directory, which holds the names, is synced. A new file
gets its name by ``link``, which fails if the name is taken; a file is replaced by ``rename``, which overwrites. Every
call waits for the disk; in a thread that has a hub, call it in another thread.

**Ours**: what other users may have put there is refused. The directory that somebody chose may be reached by links.
Below it no link is followed: each part of a path is opened relative to the one before it. Files are opened, linked and
removed relative to the descriptor of their directory, so that nothing can be exchanged between a check and what relies
on it. A private directory has mode 0700, and all that is in it is ours. One that others could write into keeps the
sticky bit as a mark until its content has been dealt with, so that a crash in between does not make it trusted.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

#: Every temporary name begins with this; code that lists the directory must skip such names.
TEMPORARY_PREFIX = "."
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: The error of an open that follows no link, for a link: Linux's, and FreeBSD's.
_LINK = (errno.ELOOP, errno.EMLINK)
#: Its error for a pipe without a reader, for a socket, and for a directory.
_NO_FILE = (errno.ENXIO, errno.EOPNOTSUPP, errno.EISDIR)
#: Of a directory of ours alone.
_PRIVATE = 0o700


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


def create_file(path: str | os.PathLike[str], data: bytes | memoryview) -> bool:
    """Create a file with this content, unless the name is taken. Of several concurrent calls, exactly one succeeds.

    :return: whether the file was created; if not, the existing one is unchanged
    :raises OSError: if it cannot be written; nothing remains, or the whole file if only the last sync failed
    """
    temporary = temporary_beside(path)
    write_file(temporary, data)
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
    descriptor = os.open(path or ".", _DIRECTORY, dir_fd=directory)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class NotOurs(PermissionError):
    """A file or directory that another user may have put there."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(errno.EPERM, reason, path)


def others_may_write(directory: os.stat_result) -> bool:
    """Whether users other than this process's and root may make and remove names in a directory. Pure."""
    return directory.st_uid not in (os.geteuid(), 0) or bool(directory.st_mode & 0o022)


def inside(part: str) -> str:
    """A part of a path as it is, unless it leads to another directory: topics may be named "." and "..". Pure."""
    return part.replace(".", "%2E") if part in (".", "..") else part


def why_not_ours(file: os.stat_result) -> str:
    """Why a file may be another user's, or lead to one; empty if it is ours. Pure."""
    if not stat.S_ISREG(file.st_mode):
        return "it is not a regular file"
    if file.st_uid != os.geteuid():
        return "it belongs to another user"
    return "" if file.st_nlink == 1 else f"it has {file.st_nlink} links"


@contextmanager
def directory_below(root: str, name: str = "", *, make: bool = True, mode: int = 0o770) -> Iterator[int]:
    """Context manager with the descriptor of a directory.

    :param root: may be reached by links
    :param name: its name below the root; empty for the root itself
    :param make: whether to make what is missing; it is on disk then
    :param mode: of directories that are made below the root, reduced by the umask
    :raises NotOurs: a part of the name is a link, or no directory
    """
    path = root or "."
    if make:
        _make_root(path)
    descriptor = os.open(path, _DIRECTORY)
    try:
        for part in filter(None, name.split("/")):
            path = os.path.join(path, part)
            below = _step(descriptor, part, path, mode if make else None)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _make_root(path: str) -> None:
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent:
        _make_root(parent)
    with suppress(FileExistsError):
        os.mkdir(path, 0o770)
        sync_directory(parent)


def _step(descriptor: int, part: str, path: str, mode: int | None) -> int:
    if part in (".", ".."):
        raise NotOurs(path, "it leaves its directory")
    try:
        if mode is not None:
            with suppress(FileExistsError):
                os.mkdir(part, mode, dir_fd=descriptor)
                os.fsync(descriptor)
        return os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
    except OSError as exc:
        if exc.errno in (*_LINK, errno.ENOTDIR):
            raise NotOurs(path, "it is a link, or no directory") from None
        exc.filename = path
        raise


@contextmanager
def private_directory(root: str, name: str, *, make: bool = True) -> Iterator[tuple[int, bool]]:
    """Context manager with the descriptor of a directory that only this user may use; wider rights are taken away.

    Beside it, whether others could write there. If so, its content is not to be trusted, now and at the next call,
    until it has been dealt with and :func:`trust` was called.

    :raises NotOurs: it is another user's, or a link
    """
    with directory_below(root, name, make=make, mode=_PRIVATE) as descriptor:
        state = os.fstat(descriptor)
        if state.st_uid != os.geteuid():
            raise NotOurs(os.path.join(root, name), "it belongs to another user")
        is_wide = bool(state.st_mode & (0o022 | stat.S_ISVTX))
        if is_wide or state.st_mode & 0o077:
            os.fchmod(descriptor, _PRIVATE | stat.S_ISVTX if is_wide else _PRIVATE)
        yield descriptor, is_wide


def trust(directory: int) -> None:
    """All that was in a private directory, perhaps from others, has been dealt with."""
    os.fchmod(directory, _PRIVATE)


def open_own(path: str, flags: int, mode: int = 0o666, *, directory: int | None = None) -> int:
    """Open a file; where others may write, only one that is regular, ours, and has one link.

    :param flags: as for ``os.open``; where others may write, O_NOFOLLOW and O_NONBLOCK are added
    :param directory: the descriptor of its directory; None for that in the path
    :raises NotOurs: it is refused
    """
    if directory is None:
        with directory_below(os.path.dirname(path), make=False) as descriptor:
            return open_own(path, flags, mode, directory=descriptor)
    is_shared = others_may_write(os.fstat(directory))
    safely = flags
    if is_shared:  # nothing is changed before the checks, and a pipe does not wait for its other end
        safely = flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(os.path.basename(path), safely | os.O_CLOEXEC, mode, dir_fd=directory)
    except OSError as exc:
        if exc.errno in _LINK:
            raise NotOurs(path, "it is a link") from None
        if is_shared and exc.errno in _NO_FILE:
            raise NotOurs(path, "it is not a regular file") from None
        exc.filename = path
        raise
    reason = why_not_ours(os.fstat(descriptor)) if is_shared else ""
    if reason:
        os.close(descriptor)
        raise NotOurs(path, f"{reason}, and other users may write in its directory")
    if flags != safely and flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
    return descriptor


def check_own(path: str) -> None:
    """Refuse what :func:`open_own` would refuse, for a file that somebody else opens; a missing one is fine.

    :raises NotOurs: it is refused
    """
    try:
        directory, file = os.stat(os.path.dirname(path) or "."), os.lstat(path)
    except OSError:
        return  # opening it will fail in the same way
    reason = why_not_ours(file) if others_may_write(directory) else ""
    if reason:
        raise NotOurs(path, f"{reason}, and other users may write in its directory")
