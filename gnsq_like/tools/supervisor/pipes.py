"""Messages between the master and a worker: a line of JSON each, over pipes.

One pipe carries commands, the other one reports. Their ends also show deaths: a worker whose commands end has lost its
master. Writing never blocks: the master must not wait for a worker, nor a worker's hub for a master that is stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

#: Largest backlog of a pipe that is not read; further messages are dropped.
_MAX_BACKLOG = 1 << 20
_READ_BYTES = 65536


class LineReader:
    """The reading end of a pipe; closes it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        #: Whether the other end is closed.
        self.is_over = False
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """The messages that have come, maybe none. Blocks if the descriptor does.

        Lines that are no messages are ignored: a worker's code may write to any descriptor.
        """
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.is_over = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        messages = list(self._messages(lines))
        # There may be more, which the last read of a process's reports must not miss.
        return messages + self.read() if len(data) == _READ_BYTES else messages

    @staticmethod
    def _messages(lines: list[bytes]) -> Iterator[dict[str, Any]]:
        for line in lines:
            with suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict) and isinstance(message.get("is"), str):
                    yield message

    def close(self) -> None:
        """Close the descriptor; twice is fine."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class LineWriter:
    """The writing end of a pipe; closes it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._backlog = bytearray()
        os.set_blocking(descriptor, False)

    @property
    def is_behind(self) -> bool:
        """Whether messages wait to be written."""
        return bool(self._backlog)

    def send(self, kind: str, **content: Any) -> None:
        """Send a message, or keep it for :meth:`flush` if the pipe is full. Never blocks, never raises."""
        if len(self._backlog) < _MAX_BACKLOG:
            self._backlog += json.dumps({"is": kind, **content}).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Write as much of the backlog as the pipe takes."""
        try:
            while self._backlog:
                del self._backlog[: os.write(self.descriptor, self._backlog)]
        except BlockingIOError:
            pass
        except OSError:  # the other side has gone, which is noticed elsewhere
            self._backlog.clear()

    def close(self) -> None:
        """Close the descriptor; twice is fine."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
