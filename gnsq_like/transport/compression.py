"""The two codecs of NSQ, as bytes to bytes: snappy framing and raw deflate (docs/internals 1.3).

One object serves one connection, both directions, for the connection's life::

    codec = Snappy()                 # or Deflate(level)
    wire = codec.compress(data)      # the peer can decode all of it at once
    piece = codec.decompress(wire)   # at most max_bytes; then, while codec.pending:
    piece = codec.decompress()       # the next piece; b"" when more input is needed

A small input can expand to much data, so output is returned in pieces and nothing is decompressed before it is
requested: besides the input and one piece, a codec holds at most one chunk (snappy, 64 KiB) or zlib's window. Invalid
input raises ProtocolError, and the object then refuses further input.

The snappy framing is parsed here, and lengths are checked before anything is decompressed; python-snappy decompresses
whole chunks and verifies their checksums. The format is google/snappy's framing_format.txt.
"""

from __future__ import annotations

import zlib

import snappy

from gnsq_like.errors import ProtocolError

#: Bytes of one piece; at least the size of one decompressed snappy chunk.
PIECE_BYTES = 256 * 1024

#: Limits of a snappy chunk, decompressed and compressed (a 4-byte checksum and snappy's worst case).
_MAX_CHUNK_BYTES = 65536
_MAX_PACKED_BYTES = 4 + 32 + _MAX_CHUNK_BYTES + _MAX_CHUNK_BYTES // 6

_COMPRESSED, _UNCOMPRESSED, _IDENTIFIER = 0x00, 0x01, 0xFF
#: Unknown chunks of these types and above may be skipped; 0xFE is padding.
_FIRST_SKIPPABLE = 0x80
_STREAM_NAME = b"sNaPpY"


class Codec:
    """What both codecs have."""

    def __init__(self) -> None:
        #: Whether ``decompress()`` may return more without more input.
        self.pending = False
        #: Whether the peer has ended its stream.
        self.ended = False
        self._error: ProtocolError | None = None

    def compress(self, data: bytes | memoryview) -> bytes:
        """Compress ``data``; the peer can decode all of it at once."""
        raise NotImplementedError

    def decompress(self, data: bytes = b"", max_bytes: int = PIECE_BYTES) -> bytes:
        """Take ``data``, and return decompressed data of everything taken so far.

        :param max_bytes: at most this much is returned, or one chunk of snappy's (64 KiB) if that is more
        :returns: b"" if more input is needed; while ``pending``, call again first
        :raises ProtocolError: for invalid input, and after it
        """
        if self._error is not None:
            raise self._error
        try:
            return self._take(data, max_bytes)
        except ProtocolError as exc:
            self._error = exc
            self.pending = False
            raise

    def _take(self, data: bytes, max_bytes: int) -> bytes:
        raise NotImplementedError


class Snappy(Codec):
    """Snappy's framing format, which has no end."""

    def __init__(self) -> None:
        super().__init__()
        self._packer = snappy.StreamCompressor()
        self._unpacker = snappy.StreamDecompressor()
        #: Input not decompressed yet, and the position up to which it is parsed.
        self._input = b""
        self._position = 0
        #: Bytes left of a chunk that is skipped.
        self._to_skip = 0
        self._identified = False

    def compress(self, data: bytes | memoryview) -> bytes:
        """``data`` as chunks of at most 64 KiB."""
        return bytes(self._packer.compress(bytes(data)))

    def _take(self, data: bytes, max_bytes: int) -> bytes:
        self._input = self._input[self._position :] + data
        self._position = 0
        return self._unpack(self._cut(max_bytes))

    def _cut(self, max_bytes: int) -> bytes:
        """The complete chunks, without skipped ones, that decompress to at most ``max_bytes``."""
        data = self._input
        chunks: list[bytes] = []
        size = 0
        self.pending = False
        while True:
            skipped = min(self._to_skip, len(data) - self._position)
            self._to_skip -= skipped
            position = self._position = self._position + skipped
            if position + 4 > len(data):
                break
            kind = data[position]
            packed = int.from_bytes(data[position + 1 : position + 4], "little")
            self._check_head(kind, packed)
            stop = position + 4 + packed
            if kind in (_COMPRESSED, _UNCOMPRESSED):
                if stop > len(data):
                    break
                unpacked = _unpacked_size(data, position + 8, stop) if kind == _COMPRESSED else packed - 4
                if size and size + unpacked > max_bytes:
                    self.pending = True
                    break
                size += unpacked
                chunks.append(data[position:stop])
                self._position = stop
            elif kind == _IDENTIFIER:
                if stop > len(data):
                    break
                if data[position + 4 : stop] != _STREAM_NAME:
                    raise ProtocolError(f"invalid snappy stream identifier {data[position + 4 : stop]!r}")
                self._identified = True
                self._position = stop
            else:
                self._position += 4
                self._to_skip = packed
        return b"".join(chunks)

    def _check_head(self, kind: int, packed: int) -> None:
        if not self._identified and kind != _IDENTIFIER:
            raise ProtocolError("not a snappy stream: the stream identifier is missing")
        if kind == _COMPRESSED:
            fits = 5 <= packed <= _MAX_PACKED_BYTES
        elif kind == _UNCOMPRESSED:
            fits = 4 <= packed <= 4 + _MAX_CHUNK_BYTES
        elif kind == _IDENTIFIER:
            fits = packed == len(_STREAM_NAME)
        elif kind >= _FIRST_SKIPPABLE:
            fits = True
        else:
            raise ProtocolError(f"snappy chunk of unknown type 0x{kind:02x}")
        if not fits:
            raise ProtocolError(f"invalid snappy chunk of type 0x{kind:02x} with {packed} bytes")

    def _unpack(self, chunks: bytes) -> bytes:
        if not chunks:
            return b""
        try:
            return bytes(self._unpacker.decompress(chunks))
        except Exception as exc:  # python-snappy's exceptions depend on its backend
            raise ProtocolError(f"invalid snappy data: {exc}") from exc


def _unpacked_size(data: bytes, start: int, stop: int) -> int:
    """The decompressed size that a compressed block states: a varint at its start."""
    size = 0
    for index, byte in enumerate(data[start : min(stop, start + 3)]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if size > _MAX_CHUNK_BYTES:
                break
            return size
    raise ProtocolError(f"snappy chunk decompresses to more than {_MAX_CHUNK_BYTES} bytes")


class Deflate(Codec):
    """Raw deflate; every ``compress`` ends with a sync flush.

    :param level: 1 (fast) to 9 (small)
    """

    def __init__(self, level: int = 6) -> None:
        super().__init__()
        self._packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._unpacker = zlib.decompressobj(-zlib.MAX_WBITS)

    def compress(self, data: bytes | memoryview) -> bytes:
        """``data`` deflated, up to a sync flush."""
        return self._packer.compress(data) + self._packer.flush(zlib.Z_SYNC_FLUSH)

    def _take(self, data: bytes, max_bytes: int) -> bytes:
        unpacker = self._unpacker
        left = unpacker.unconsumed_tail
        try:
            piece = unpacker.decompress(left + data if left else data, max_bytes)
        except zlib.error as exc:
            raise ProtocolError(f"invalid deflate data: {exc}") from exc
        self.ended = unpacker.eof
        if unpacker.unused_data:
            raise ProtocolError("data after the end of a deflate stream")
        # When a piece is full, zlib may hold the rest of a match internally.
        self.pending = not self.ended and (bool(unpacker.unconsumed_tail) or len(piece) == max_bytes)
        return piece
