"""An HTTP server that follows a script to the byte, on a loopback socket."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.support.certificates import server_context


@dataclass
class Asked:
    """A request as it was received."""

    line: str
    headers: dict[str, str]
    body: bytes


class Peer:
    """The server's side of one connection."""

    def __init__(self, server: ScriptedServer, sock: socket.socket) -> None:
        self.server = server
        self.sock = sock
        self._file = sock.makefile("rb")

    def request(self) -> Asked | None:
        """Read the next request; None at the end of the connection."""
        line = self._file.readline().decode().strip()
        if not line:
            return None
        headers = {}
        while header := self._file.readline().decode().strip():
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        asked = Asked(line, headers, self._file.read(int(headers.get("content-length", 0))))
        self.server.asked.append(asked)
        return asked

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def hang(self) -> None:
        """Do nothing until the test is over."""
        self.server.over.wait()

    def drip(self, data: bytes, interval: float = 0.05) -> None:
        """Send byte by byte, each well within any timeout of a single read."""
        for position in range(len(data)):
            if self.server.over.wait(interval):
                return
            self.send(data[position : position + 1])

    def close(self) -> None:
        self._file.close()
        self.sock.close()


Script = Callable[[Peer], object]


class ScriptedServer:
    """Runs ``script`` for each connection, in a thread of its own."""

    def __init__(self, script: Script, host: str = "127.0.0.1", tls: bool = False) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._script = script
        self._listener = socket.create_server((host, 0), family=family)
        #: For localhost and 127.0.0.1, by an authority that only tests know.
        self._tls = server_context("localhost", "127.0.0.1") if tls else None
        self.port: int = self._listener.getsockname()[1]
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        #: All requests, in their order.
        self.asked: list[Asked] = []
        #: Connections accepted.
        self.connections = 0
        #: Set when the test is over.
        self.over = threading.Event()
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # stop() has shut it down
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        # A script is not concerned with errors of a connection that the client gave up.
        with contextlib.suppress(OSError, ValueError):
            sock.settimeout(60)
            if self._tls:
                sock = self._tls.wrap_socket(sock, server_side=True)
            self._open.add(sock)
            peer = Peer(self, sock)
            try:
                self._script(peer)
            finally:
                self._open.discard(sock)
                peer.close()
        sock.close()

    def stop(self) -> None:
        self.over.set()
        for sock in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(15)
        self._listener.close()


@contextlib.contextmanager
def scripted(script: Script, host: str = "127.0.0.1", tls: bool = False) -> Iterator[ScriptedServer]:
    server = ScriptedServer(script, host, tls)
    try:
        yield server
    finally:
        server.stop()


def response(body: bytes | str = b"OK", status: str = "200 OK", *headers: str) -> bytes:
    """The bytes of a whole response."""
    body = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def always(answer: bytes | Callable[[Asked], bytes]) -> Script:
    """A script that responds so to every request of a connection."""

    def script(peer: Peer) -> None:
        while asked := peer.request():
            peer.send(answer(asked) if callable(answer) else answer)

    return script


def once(answer: bytes) -> Script:
    """A script that responds so to the first request of a connection, and ends the connection."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(answer)

    return script
