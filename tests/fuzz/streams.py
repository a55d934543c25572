"""What the targets of fuzzing have in common: inputs cut into pieces, and a socket without a connection."""

from __future__ import annotations

import io
from collections.abc import Iterator


def head(data: bytes, count: int) -> tuple[bytes, bytes]:
    """The first ``count`` bytes, which choose how the rest is used, filled up with zeros; and the rest."""
    return data[:count].ljust(count, b"\0"), data[count:]


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    """The data in pieces of ``size`` bytes; whole for 0."""
    step = size or max(1, len(data))
    for start in range(0, len(data), step):
        yield data[start : start + step]


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
