"""A client's input, parsed for the daemons (docs/internals 1.1, 4.1).

A command is a line of words separated by single spaces; some commands have a body after the line, preceded
by its int32 size. nsqd checks the line (is the command valid in this state? is the topic name?) before it
reads the body. So input is parsed only on request: the caller takes a line, checks it, and takes the body that must
follow. Every ``take_`` method returns None or False while bytes are missing; feed more and call it again.

Three forms are taken all at once because they are most of a busy daemon's input: a run of FIN lines, a run of PUBs
to one topic, and the bodies of an MPUB.

The time is linear in the bytes however they are split: bytes that were not requested yet stay a list of pieces, which
are joined only when that completes something. Rules for editors: keep in step with ``commands``; ``held_bytes`` counts
every byte that is not taken.
"""

from __future__ import annotations

import re
import struct

from gnsq_like.errors import ProtocolError

#: nsqd's read buffer: a line that has not ended within it cannot be read (docs/internals 1.1).
MAX_LINE_BYTES = 16384
#: The smallest message in the body of an MPUB: its size and one byte.
LEAST_MPUB_ENTRY = 5

_INT32 = struct.Struct(">i")
# Lines with a space or CR before the newline, or too long a name, are left to take_line, which handles them.
_FIN_RUN = re.compile(rb"(?:FIN [^ \n]{15}[^ \r\n]\n)+")
_FIN_LINE = struct.Struct("4x16sx")
_PUB_LINE = re.compile(rb"PUB [^ \r\n]{1,64}\n")


class LineTooLong(ProtocolError):
    """A command line longer than MAX_LINE_BYTES; nsqd closes the connection without an error frame."""

    def __init__(self) -> None:
        super().__init__(f"a command line of more than {MAX_LINE_BYTES} bytes")


class BadBodySize(ProtocolError):
    """The size of one of MPUB's messages is out of range.

    :ivar position: the index of the message, from 0
    :ivar size: its size according to the client
    """

    def __init__(self, position: int, size: int) -> None:
        super().__init__(f"message {position} has size {size}")
        self.position = position
        self.size = size


class Requests:
    """The bytes from one client, taken command by command."""

    def __init__(self) -> None:
        #: Joined bytes; those before ``_position`` are taken.
        self._data = b""
        self._position = 0
        #: Where in ``_data`` to search for the next newline; there is none before.
        self._search_from = 0
        #: The bytes after ``_data`` that are not joined to it yet.
        self._pieces: list[bytes] = []
        self._newline_in_pieces = False
        #: Bytes fed and not taken yet.
        self.held_bytes: int = 0

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        if not self.held_bytes:
            self._data = data
        else:
            self._pieces.append(data)
            self._newline_in_pieces = self._newline_in_pieces or b"\n" in data
        self.held_bytes += len(data)

    def take_line(self) -> list[bytes] | None:
        """The words of the next line, without its LF or CRLF; at least one word, which may be empty.

        :raises LineTooLong: when there is no newline within MAX_LINE_BYTES
        """
        end = self._find_newline()
        if end < 0 and self._pieces and (self._newline_in_pieces or self.held_bytes >= MAX_LINE_BYTES):
            self._join()
            end = self._find_newline()
        if end < 0:
            if self.held_bytes >= MAX_LINE_BYTES:
                raise LineTooLong
            return None
        line = self._data[self._position : end]
        self._skip(end + 1 - self._position)
        if line.endswith(b"\r"):
            line = line[:-1]
        return line.split(b" ")

    def take_fins(self) -> list[bytes]:
        """The message ids of the FIN lines that come next, as far as they are simple and complete."""
        run = _FIN_RUN.match(self._data, self._position)
        if run is None:
            return []
        lines = run.group()
        self._skip(len(lines))
        return [message_id for (message_id,) in _FIN_LINE.iter_unpack(lines)]

    def take_pubs(self, most: int, max_bytes: int) -> tuple[bytes, list[bytes]]:
        """The topic and the messages of the PUBs to one topic that come next, as far as they are simple and complete.

        :param most: how many at once
        :param max_bytes: the largest valid message
        """
        data, position = self._data, self._position
        bodies: list[bytes] = []
        first = _PUB_LINE.match(data, position)
        if first is None:
            return b"", bodies
        line = first.group()
        while data.startswith(line, position) and len(bodies) < most:
            start = position + len(line) + 4
            if start > len(data):
                break
            size = _INT32.unpack_from(data, start - 4)[0]
            stop = start + size
            if not 0 < size <= max_bytes or stop > len(data):
                break
            bodies.append(data[start:stop])
            position = stop
        self._skip(position - self._position)
        return line[4:-1], bodies

    def take_int32(self) -> int | None:
        """The next four bytes as a signed number."""
        if not self._has(4):
            return None
        number: int = _INT32.unpack_from(self._data, self._position)[0]
        self._skip(4)
        return number

    def take_bytes(self, count: int) -> bytes | None:
        """The next ``count`` bytes."""
        if not self._has(count):
            return None
        taken = self._data[self._position : self._position + count]
        self._skip(count)
        return taken

    def take_bodies(self, bodies: list[bytes], count: int, max_bytes: int) -> bool:
        """Add to ``bodies`` the complete messages of an MPUB; True when there are ``count``.

        :param bodies: the messages from earlier calls for this MPUB
        :param max_bytes: the largest valid message
        :raises BadBodySize: as soon as a size is not from 1 to ``max_bytes``
        """
        while len(bodies) < count:
            self._cut_bodies(bodies, count, max_bytes)
            if len(bodies) == count:
                break
            if not self._has(4):
                return False
            size = _INT32.unpack_from(self._data, self._position)[0]
            if not 0 < size <= max_bytes:
                raise BadBodySize(len(bodies), size)
            if not self._has(4 + size):
                return False
        return True

    def _cut_bodies(self, bodies: list[bytes], count: int, max_bytes: int) -> None:
        """Take the messages that are complete in ``_data``, up to the first invalid size."""
        data = self._data
        position = self._position
        last_head = len(data) - 4
        unpack = _INT32.unpack_from
        append = bodies.append
        for _ in range(count - len(bodies)):
            if position > last_head:
                break
            size = unpack(data, position)[0]
            stop = position + 4 + size
            if not 0 < size <= max_bytes or stop > last_head + 4:
                break
            append(data[position + 4 : stop])
            position = stop
        self._skip(position - self._position)

    def _find_newline(self) -> int:
        limit = self._position + MAX_LINE_BYTES
        end = self._data.find(b"\n", max(self._position, self._search_from), limit)
        if end < 0:
            self._search_from = min(len(self._data), limit)
        return end

    def _skip(self, count: int) -> None:
        self.held_bytes -= count
        if self.held_bytes:
            self._position += count
        else:  # an idle client needs no memory
            self._data = b""
            self._position = self._search_from = 0

    def _has(self, count: int) -> bool:
        """Whether ``count`` bytes are held; if so, join them into ``_data``."""
        if self._position + count <= len(self._data):
            return True
        if self.held_bytes < count:
            return False
        self._join()
        return True

    def _join(self) -> None:
        rest = self._data[self._position :]
        self._search_from = max(0, self._search_from - self._position)
        self._data = b"".join([rest, *self._pieces])
        self._position = 0
        self._pieces = []
        self._newline_in_pieces = False
