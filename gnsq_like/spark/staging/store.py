"""Where executors put what they receive: a place that the driver and all executors reach.

What the source needs of it is little, and all of its guarantees rest on it:

- ``create`` makes a name with its complete content, or says that the name is taken; of any number of
  processes that try at once with contents of their own, exactly one succeeds, and its content is durable when it
  returns;
- what was created is seen by everybody from then on;
- ``retire`` takes away everything below a prefix, in such a way that a name below it cannot be created
  afterwards (:class:`PosixStore`), or at least seen by whoever reads the watermark (``log``).

So nobody but the driver makes a place for names (``make``): a late executor that made it again would publish
where nobody looks, and then finish its messages.

:class:`PosixStore` is for a file system that all of them mount, or for one machine. Names are linked, never
renamed: rename overwrites. ``objects`` has the store on fsspec.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from gnsq_like.durable_file import TEMPORARY_PREFIX, create_file
from gnsq_like.spark.staging.errors import Fenced, StagingError

#: Below the root: what was retired and is about to be deleted.
_TRASH = ".trash"


class Store(Protocol):
    """Names are relative, with "/" between their parts. Every method may raise OSError."""

    def make(self, prefix: str) -> None:
        """Make a place for names. For the driver alone. Fine if it is there."""

    def create(self, name: str, data: bytes | memoryview) -> bool:
        """Create the name with this content, durably; False if it exists. Raises Fenced if its place is gone."""

    def read(self, name: str) -> memoryview:
        """The content; raises FileNotFoundError."""

    def exists(self, name: str) -> bool:
        """Whether the name was created."""

    def list(self, prefix: str) -> list[str]:
        """All names below the prefix, sorted, however deep."""

    def retire(self, prefix: str) -> None:
        """Remove the name, or everything below it, as described above. For the driver alone."""


#: Opens the store at a location with the options of its file system.
OpenStore = Callable[[str, Mapping[str, str]], Store]


def open_store(location: str, storage: Mapping[str, str]) -> Store:
    """The store for a path or URL.

    :param storage: options of fsspec's file system; what looks like an object or truth value of JSON is read as one
    :raises StagingError: a place that cannot be one
    """
    parts = urlsplit(location)
    if not parts.scheme or parts.scheme == "file":
        path = Path(unquote(parts.path) if parts.scheme else location)
        if not path.is_absolute():
            raise StagingError(f"stagingLocation {location!r} must be an absolute path, for executors run elsewhere")
        return PosixStore(path)
    from gnsq_like.spark.staging.object_store import ObjectStore  # needs fsspec, which few need

    return ObjectStore(location, {name: _from_text(value) for name, value in storage.items()})


def _from_text(value: str) -> object:
    return json.loads(value) if value.startswith("{") or value in {"true", "false"} else value


def check_store(store: Store, location: str) -> None:
    """Have the store create one name twice; raises StagingError unless the second is refused."""
    place = f"probe-{uuid.uuid4().hex}"
    try:
        store.make(place)
        results = [store.create(f"{place}/probe", content) for content in (b"first", b"second")]
        content = bytes(store.read(f"{place}/probe"))
        store.retire(place)
    except Exception as exc:  # each of fsspec's file systems has its own kinds
        raise StagingError(f"stagingLocation {location} cannot be used: {exc or type(exc).__name__}") from exc
    if results != [True, False] or content != b"first":
        raise StagingError(
            f"stagingLocation {location} cannot be used: it lets a name be created twice, so that two attempts of a "
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
        # Not a memory map: that a file system goes away under a map ends the process with SIGBUS.
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
        trash = self._root / _TRASH
        trash.mkdir(exist_ok=True)
        try:
            (self._root / prefix).rename(trash / uuid.uuid4().hex)
        except FileNotFoundError:
            return
        finally:
            # Others' too: what is there belongs to nobody, and a driver may have died before it deleted it.
            for each in trash.iterdir():
                shutil.rmtree(each, ignore_errors=True) if each.is_dir() else each.unlink(missing_ok=True)


def _unless_gone(error: OSError) -> None:
    # What cannot be listed is not nothing: a watermark that is not seen would let a late executor pass.
    if not isinstance(error, FileNotFoundError):
        raise error
