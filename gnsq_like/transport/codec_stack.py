"""What lies between a socket and NSQ's commands and frames after an upgrade: TLS, then a codec (docs/internals 1.3).

Bytes to bytes. What is decoded comes out in pieces, of 256 KiB at most; while :attr:`Layers.pending`, ask for
the next piece before more is received, so that a few bytes that unpack to very many never lie in memory at once.
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
        """From now on everything goes through ``tls``, whose handshake is done, and through nothing else."""
        self.tls = tls
        self.codec = None

    def put_codec(self, codec: Codec) -> None:
        """From now on everything goes through ``codec``, inside of TLS if there is TLS."""
        self.codec = codec

    def encode(self, data: bytes | memoryview) -> bytes:
        """``data`` for the wire; the peer can read all of it at once.

        :raises ProtocolError: when TLS has broken
        """
        if self.codec is not None:
            data = self.codec.compress(data)
        return bytes(data) if self.tls is None else self.tls.encrypt(data)

    @property
    def pending(self) -> bool:
        """Whether :meth:`decode` is to be called before more is received."""
        codec, tls = self.codec, self.tls
        return (codec is not None and (codec.pending or codec.ended)) or (
            tls is not None and (tls.pending or tls.ended)
        )

    def decode(self, wire: bytes = b"") -> bytes:
        """A piece of what the peer sent, of ``wire`` and what came before it; b"" when there is none yet.

        :raises EOFError: when the peer has ended its stream
        :raises ProtocolError: for bytes that cannot be
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
        """What TLS itself has to say to the peer: an alert, an answer to a new key."""
        return b"" if self.tls is None else self.tls.take_output()

    def close(self) -> bytes:
        """The last bytes for the wire."""
        return b"" if self.tls is None else self.tls.close()
