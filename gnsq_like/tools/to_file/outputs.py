"""Where closed files go.

- :class:`SameDirectory`: they stay where they are
- :class:`MovedTo`: into another directory; no existing file is ever overwritten
- :class:`UploadedTo`: into a store, by fsspec. A closed file is moved to ``.upload/`` in the work dir, where it stays
  until it has been uploaded, in this run or a later one

Before an upload begins, the name in the store is chosen and noted beside the file. So a run that is killed after an
upload, and before it removed the file, finds on its next start that the object of this name is its own.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol

from gnsq_like.durable_file import remove_file, replace_file, sync_directory, temporary_beside
from gnsq_like.tools.to_file.members import MissingPackage
from gnsq_like.tools.to_file.plan import FilePlan, is_url, with_revision

logger = logging.getLogger(__name__)

#: The directory of files to be uploaded, below the work dir.
UPLOADS = ".upload"
#: The end of a note's name beside such a file; the note holds the name in the store.
_TARGET_SUFFIX = ".target"


class Output(Protocol):
    """Takes closed files. Methods block."""

    def exists(self, name: str) -> bool:
        """Whether a file of this name must not be begun."""

    def take(self, path: str, template: str, revision: int) -> None:
        """Take a closed and synced file.

        :param template: its name, in which <REV> is left
        :param revision: its number; a higher one is chosen if the name is taken
        """


class SameDirectory:
    """Files stay where they are."""

    def exists(self, name: str) -> bool:
        return False

    def take(self, path: str, template: str, revision: int) -> None:
        pass


class MovedTo:
    """Files are moved to another directory, also on another file system."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def exists(self, name: str) -> bool:
        return os.path.lexists(os.path.join(self._directory, name))

    def take(self, path: str, template: str, revision: int) -> None:
        while not _move(path, os.path.join(self._directory, with_revision(template, revision))):
            if with_revision(template, revision) == with_revision(template, revision + 1):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.path.join(self._directory, template))
            revision += 1


def _move(source: str, target: str) -> bool:
    """Move a file and wait until its new name is on disk; False if that name is taken."""
    os.makedirs(os.path.dirname(target), 0o770, exist_ok=True)
    try:
        os.link(source, target)
    except FileExistsError:
        if not os.path.samefile(source, target):  # an earlier run was killed here
            return False
    except OSError as exc:
        if exc.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP):
            raise
        if not _copy(source, target):
            return False
    sync_directory(os.path.dirname(target))
    os.unlink(source)
    sync_directory(os.path.dirname(source))
    logger.info("moved %s to %s", source, target)
    return True


def _copy(source: str, target: str) -> bool:
    """Copy a file to another file system; False if the name is taken."""
    temporary = temporary_beside(target)
    try:
        shutil.copyfile(source, temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.link(temporary, target)
    except FileExistsError:
        return False
    finally:
        remove_file(temporary)
    return True


class UploadedTo:
    """Files are uploaded to a store.

    :param url: of the store and the path in it, as fsspec writes them
    :param work_dir: the directory in which files wait
    :raises MissingPackage: fsspec, or its package for this kind of store, is not installed
    """

    def __init__(self, url: str, work_dir: str) -> None:
        try:
            import fsspec

            self._store: Any
            self._store, self._root = fsspec.core.url_to_fs(url)
        except ModuleNotFoundError as exc:
            raise MissingPackage(exc.name or "fsspec", "object-stores") from exc
        except ImportError as exc:  # fsspec names the package to install
            raise MissingPackage(str(exc), "object-stores") from exc
        self._directory = os.path.join(work_dir, UPLOADS)

    def exists(self, name: str) -> bool:
        return os.path.lexists(os.path.join(self._directory, name))

    def take(self, path: str, template: str, revision: int) -> None:
        MovedTo(self._directory).take(path, template, revision)

    def waiting(self) -> Iterator[str]:
        """The paths of the files to upload, the oldest first."""
        found = []
        for directory, _, names in os.walk(self._directory):
            paths = [os.path.join(directory, name) for name in names if not name.startswith(".")]
            found += [(os.stat(path).st_mtime, path) for path in paths]
        yield from (path for _, path in sorted(found))

    def upload(self, path: str) -> None:
        """Upload a file, and remove it here. Raises whatever the store does."""
        directory, base = os.path.split(path)
        note = os.path.join(directory, f".{base}{_TARGET_SUFFIX}")
        target = self._noted(note)
        if target is None or not self._is_ours_or_free(target, path):
            target = self._free_name(os.path.relpath(path, self._directory))
            replace_file(note, target.encode())
        if not self._store.exists(target):
            self._store.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._store.put_file(path, target)
        os.unlink(path)
        with suppress(FileNotFoundError):
            os.unlink(note)
        logger.info("uploaded %s", target)

    def _noted(self, note: str) -> str | None:
        try:
            with open(note, encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def _is_ours_or_free(self, target: str, path: str) -> bool:
        """Whether the object is the file, from an earlier try, or does not exist."""
        self._store.invalidate_cache()
        return not self._store.exists(target) or self._store.size(target) == os.stat(path).st_size

    def _free_name(self, name: str) -> str:
        """A name in the store that is not taken: the file's own, or that with a number."""
        self._store.invalidate_cache()
        target = f"{self._root.rstrip('/')}/{name}"
        number = 0
        while self._store.exists(target):
            number += 1
            directory, _, base = f"{self._root.rstrip('/')}/{name}".rpartition("/")
            stem, dot, suffix = base.partition(".")
            target = f"{directory}/{stem}-{number}{dot}{suffix}"
        return target


def make_output(plan: FilePlan) -> Output:
    """The output of a plan. Raises MissingPackage."""
    if is_url(plan.output_dir):
        return UploadedTo(plan.output_dir, plan.work_dir)
    return MovedTo(plan.output_dir) if plan.moves else SameDirectory()
