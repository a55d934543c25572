"""A client of plain bytes that goes on through TLS and a codec, of Python's ssl and zlib and of python-snappy."""

from __future__ import annotations

import json
import ssl
import zlib
from collections.abc import Callable
from typing import Any

import snappy
from gevent import socket

from tests.support.raw import Client, sized

Bytes = Callable[[bytes], bytes]


class Sock:
    """What Client needs of a socket; for subclasses, which encode and decode.

    :param piece: bytes of one send at most; 0 for any number
    """

    def __init__(self, sock: Any, piece: int = 0) -> None:
        self.sock = sock
        self.piece = piece
        #: Bytes asked of ``sock`` in one read: 1 so that nothing is read that a later layer is to decode.
        self.bite = 65536
        self._decoded = b""

    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        return data

    def sendall(self, data: bytes) -> None:
        wire = self.encode(data)
        for start in range(0, len(wire), self.piece or len(wire)):
            self.sock.sendall(wire[start : start + (self.piece or len(wire))])

    def recv(self, count: int) -> bytes:
        while not self._decoded:
            data = self.sock.recv(self.bite)
            if not data:
                return b""
            self._decoded = self.decode(data)
        data, self._decoded = self._decoded[:count], self._decoded[count:]
        return data

    def close(self) -> None:
        self.sock.close()


class Split(Sock):
    """Every byte is sent by itself."""

    def __init__(self, sock: Any) -> None:
        super().__init__(sock, piece=1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class TLS(Sock):
    def __init__(self, sock: Any, context: ssl.SSLContext, server_hostname: str = "127.0.0.1") -> None:
        super().__init__(sock)
        #: Whether the other end said close_notify.
        self.goodbye = False
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(self._in, self._out, server_hostname=server_hostname)
        while True:
            try:
                self.object.do_handshake()
            except ssl.SSLWantReadError:
                sock.sendall(self._out.read())
                data = sock.recv(65536)
                assert data, "the connection ended during the handshake"
                self._in.write(data)
            else:
                sock.sendall(self._out.read())
                break
        self._decoded = self.decode(b"")

    def encode(self, data: bytes) -> bytes:
        self.object.write(data)
        return self._out.read()

    def decode(self, data: bytes) -> bytes:
        self._in.write(data)
        pieces = []
        while True:
            try:
                piece = self.object.read(65536)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                piece = b""
            if not piece:
                self.goodbye = True
                break
            pieces.append(piece)
        return b"".join(pieces)


class Snappy(Sock):
    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self.encode = snappy.StreamCompressor().compress  # type: ignore[method-assign]
        self.decode = snappy.StreamDecompressor().decompress  # type: ignore[method-assign]


class Deflate(Sock):
    def __init__(self, sock: Any, level: int = 6) -> None:
        super().__init__(sock)
        self._packer = zlib.compressobj(level, zlib.DEFLATED, -15)
        self._unpacker = zlib.decompressobj(-15)

    def decode(self, data: bytes) -> bytes:
        return self._unpacker.decompress(data)

    def encode(self, data: bytes) -> bytes:
        return self._packer.compress(data) + self._packer.flush(zlib.Z_SYNC_FLUSH)


def negotiate(client: Client, **fields: object) -> dict[str, Any]:
    """IDENTIFY with negotiation; its answer."""
    client.send(b"IDENTIFY\n", sized(json.dumps({"feature_negotiation": True, **fields}).encode()))
    answer: dict[str, Any] = json.loads(client.frame()[1])
    return answer


def upgrade(client: Client, context: ssl.SSLContext | None = None, codec: str = "", level: int = 6) -> dict[str, Any]:
    """IDENTIFY, and the upgrades: TLS with ``context``, then ``codec``; gives IDENTIFY's answer."""
    wanted: dict[str, object] = {"tls_v1": True} if context is not None else {}
    if codec:
        wanted |= {codec: True, "deflate_level": level}
    answer = negotiate(client, **wanted)
    if context is not None:
        client.sock = TLS(client.sock, context)
        client.expect(b"OK")
    if codec:
        client.sock = Snappy(client.sock) if codec == "snappy" else Deflate(client.sock, level)
        client.expect(b"OK")
    return answer
