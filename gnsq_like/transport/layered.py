"""A stream socket under TLS, a codec, or both. It offers what ``TcpTransport`` offers.

What ``send_now`` takes is encoded at once and cannot be taken back, for TLS and the codecs are streams: all of
it counts as sent, because the peer may come to see any part of it. What the kernel has not taken of the encoded
form is counted in ``unsent``, and nothing more is taken before that is written; so whoever writes calls again
while there is any, also without new data.

Rules for editors: only ``receive`` may switch, and never between reading the socket and decoding what was read:
another greenlet may call ``receive_now`` meanwhile.
"""

from __future__ import annotations

import time

from gnsq_like.transport.codec_stack import CodecStack
from gnsq_like.transport.tcp import TcpTransport, give_way

_NOTHING = memoryview(b"")


class LayeredTransport:
    """A connected socket's bytes, encoded and decoded."""

    def __init__(self, tcp: TcpTransport, layers: CodecStack) -> None:
        self._tcp = tcp
        self.layers = layers
        #: Encoded bytes that the kernel has not taken yet.
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
        """Encoded bytes that the kernel has not taken yet."""
        return len(self._wire)

    def fileno(self) -> int:
        """As ``TcpTransport.fileno``."""
        return self._tcp.fileno()

    def receive(self, timeout: float | None = None) -> bytes:
        """As ``TcpTransport.receive``, decoded. May switch.

        :raises ProtocolError: for input that cannot be decoded
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._tcp.drained and self.layers.pending:
            give_way()  # waiting for the socket, where nothing may come, would not do
        while True:
            raw = b""
            if not self.layers.pending:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:  # also for a peer whose bytes come to nothing
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

        :raises ProtocolError: for input that cannot be decoded
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
        """Take ``data``, all of it or, while bytes are ``unsent``, none; how many bytes that was. Never switches.

        :raises OSError: when the socket breaks; then nothing of ``data`` was written
        :raises ProtocolError: when TLS has broken
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
        self._wire = left if left else _NOTHING  # an empty slice would keep all that was sent

    def has_input(self) -> bool:
        """As ``TcpTransport.has_input``; also for what was read and is not decoded yet. Never switches."""
        return self.layers.pending or self._tcp.has_input()

    def abandon(self) -> None:
        """As ``TcpTransport.abandon``: no TLS goodbye, which would end the parent's connection. Never switches."""
        self._tcp.abandon()

    def close(self) -> None:
        """Say goodbye, if TLS is there and the kernel takes it, and close the socket; twice is fine."""
        try:
            goodbye = self.layers.close()
            if goodbye and not self._wire:
                self._tcp.send_now(goodbye)
        except OSError:
            pass  # the peer is gone already
        self._tcp.close()
