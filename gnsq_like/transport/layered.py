"""A stream socket with TLS, a codec, or both on top; same interface as ``TcpTransport``.

Data passed to ``send_now`` is encoded at once and cannot be withdrawn, because TLS and the codecs are streams: all of
it counts as sent, since the peer may see any part of it. Encoded bytes that the kernel has not accepted are counted in
``unsent``, and no further data is accepted until they are written; so the caller calls again while there are any, even
without new data.

Rules for editors: only ``receive`` may switch, and never between reading the socket and decoding the bytes read,
because another greenlet may call ``receive_now`` meanwhile.
"""

from __future__ import annotations

import time

from gnsq_like.transport.codec_stack import CodecStack
from gnsq_like.transport.tcp import TcpTransport, give_way

_NOTHING = memoryview(b"")


class LayeredTransport:
    """A connected socket whose bytes are encoded and decoded."""

    def __init__(self, tcp: TcpTransport, layers: CodecStack) -> None:
        self._tcp = tcp
        self.layers = layers
        #: Encoded bytes that the kernel has not accepted yet.
        self._wire = _NOTHING

    @property
    def drained(self) -> bool:
        """As ``TcpTransport.drained``."""
        return self._tcp.drained

    @drained.setter
    def drained(self, value: bool) -> None:
        self._tcp.drained = value

    @property
    def unsent(self) -> int:
        """Encoded bytes that the kernel has not accepted yet."""
        return len(self._wire)

    def fileno(self) -> int:
        """As ``TcpTransport.fileno``."""
        return self._tcp.fileno()

    def receive(self, timeout: float | None = None) -> bytes:
        """As ``TcpTransport.receive``, decoded. May switch.

        :raises ProtocolError: for invalid input
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._tcp.drained and self.layers.pending:
            give_way()  # without waiting for the socket, which may stay silent
        while True:
            raw = b""
            if not self.layers.pending:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:  # for a peer whose bytes decode to nothing
                    raise TimeoutError
                raw = self._tcp.receive(left)
                if not raw:
                    return b""
            try:
                data = self.layers.decode(raw)
            except EOFError:
                return b""
            if data:
                return data

    def receive_now(self) -> bytes | None:
        """As ``TcpTransport.receive_now``, decoded. Never switches.

        :raises ProtocolError: for invalid input
        """
        while True:
            raw: bytes | None = b""
            if not self.layers.pending:
                raw = self._tcp.receive_now()
                if not raw:
                    return raw
            try:
                data = self.layers.decode(raw or b"")
            except EOFError:
                return b""
            if data:
                return data

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
        left = self._wire[self._tcp.send_now(self._wire) :]
        self._wire = left if left else _NOTHING  # an empty slice would keep the whole buffer alive

    def has_input(self) -> bool:
        """As ``TcpTransport.has_input``, also true for bytes read and not yet decoded. Never switches."""
        return self.layers.pending or self._tcp.has_input()

    def abandon(self, loop_lives: bool = True) -> None:
        """As ``TcpTransport.abandon``: no close_notify, which would end the parent's connection. Never switches."""
        self._tcp.abandon(loop_lives)

    def close(self) -> None:
        """Send TLS's close_notify if the kernel accepts it at once, and close the socket; twice is fine."""
        try:
            last = self.layers.close()
            if last and not self._wire:
                self._tcp.send_now(last)
        except OSError:
            pass  # the peer is already gone
        self._tcp.close()
