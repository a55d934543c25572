"""The store of received messages: a place that the driver and all executors reach.

The source needs little of it, but all guarantees rest on that:

- ``create`` makes a name with its complete content, or reports that the name is taken. If several processes try at
  once, each with its own content, exactly one succeeds, and its content is durable when the call returns.
- From then on, every process sees the name.
- ``retire`` removes everything below a prefix, so that no name below it can be created afterwards
  (:class:`PosixStore`), or at least none that counts, since the watermark has reached its batch (``staging_log``).

So only the driver makes a place for names (``make``): a late executor that made it again would publish messages where
they are never read, and then finish them.

:class:`PosixStore` is for a file system that all machines mount, or for one machine; :class:`ObjectStore` for s3://
(s3fs), gs:// (gcsfs) and abfs:// (adlfs), through fsspec. There, an object appears whole or not at all, so exclusive
creation is one conditional request. There are no directories to rename away: a late executor is kept out by the
watermark, which it reads between publishing and finishing.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from gnsq_like.errors import NSQError
from gnsq_like.runtime.files import TEMPORARY_PREFIX, create_file, directory_below, remove_file

#: A directory below the root, for retired directories that are about to be deleted.
_TRASH = ".trash"


class StagingError(NSQError):
    """The staging location is not usable; the text says what to do."""


class DataLost(StagingError):
    """A batch in Spark's log has no staged messages any more."""


class Fenced(StagingError):
    """The batch is finished and its staged messages are removed: a task that still works on it must FIN nothing."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place

    def __str__(self) -> str:
        return f"{self.place} is gone: the batch is finished, this attempt comes too late"


class Store(Protocol):
    """Content by names, which are relative, with "/" between their parts. Every method may raise OSError."""

    def make(self, prefix: str) -> None:
        """Make a place for names, unless it exists. For the driver alone."""

    def create(self, name: str, data: bytes | memoryview) -> bool:
        """Create a name with this content, durably; False if it exists. Raises Fenced if its place is gone."""

    def read(self, name: str) -> memoryview:
        """The content of a name; raises FileNotFoundError."""

    def exists(self, name: str) -> bool:
        """Whether a name was created."""

    def list(self, prefix: str) -> list[str]:
        """All names below a prefix at any depth, sorted."""

    def retire(self, prefix: str) -> None:
        """Remove a name or everything below it, as described above. For the driver alone."""


#: Opens the store at a location with the options of its file system.
OpenStore = Callable[[str, Mapping[str, str]], Store]


def open_store(location: str, storage: Mapping[str, str]) -> Store:
    """Open the store at a path or URL.

    :param storage: options of fsspec's file system; text that looks like a JSON object, true or false is read as JSON
    :raises StagingError: the location is not usable
    """
    parts = urlsplit(location)
    if not parts.scheme or parts.scheme == "file":
        path = Path(unquote(parts.path) if parts.scheme else location)
        if not path.is_absolute():
            raise StagingError(f"staging_location {location!r} must be an absolute path: executors run elsewhere")
        return PosixStore(path)

    return ObjectStore(location, {name: _from_text(value) for name, value in storage.items()})


def _from_text(value: str) -> object:
    return json.loads(value) if value.startswith("{") or value in {"true", "false"} else value


def check_store(store: Store, location: str) -> None:
    """Create a name twice; raises StagingError unless the store refuses the second time."""
    place = f"probe-{uuid.uuid4().hex}"
    try:
        store.make(place)
        results = [store.create(f"{place}/probe", content) for content in (b"first", b"second")]
        content = bytes(store.read(f"{place}/probe"))
        store.retire(place)
    except Exception as exc:  # fsspec's file systems have errors of their own
        raise StagingError(f"staging_location {location} cannot be used: {exc or type(exc).__name__}") from exc
    if results != [True, False] or content != b"first":
        raise StagingError(
            f"staging_location {location} cannot be used: it lets a name be created twice, so that two attempts of a "
            f"task could overwrite each other's messages; use a shared POSIX file system, s3://, gs:// or abfs://"
        )


class PosixStore:
    """A directory of a file system with hard links: local, NFS, or another that driver and executors mount."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def make(self, prefix: str) -> None:
        (self._root / prefix).mkdir(parents=True, exist_ok=True)

    def create(self, name: str, data: bytes | memoryview) -> bool:
        path = self._root / name
        try:
            return create_file(path, data)
        except FileNotFoundError as exc:
            raise Fenced(str(path.parent)) from exc

    def read(self, name: str) -> memoryview:
        # Not a memory map: if the file system goes away, reading a map ends the process with SIGBUS.
        return memoryview((self._root / name).read_bytes())

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def list(self, prefix: str) -> list[str]:
        names = []
        for directory, _, files in os.walk(self._root / prefix, onerror=_unless_gone):
            relative = Path(directory).relative_to(self._root)
            names += [f"{relative}/{file}" for file in files if not file.startswith(TEMPORARY_PREFIX)]
        return sorted(names)

    def retire(self, prefix: str) -> None:
        (self._root / _TRASH).mkdir(exist_ok=True)
        # Not through a link: all that is in there is deleted.
        with directory_below(str(self._root), _TRASH, make=False) as trash:
            try:
                os.rename(self._root / prefix, uuid.uuid4().hex, dst_dir_fd=trash)
            except FileNotFoundError:
                return
            finally:
                # Also directories that other drivers left there: they may have died before they deleted them.
                for each in os.listdir(trash):
                    shutil.rmtree(each, ignore_errors=True, dir_fd=trash)
                    remove_file(each, directory=trash)


