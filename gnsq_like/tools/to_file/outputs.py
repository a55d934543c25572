"""Where closed files go.

- :class:`SameDirectory`: they stay where they are
- :class:`MovedTo`: into another directory; no existing file is ever overwritten
- :class:`UploadedTo`: into a store, by fsspec. A closed file is moved to ``.upload/`` in the work dir, where it stays
  until it has been uploaded, in this run or a later one

Before an upload begins, the name in the store is chosen and noted beside the file. So if a run is killed between an
upload and the removal of the file, the next run knows that the object of this name is its own.

Names are relative to the directories that the user chose, and no link below these is followed (``own_files``).
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO, Protocol

from gnsq_like.runtime.files import (
    NotOurs,
    directory_below,
    naming,
    open_own,
    private_directory,
    remove_file,
    replace_file,
    temporary_beside,
    trust,
    why_not_ours,
)
from gnsq_like.tools.to_file.members import MissingPackage
from gnsq_like.tools.to_file.plan import FilePlan, is_url, with_revision

logger = logging.getLogger(__name__)

#: The directory of files to be uploaded, below the work dir.
UPLOADS = ".upload"
#: The end of a note's name beside such a file; the note holds the name in the store.
_TARGET_SUFFIX = ".target"
#: Bytes that are copied at once.
_COPIED_BYTES = 1024 * 1024


class Output(Protocol):
    """Takes closed files. Methods block."""

    def exists(self, name: str) -> bool:
        """Whether a file of this name must not be begun."""

    def take(self, name: str, template: str, revision: int) -> None:
        """Take a closed and synced file.

        :param name: relative to the directory of files in progress
        :param template: its name, in which <REV> is left
        :param revision: its number; a higher one is chosen if the name is taken
        :raises NotOurs: another user may have put a file or link there
        """


class SameDirectory:
    """Files stay where they are."""

    def exists(self, name: str) -> bool:
        return False

    def take(self, name: str, template: str, revision: int) -> None:
        pass


class MovedTo:
    """Files are moved to another directory, also on another file system.

    :param work_dir: the directory of files in progress
    """

    def __init__(self, work_dir: str, directory: str) -> None:
        self._work_dir = work_dir
        self._directory = directory

    def exists(self, name: str) -> bool:
        return os.path.lexists(os.path.join(self._directory, name))

    def take(self, name: str, template: str, revision: int) -> None:
        while not self._move(name, with_revision(template, revision)):
            if with_revision(template, revision) == with_revision(template, revision + 1):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.path.join(self._directory, template))
            revision += 1

    def _move(self, name: str, target: str) -> bool:
        """Move a file and wait until its new name is on disk; False if that name is taken."""
        source_place, source = os.path.split(name)
        target_place, base = os.path.split(target)
        path = os.path.join(self._work_dir, name)
        with (
            directory_below(self._work_dir, source_place, make=False) as here,
            directory_below(self._directory, target_place) as there,
        ):
            if os.path.samestat(os.fstat(here), os.fstat(there)) and source == base:
                return True  # it is the same directory, by another path
            present = _state(base, there)
            if present is None:
                with os.fdopen(open_own(path, os.O_RDONLY | os.O_NOFOLLOW, directory=here), "rb") as file:
                    if not _link_or_copy(file, path, here, base, there):
                        return False
            elif not os.path.samestat(present, os.stat(source, dir_fd=here, follow_symlinks=False)):
                return False
            # else an earlier run was killed here
            os.fsync(there)
            os.unlink(source, dir_fd=here)
            os.fsync(here)
        logger.info("moved %s to %s", path, os.path.join(self._directory, target))
        return True


def _state(name: str, directory: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _link_or_copy(file: BinaryIO, path: str, here: int, target: str, there: int) -> bool:
    """Give a file a second name, or copy it to another file system; False if the name is taken."""
    try:
        os.link(os.path.basename(path), target, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as exc:
        if exc.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP):
            raise
        return _copy(file, target, there)
    if not os.path.samestat(os.fstat(file.fileno()), os.stat(target, dir_fd=there, follow_symlinks=False)):
        os.unlink(target, dir_fd=there)
        raise NotOurs(path, "it was replaced just now")
    return True


def _copy(file: BinaryIO, target: str, there: int) -> bool:
    temporary = temporary_beside(target)
    copy = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=there)
    try:
        with naming(target), os.fdopen(copy, "wb") as written:
            shutil.copyfileobj(file, written, _COPIED_BYTES)
            written.flush()
            os.fsync(copy)
        os.link(temporary, target, src_dir_fd=there, dst_dir_fd=there, follow_symlinks=False)
    except FileExistsError:
        return False
    finally:
        remove_file(temporary, directory=there)
    return True


class UploadedTo:
    """Files are uploaded to a store.

    :param url: of the store and the path in it, as fsspec writes them
    :param work_dir: the directory of files in progress, and of those waiting for upload
    :raises MissingPackage: fsspec, or its package for this kind of store, is not installed
    :raises NotOurs: another user may have made the directory in which files wait
    """

    def __init__(self, url: str, work_dir: str) -> None:
        try:
            import fsspec

            self._store: Any
            self._store, self._root = fsspec.core.url_to_fs(url)
        except ModuleNotFoundError as exc:
            raise MissingPackage(exc.name or "fsspec") from exc
        except ImportError as exc:  # fsspec's, for the package of this kind of store
            raise MissingPackage(getattr(exc.__cause__, "name", None) or "fsspec") from exc
        self._work_dir = work_dir
        self._waiting = MovedTo(work_dir, work_dir)
        #: Files that were skipped with a warning.
        self._left_out: set[str] = set()
        _drop_planted_notes(work_dir)

    def exists(self, name: str) -> bool:
        return self._waiting.exists(f"{UPLOADS}/{name}")

    def take(self, name: str, template: str, revision: int) -> None:
        self._waiting.take(name, f"{UPLOADS}/{template}", revision)

    def waiting(self) -> Iterator[str]:
        """The names of the files to upload, relative to the work dir, the oldest first.

        :raises NotOurs: another user made the directory
        """
        found = []
        with private_directory(self._work_dir, UPLOADS) as (descriptor, _):
            for place, _, bases, directory in os.fwalk(dir_fd=descriptor):
                if os.fstat(directory).st_uid != os.geteuid():
                    continue  # made by others while they could
                for base in bases:
                    name = os.path.normpath(os.path.join(UPLOADS, place, base))
                    state = None if _is_note(base) else _state(base, directory)
                    if state is not None and self._is_to_upload(name, state):
                        found.append((state.st_mtime, name))
        yield from (name for _, name in sorted(found))

    def _is_to_upload(self, name: str, state: os.stat_result) -> bool:
        reason = why_not_ours(state)
        if reason and name not in self._left_out:
            self._left_out.add(name)
            logger.warning("%s is not uploaded: %s", os.path.join(self._work_dir, name), reason)
        return not reason

    def upload(self, name: str) -> None:
        """Upload a file, and remove it here. Raises whatever the store does, and NotOurs."""
        path = os.path.join(self._work_dir, name)
        place, base = os.path.split(name)
        note = f".{base}{_TARGET_SUFFIX}"
        with directory_below(self._work_dir, place, make=False) as directory:
            state = os.stat(base, dir_fd=directory, follow_symlinks=False)
            if reason := why_not_ours(state):
                raise NotOurs(path, reason)
            target = _noted(note, directory)
            if target is None or not self._is_ours_or_free(target, state.st_size):
                target = self._free_name(os.path.relpath(name, UPLOADS))
                replace_file(note, target.encode(), directory=directory)
            if not self._store.lexists(target):
                self._store.makedirs(target.rpartition("/")[0], exist_ok=True)
                self._store.put_file(path, target)
            os.unlink(base, dir_fd=directory)
            remove_file(note, directory=directory)
        logger.info("uploaded %s", target)

    def _is_ours_or_free(self, target: str, size: int) -> bool:
        """Whether the object is the file, from an earlier try, or does not exist."""
        self._store.invalidate_cache()
        return not self._store.lexists(target) or self._store.size(target) == size

    def _free_name(self, name: str) -> str:
        """A name in the store that is not taken: the file's own, or that with a number."""
        self._store.invalidate_cache()
        target = f"{self._root.rstrip('/')}/{name}"
        number = 0
        while self._store.lexists(target):
            number += 1
            directory, _, base = f"{self._root.rstrip('/')}/{name}".rpartition("/")
            stem, dot, suffix = base.partition(".")
            target = f"{directory}/{stem}-{number}{dot}{suffix}"
        return target


