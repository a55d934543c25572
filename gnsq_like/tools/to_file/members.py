"""Compressed files as a sequence of members: gzip members or zstd frames. Each can be read without those after it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from gnsq_like.errors import NSQError

#: zlib's window bits for gzip.
_GZIP = 31
#: Small, because it may decompress to a thousand times as much.
_CHUNK_BYTES = 64 * 1024


class Compressor(Protocol):
    """Compresses one member."""

    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


class MissingPackage(NSQError):
    """A package that is needed for an option is not installed.

    :ivar package: its name, by which it is installed
    """

    def __init__(self, package: str) -> None:
        super().__init__(package)
        self.package = package

    def __str__(self) -> str:
        return f"{self.package} is not installed: pip install {self.package}"


def _zstandard() -> Any:
    try:
        import zstandard
    except ModuleNotFoundError as exc:
        if exc.name != "zstandard":
            raise
        raise MissingPackage("zstandard") from exc
    return zstandard


@dataclass(frozen=True)
class Compression:
    """A format of compressed files."""

    #: Of the files' names.
    suffix: str
    #: The usual level: the default of its library.
    level: int
    #: Begins a member with a level, and to read one; raise MissingPackage.
    new_compressor: Callable[[int], Compressor]
    new_decompressor: Callable[[], Any]


#: The formats, by the names that users give.
COMPRESSIONS = {
    "gzip": Compression(
        ".gz", 6, lambda level: zlib.compressobj(level, zlib.DEFLATED, _GZIP), lambda: zlib.decompressobj(_GZIP)
    ),
    "zstd": Compression(
        ".zst",
        3,
        lambda level: _zstandard().ZstdCompressor(level=level, write_checksum=True).compressobj(),
        lambda: _zstandard().ZstdDecompressor().decompressobj(),
    ),
}


def new_member(compression: str, level: int) -> Compressor:
    """Begin a member. Raises MissingPackage.

    :param level: 0 for the usual one
    """
    chosen = COMPRESSIONS[compression]
    return chosen.new_compressor(level or chosen.level)


def member_ends(file: BinaryIO, compression: str) -> Iterator[int]:
    """The offset after each complete member, up to the first that is incomplete or damaged. Reads the whole file."""
    offset = 0
    data = b""
    while True:
        data = data or file.read(_CHUNK_BYTES)
        if not data:
            return
        decompressor = COMPRESSIONS[compression].new_decompressor()
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
