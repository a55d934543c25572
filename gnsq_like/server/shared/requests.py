"""Requests: what a client sends, taken apart again for the daemons' side (docs/internals 1.1, 4.1).

A command is a line of words parted by single spaces; some commands are followed by a body behind its
int32 size. nsqd decides between the two (is the state right? is the topic name?) and refuses a command
without having read its body. So nothing is cut here before it is asked for: whoever executes the
commands pulls a line, judges it, and pulls what must follow. Every ``take_`` method gives None, or
False, while the bytes are not there yet; feed more and ask again.

Two shapes are cut in one go because a busy daemon sees little else: a run of FIN lines, and the bodies
of an MPUB.

It is linear in the bytes however they are split: what is not asked for yet stays a list of pieces, and
pieces are joined only when that completes something. Rules for editors: keep in step with ``commands``;
``_held`` counts every byte that is neither taken nor given up.
"""

from __future__ import annotations

import re
import struct

from gnsq_like.errors import ProtocolError

#: nsqd's read buffer: a line that has not ended within it cannot be read (docs/internals 1.1).
MAX_LINE_BYTES = 16384

_INT32 = struct.Struct(">i")
# No space and no CR before the newline: such lines are left to take_line, which knows what they mean.
_FIN_RUN = re.compile(rb"(?:FIN [^ \n]{15}[^ \r\n]\n)+")
_FIN_LINE = struct.Struct("4x16sx")


class LineTooLong(ProtocolError):
    """A command line longer than MAX_LINE_BYTES; nsqd closes without a word."""

    def __init__(self) -> None:
        super().__init__(f"a command line of more than {MAX_LINE_BYTES} bytes")


class BadBodySize(ProtocolError):
    """The size of one of MPUB's messages is out of range.

    :ivar position: which message, from 0
    :ivar size: what the client gave as its size
    """

    def __init__(self, position: int, size: int) -> None:
        super().__init__(f"message {position} has size {size}")
        self.position = position
        self.size = size


class Requests:
    """The bytes of one client, to be taken command by command."""

    def __init__(self) -> None:
        #: Joined bytes; those before ``_position`` are taken.
        self._data = b""
        self._position = 0
        #: Where in ``_data`` to look for the next newline: before it there is none.
        self._search_from = 0
        #: What came after ``_data`` and has not been joined to it.
        self._pieces: list[bytes] = []
        self._newline_in_pieces = False
        #: All bytes fed and not taken.
        self._held = 0

    @property
    def held_bytes(self) -> int:
        """Bytes received and not taken yet."""
        return self._held

    def feed(self, data: bytes) -> None:
        """Add what was received."""
        if not self._held:
            self._data = data
            self._position = self._search_from = 0
        else:
            self._pieces.append(data)
            self._newline_in_pieces = self._newline_in_pieces or b"\n" in data
        self._held += len(data)

    def take_line(self) -> list[bytes] | None:
        """The words of the next line, without its LF or CRLF; at least one word, which may be empty.

        :raises LineTooLong: when there is no newline within MAX_LINE_BYTES
        """
        if not self._held:
            self._data = b""  # an idle client is to hold no memory
            return None
        end = self._find_newline()
        if end < 0 and self._pieces and (self._newline_in_pieces or self._held >= MAX_LINE_BYTES):
            self._join()
            end = self._find_newline()
        if end < 0:
            if self._held >= MAX_LINE_BYTES:
                raise LineTooLong
            return None
        line = self._data[self._position : end]
        self._skip(end + 1 - self._position)
        if line.endswith(b"\r"):
            line = line[:-1]
        return line.split(b" ")

    def take_fins(self) -> list[bytes]:
        """The message ids of all FIN lines that come next, as far as they are plain and whole; else empty."""
        data, position = self._data, self._position
        if not data.startswith(b"FIN ", position):
            return []
        run = _FIN_RUN.match(data, position)
        if run is None:
            return []
        lines = run.group()
        self._skip(len(lines))
        return [message_id for (message_id,) in _FIN_LINE.iter_unpack(lines)]

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
        start = self._position
        self._skip(count)
        return self._data[start : start + count]

    def take_bodies(self, bodies: list[bytes], count: int, max_bytes: int) -> bool:
        """Add to ``bodies`` the messages of an MPUB that are whole; True when there are ``count``.

        :param bodies: what earlier calls for this MPUB have gathered
        :param max_bytes: the largest message that is taken
        :raises BadBodySize: as soon as a size is seen that is not within 1 to ``max_bytes``
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
        """Cut what lies whole in ``_data``, up to the first size that is wrong."""
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
        self._position += count
        self._held -= count

    def _has(self, count: int) -> bool:
        """Whether ``count`` bytes are held; if so they are in ``_data``."""
        if self._position + count <= len(self._data):
            return True
        if self._held < count:
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
