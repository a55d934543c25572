"""A ``TcpTransport`` with TLS, a codec, or both on top (docs/internals 1.3).

``CodecStack`` is these layers, bytes to bytes: TLS, then a codec. Decoded data is returned in pieces of 256 KiB at
most; while :attr:`CodecStack.pending`, take the next piece before receiving more, so that a small input that expands to
much data is never in memory as a whole.

Data passed to ``send_now`` is encoded at once and cannot be withdrawn, because TLS and the codecs are streams: all of
it counts as sent, since the peer may see any part of it. Encoded bytes that the kernel has not accepted are counted in
``unsent``, and no further data is accepted until they are written; so the caller calls again while there are any, even
without new data.

Rules for editors: only ``wait`` may switch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gevent

from gnsq_like.transport.tcp import TcpTransport

if TYPE_CHECKING:
    from gnsq_like.transport.compression import Codec
    from gnsq_like.transport.tls import Tls


class CodecStack:
    """TLS and codec of one connection; each is assigned where it begins."""

    def __init__(self) -> None:
        #: Its handshake is complete.
        self.tls: Tls | None = None
        #: Inside TLS, if there is TLS.
        self.codec: Codec | None = None

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


_NOTHING = memoryview(b"")


class LayeredTransport(TcpTransport):
    """A connected socket whose bytes are encoded and decoded; takes that of ``tcp``."""

    def __init__(self, tcp: TcpTransport, layers: CodecStack) -> None:
        super().__init__(tcp.hand_over())
        self.layers = layers
        #: Encoded bytes that the kernel has not accepted yet.
        self._wire = _NOTHING

    def wait(self) -> None:
        """As ``TcpTransport.wait``; with bytes read and not decoded yet, only until the hub has polled its sockets."""
        if not self.layers.pending:
            super().wait()
            return
        with gevent.get_hub().loop.timer(0.0) as timer:
            timer.start(gevent.getcurrent().switch)
            super().wait()

    def shut(self) -> None:
        """As ``TcpTransport.shut``, after TLS's close_notify if the kernel accepts it at once. Never switches."""
        try:
            last = self.layers.close()
            if last and not self._wire:
                super().send_now(last)
        except OSError:
            pass  # the peer is already gone
        super().shut()

    def receive_now(self) -> bytes | None:
        """As ``TcpTransport.receive_now``, decoded; None also if what has arrived is no whole piece. Never switches.

        :raises ProtocolError: for invalid input
        """
        pending = self.layers.pending
        raw = b"" if pending else super().receive_now()
        if raw is None or not (raw or pending):
            return raw
        try:
            return self.layers.decode(raw) or None
        except EOFError:
            return b""

    def send_now(self, data: bytes | memoryview) -> int:
        """Accept all of ``data`` or, while bytes are ``unsent``, none; returns the number of bytes. Never switches.

        :raises OSError: if the socket fails; then nothing of ``data`` was written
        :raises ProtocolError: if TLS has failed
        """
        if self._wire:
            self._push()
            if self._wire:
                return 0
        if data:
            self._wire = memoryview(self.layers.encode(data))
            self._push()
        return len(data)

    def _push(self) -> None:
        left = self._wire[super().send_now(self._wire) :]
        self._wire = left if left else _NOTHING  # an empty slice would keep the whole buffer alive
        self.unsent = len(left)

    def has_input(self) -> bool:
        """As ``TcpTransport.has_input``, also true for bytes read and not yet decoded. Never switches."""
        return self.layers.pending or super().has_input()
