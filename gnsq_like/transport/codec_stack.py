"""The layers between a socket and NSQ's commands and frames after an upgrade: TLS, then a codec (docs/internals 1.3).

Bytes to bytes. Decoded data is returned in pieces of 256 KiB at most; while :attr:`CodecStack.pending`, take the next
piece before receiving more, so that a small input that expands to much data is never in memory as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnsq_like.transport.compression import Codec
    from gnsq_like.transport.tls import Tls


class CodecStack:
    """TLS and codec of one connection."""

    def __init__(self) -> None:
        self.tls: Tls | None = None
        self.codec: Codec | None = None

    def put_tls(self, tls: Tls) -> None:
        """Use ``tls``, whose handshake is complete, and no codec from now on."""
        self.tls = tls
        self.codec = None

    def put_codec(self, codec: Codec) -> None:
        """Use ``codec`` from now on, inside TLS if there is TLS."""
        self.codec = codec

    def encode(self, data: bytes | memoryview) -> bytes:
        """Encode ``data`` for the wire; the peer can decode all of it at once.

        :raises ProtocolError: if TLS has failed
        """
        if self.codec is not None:
            data = self.codec.compress(data)
        return bytes(data) if self.tls is None else self.tls.encrypt(data)

    @property
    def pending(self) -> bool:
        """Whether to call :meth:`decode` before receiving more."""
        codec, tls = self.codec, self.tls
        return (codec is not None and (codec.pending or codec.ended)) or (
            tls is not None and (tls.pending or tls.ended)
        )

    def decode(self, wire: bytes = b"") -> bytes:
        """Take ``wire`` and return a piece of the decoded data; b"" if more input is needed.

        :raises EOFError: if the peer has ended its stream
        :raises ProtocolError: for invalid input
        """
        codec, tls = self.codec, self.tls
        if codec is not None and codec.pending and not wire:
            return codec.decompress()
        if tls is not None:
            wire = tls.decrypt(wire)
        data = wire if codec is None else codec.decompress(wire)
        if not data and ((codec is not None and codec.ended) or (tls is not None and tls.ended)):
            raise EOFError
        return data

    def take_output(self) -> bytes:
        """Bytes that TLS itself has to send: an alert, a reply to a key update."""
        return b"" if self.tls is None else self.tls.take_output()

    def close(self) -> bytes:
        """The last bytes for the wire: TLS's close_notify."""
        return b"" if self.tls is None else self.tls.close()