def _unless_gone(error: OSError) -> None:
    # An error is not an empty listing: if the watermark were overlooked, a late executor would pass.
    if not isinstance(error, FileNotFoundError):
        raise error


# -- on an object store ---------------------------------------------------------------------------------


#: How pipe_file of a file system is told to refuse a name that exists, unless by ``mode="create"``.
_REFUSE_EXISTING: dict[str, dict[str, object]] = {
    "abfs": {"overwrite": False},
    "abfss": {"overwrite": False},
    "az": {"overwrite": False},
}


class ObjectStore:
    """A prefix of a bucket."""

    def __init__(self, location: str, storage: dict[str, object]) -> None:
        try:
            import fsspec
        except ImportError as exc:
            raise StagingError(
                f"staging_location {location} needs fsspec and its package for the store, such as s3fs"
            ) from exc
        scheme = location.partition("://")[0]
        try:
            # Listings must show names that other processes made.
            self._files: Any
            self._files, self._root = fsspec.core.url_to_fs(location, use_listings_cache=False, **storage)
        except Exception as exc:  # fsspec's file systems have errors of their own
            raise StagingError(f"staging_location {location} cannot be used: {exc or type(exc).__name__}") from exc
        self._root = self._root.rstrip("/")
        self._exclusive = _REFUSE_EXISTING.get(scheme, {"mode": "create"})

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def make(self, prefix: str) -> None:
        """Nothing: objects need no directory."""

    def create(self, name: str, data: bytes | memoryview) -> bool:
        try:
            self._files.pipe_file(self._path(name), bytes(data), **self._exclusive)
        except FileExistsError:
            # A client that got no answer tries again, and may find its own object. If that were taken for another
            # attempt's, the segment would be published twice.
            try:
                return bool(self._files.cat_file(self._path(name)) == bytes(data))
            except FileNotFoundError:
                return False
        return True

    def read(self, name: str) -> memoryview:
        return memoryview(self._files.cat_file(self._path(name)))

    def exists(self, name: str) -> bool:
        return bool(self._files.exists(self._path(name)))

    def list(self, prefix: str) -> list[str]:
        self._files.invalidate_cache()
        return sorted(path.removeprefix(f"{self._root}/") for path in self._files.find(self._path(prefix)))

    def retire(self, prefix: str) -> None:
        try:
            self._files.rm(self._path(prefix), recursive=True)
        except FileNotFoundError:
            return
