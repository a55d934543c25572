"""What the targets of fuzzing have in common: inputs cut into pieces, a socket without a connection, and where files
go."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

#: Directories are made here: in memory, where files take less time.
SCRATCH = os.environ.get("TMPDIR") or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
#: Each costs as much as a whole input: with all of an input in single bytes, few inputs could be tried.
_MOST_PIECES = 32


def head(data: bytes, count: int) -> tuple[bytes, bytes]:
    """The first ``count`` bytes, which choose how the rest is used, filled up with zeros; and the rest."""
    return data[:count].ljust(count, b"\0"), data[count:]


def pieces(data: bytes, how: int) -> Iterator[bytes]:
    """The data, with some small pieces cut out of it: ``how`` is a byte of the input.

    Its low three bits are the size of these pieces, 0 for none; the others are where they begin, in 32nds of the data.
    """
    size, place = how & 7, how >> 3
    at = stop = 0
    if size:
        at = len(data) * place // 32
        stop = min(len(data), at + _MOST_PIECES * size)
        if at:
            yield data[:at]
        for start in range(at, stop, size):
            yield data[start : min(start + size, stop)]
    if stop < len(data):
        yield data[stop:]


class Input:
    """A client's end of a connection that has sent everything; keeps what is sent to it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.sent = bytearray()

    def makefile(self, *_: object) -> io.BufferedReader:
        return io.BufferedReader(io.BytesIO(self._data))

    def sendall(self, data: bytes) -> None:
        self.sent += data

    def recv(self, *_: object) -> bytes:
        return b""

    def shutdown(self, *_: object) -> None: ...
    def close(self) -> None: ...
