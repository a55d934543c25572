"""Compressed files as a row of members: gzip members or zstd frames. Each can be read without those after it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Protocol

from gnsq_like.errors import NSQError

#: zlib's window bits for gzip.
_GZIP = 31
#: zlib's default, and zstd's.
_LEVELS = {"gzip": 6, "zstd": 3}
#: Small, because it may decompress to a thousand times as much.
_CHUNK_BYTES = 64 * 1024


class Compressor(Protocol):
    """Compresses one member."""

    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


class MissingPackage(NSQError):
    """A package that is needed for an option is not installed.

    :ivar package: its name
    :ivar extra: the extra of gnsq-like that installs it
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(package, extra)
        self.package = package
        self.extra = extra

    def __str__(self) -> str:
        return f'{self.package} is not installed: pip install "gnsq-like[{self.extra}]"'


def _zstandard() -> Any:
    try:
        import zstandard
    except ModuleNotFoundError as exc:
        if exc.name != "zstandard":
            raise
        raise MissingPackage("zstandard", "zstd") from exc
    return zstandard


def check_compression(compression: str) -> None:
    """Raises MissingPackage if a package for it is not installed."""
    if compression == "zstd":
        _zstandard()


def new_member(compression: str, level: int) -> Compressor:
    """Begin a member.

    :param level: 0 for the usual one
    """
    level = level or _LEVELS[compression]
    if compression == "gzip":
        return zlib.compressobj(level, zlib.DEFLATED, _GZIP)
    compressor: Compressor = _zstandard().ZstdCompressor(level=level, write_checksum=True).compressobj()
    return compressor


def _new_decompressor(compression: str) -> Any:
    if compression == "gzip":
        return zlib.decompressobj(_GZIP)
    return _zstandard().ZstdDecompressor().decompressobj()


def member_ends(file: BinaryIO, compression: str) -> Iterator[int]:
    """The offset after each complete member, up to the first that is incomplete or damaged. Reads the whole file."""
    offset = 0
    data = b""
    while True:
        data = data or file.read(_CHUNK_BYTES)
        if not data:
            return
        decompressor = _new_decompressor(compression)
        while not decompressor.eof:
            try:
                decompressor.decompress(data)
            except Exception:  # zlib.error or zstandard.ZstdError: what a crash left
                return
            offset += len(data) - len(decompressor.unused_data)
            data = b"" if not decompressor.eof else decompressor.unused_data
            if not decompressor.eof:
                data = file.read(_CHUNK_BYTES)
                if not data:
                    return
        yield offset