def _drop_planted_notes(work_dir: str) -> None:
    """If others could write into the directory of uploads, remove their permission, and the notes of targets."""
    with private_directory(work_dir, UPLOADS) as (descriptor, is_wide):
        if not is_wide:
            return
        for place, _, bases, directory in os.fwalk(dir_fd=descriptor):
            with suppress(PermissionError):  # another user's
                os.fchmod(directory, 0o700)
            for base in bases:
                if _is_note(base):
                    path = os.path.join(work_dir, UPLOADS, place, base)
                    logger.warning("%s is removed, because other users could write there", path)
                    remove_file(base, directory=directory)
        trust(descriptor)


def _is_note(base: str) -> bool:
    """Whether this is a note of a target, or a part of one that a kill left; topic names may begin with a dot."""
    return base.startswith(".") and base.endswith((_TARGET_SUFFIX, ".tmp"))


def _noted(note: str, directory: int) -> str | None:
    try:
        descriptor = os.open(note, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, encoding="utf-8") as file:
        return file.read()


def make_output(plan: FilePlan) -> Output:
    """The output of a plan. Raises MissingPackage and NotOurs."""
    if is_url(plan.output_dir):
        return UploadedTo(plan.output_dir, plan.work_dir)
    return MovedTo(plan.work_dir, plan.output_dir) if plan.moves else SameDirectory()
