"""The body of an HTTP request, read from its connection up to its end and never beyond (docs/internals 3.1).

Nothing may be executed before its request is complete. So an application first calls :meth:`Body.read` with a limit, or
:meth:`Body.drop`; both raise if the client disconnects in the middle, or sends chunks that break RFC 9112. After that,
the connection cannot be used for another request.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from io import BufferedIOBase

import gevent

from gnsq_like.httpd.connections import BYTES_PER_SECOND, HTTPConnection

#: A chunk's size and its extension, which is ignored. The line must end in CRLF: a bare LF, which ends the line for
#: some parsers and not for others, allows request smuggling.
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*|;[^\r\n]*)\r\n")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n")
#: The bytes of a chunk's line, and of all trailers.
_MAX_LINE_BYTES = 4096
#: Bytes that are skipped to keep a connection open; beyond that, it is closed. As in Go.
_MAX_SKIPPED_BYTES = 256 * 1024
_PIECE_BYTES = 64 * 1024
#: After so many reads, let other greenlets run: data that has already arrived is read without a switch.
_READS_IN_A_ROW = 1024


class BadBody(OSError):
    """The body is cut off or malformed. An OSError, as applications expect of their input."""


class Body:
    """A request's body, as ``wsgi.input``.

    :param file: the input of the connection after the head
    :param content_length: its bytes; not used for chunked
    :param chunked: whether it comes in chunks
    :param invite: called before the first read; sends "100 Continue" if the client waits for that. May switch
    :param connection: limits the wait for a slow client; None for no limit
    """

    def __init__(
        self,
        file: BufferedIOBase,
        content_length: int,
        chunked: bool,
        invite: Callable[[], object] | None = None,
        connection: HTTPConnection | None = None,
    ) -> None:
        self._file = file
        self._connection = connection
        #: Seconds that the client has left; each byte received adds to it.
        self._seconds = connection.seconds if connection is not None else 0.0
        self._chunked = chunked
        self._invite = invite
        #: Bytes to come: of the body, or of the chunk.
        self._left = 0 if chunked else content_length
        #: Whether no byte of the body is left in the connection.
        self.ended: bool = not chunked and not content_length
        self._reads = 0
        self._is_broken = False

    def read(self, limit: int = -1) -> bytes:
        """The body, or its next ``limit`` bytes. May switch.

        :raises BadBody: if it is cut off or malformed
        :raises OSError: if the connection fails
        """
        pieces: list[bytes] = []
        wanted = limit
        while wanted != 0 and (piece := self._piece(wanted)):
            pieces.append(piece)
            if wanted > 0:
                wanted -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def drop(self) -> None:
        """Read up to the end of the body, however long it is, and drop it. May switch. Raises as ``read`` does."""
        while self._piece(-1):
            pass

    def skip(self) -> bool:
        """Drop the rest that an application left unread, if it is small. May switch.

        :return: whether the connection can be used for another request
        """
        if self.ended:
            return True
        if self._invite is not None or self._left >= _MAX_SKIPPED_BYTES:
            return False
        skipped = 0
        try:
            while skipped <= _MAX_SKIPPED_BYTES and (piece := self._piece(_MAX_SKIPPED_BYTES)):
                skipped += len(piece)
        except OSError:
            return False
        return self.ended

    def _discard(self) -> None:
        """Called by gevent after each response; ``skip`` has been called before it."""

    def _piece(self, most: int) -> bytes:
        """Some of the body, ``most`` bytes at most unless negative; b"" at its end."""
        if self.ended:
            return b""
        if self._is_broken:
            raise BadBody("the body is broken")
        if self._invite is not None:
            invite, self._invite = self._invite, None
            invite()
        try:
            return self._next(most) if self._connection is None else self._awaited(most, self._connection)
        except BaseException:
            self._is_broken = True
            raise

    def _awaited(self, most: int, connection: HTTPConnection) -> bytes:
        with connection.owed(self._seconds):
            data = self._next(most)
            left = connection.seconds_left + len(data) / BYTES_PER_SECOND
        self._seconds = min(left, connection.seconds)
        return data

    def _next(self, most: int) -> bytes:
        self._reads += 1
        if self._reads % _READS_IN_A_ROW == 0:
            gevent.sleep(0)
        if self._chunked and not self._left:
            self._left = self._chunk_size()
            if not self._left:
                self._read_trailers()
                self.ended = True
                return b""
        size = min(self._left, _PIECE_BYTES)
        data = self._file.read1(size if most < 0 else min(size, most))
        if not data:
            raise BadBody("the body is cut off")
        self._left -= len(data)
        if not self._left:
            if not self._chunked:
                self.ended = True
            elif self._file.read(2) != b"\r\n":
                raise BadBody("malformed chunk")
        return data

    def _chunk_size(self) -> int:
        match = _CHUNK_LINE.fullmatch(self._file.readline(_MAX_LINE_BYTES))
        if match is None:
            raise BadBody("malformed chunk size")
        return int(match[1], 16)

    def _read_trailers(self) -> None:
        """Read up to the end of a chunked body; trailers are dropped."""
        left = _MAX_LINE_BYTES
        while (line := self._file.readline(left)) != b"\r\n":
            left -= len(line)
            if left <= 0 or not _TRAILER_LINE.fullmatch(line):
                raise BadBody("malformed trailer")
