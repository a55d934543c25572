"""The stage on an object store, through fsspec: s3:// (s3fs), gs:// (gcsfs), abfs:// (adlfs).

An object appears whole or not at all, so exclusive creation is one conditional request. There are no directories
to rename away: a late executor is kept out by the watermark, which it reads between publishing and finishing.
"""

from __future__ import annotations

from typing import Any

from gnsq_like.spark.staging.errors import StagingError

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
            import fsspec  # the extra [object-stores]
        except ImportError as exc:
            raise StagingError(
                f"staging_location {location} needs fsspec: install gnsq-like[object-stores]"
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
