"""A scripted peer: a test says byte by byte what nsqd does; an address whose queue is full; answers to IDENTIFY."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gevent import socket
from gevent.event import Event
from gevent.queue import Queue
from gevent.server import StreamServer

from gnsq_like.wire.frames import ERROR, RESPONSE, encode_frame, encode_messages

#: Seconds for what must come. Long: it is over as soon as that comes, and only a test that fails takes longer.
PATIENCE = 30.0

OK = encode_frame(RESPONSE, b"OK")
HEARTBEAT = encode_frame(RESPONSE, b"_heartbeat_")
CLOSE_WAIT = encode_frame(RESPONSE, b"CLOSE_WAIT")


class Peer:
    """The other end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(PATIENCE)
        #: Until when the server keeps the connection: a test says so, and not the end of a handler.
        self.done = Event()
        self._read = b""

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def error(self, text: str) -> None:
        self.send(encode_frame(ERROR, text.encode()))

    def messages(self, *ids: bytes, attempts: int = 1, body: bytes = b"body") -> None:
        self.send(encode_messages([(1_000_000_000, attempts, message_id, body) for message_id in ids]))

    def take(self, count: int) -> bytes:
        """Exactly ``count`` bytes."""
        while len(self._read) < count:
            data = self.sock.recv(65536)
            assert data, f"the stream ended after {self._read!r}"
            self._read += data
        taken, self._read = self._read[:count], self._read[count:]
        return taken

    def line(self) -> bytes:
        """One command line, without its end."""
        while b"\n" not in self._read:
            data = self.sock.recv(65536)
            assert data, f"the stream ended after {self._read!r}"
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line

    def body(self) -> bytes:
        """What follows a command line: a size and so many bytes."""
        [size] = struct.unpack(">i", self.take(4))
        return self.take(size)

    def ended(self) -> bool:
        """Whether the client closed its end; waits for that, over whatever it still sends."""
        try:
            while data := self.sock.recv(65536):
                self._read += data
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    def identify(self, **answer: object) -> dict[str, object]:
        """Take magic and IDENTIFY, and answer; with nothing given, by a plain OK."""
        assert self.take(4) == b"  V2"
        assert self.line() == b"IDENTIFY"
        fields = json.loads(self.body())
        self.send(encode_frame(RESPONSE, json.dumps(answer).encode()) if answer else OK)
        return fields

    def subscribe(self, **answer: object) -> bytes:
        """Take magic, IDENTIFY and SUB, and answer them; the SUB line."""
        self.identify(**{"version": "1.3.0", "max_rdy_count": 2500, "output_buffer_timeout": 25, **answer})
        line = self.line()
        self.send(OK)
        return line

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """Close so that the client sees a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class ScriptedNsqd:
    """Listens; every connection that comes is given out by :meth:`accept`."""

    def __init__(self, listener: socket.socket) -> None:
        self._accepted: Queue[Peer] = Queue()
        self._peers: list[Peer] = []
        #: What was published, where the script keeps it.
        self.bodies: list[bytes] = []
        self._server = StreamServer(listener, self._handle)
        self._server.start()
        name = listener.getsockname()
        if isinstance(name, str):
            self.address = f"unix:{name}"
        else:
            self.address = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"

    def _handle(self, sock: socket.socket, _address: object) -> None:
        peer = Peer(sock)
        self._peers.append(peer)
        self._accepted.put(peer)
        peer.done.wait()

    def accept(self, timeout: float | None = PATIENCE) -> Peer:
        return self._accepted.get(timeout=timeout)

    def close(self) -> None:
        for peer in self._peers:
            peer.done.set()
        self._server.stop(timeout=1)
        for peer in self._peers:
            peer.close()


@contextmanager
def scripted_nsqd(address: str = "127.0.0.1", path: str = "") -> Iterator[ScriptedNsqd]:
    if path:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
    else:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, 0))
    listener.listen(128)
    server = ScriptedNsqd(listener)
    try:
        yield server
    finally:
        server.close()


# -- a listener whose queue is full: connecting to it neither succeeds nor fails

_SYN_SENT = "02"


@contextmanager
def full_listener() -> Iterator[str]:
    """Context manager: its address. At the end, connections that are still being made are refused."""
    with ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        host, port = listener.getsockname()
        while True:
            client = sockets.enter_context(socket.socket())
            client.settimeout(0.2)
            try:
                client.connect((host, port))
            except TimeoutError:
                break
        yield f"{host}:{port}"


def connecting(address: str) -> int:
    """How many sockets are connecting to it, from Linux's table; ``full_listener`` has one of them."""
    there = f":{int(address.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(remote.endswith(there) and state == _SYN_SENT for _, _, remote, state, *_ in rows)


# -- answers, as bytes

#: To IDENTIFY, as a real nsqd 1.3.0 gives it (docs/internals 1.3).
ANSWER = (
    b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,'
    b'"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":0,'
    b'"auth_required":false,"output_buffer_size":16384,"output_buffer_timeout":250}'
)

#: What no nsqd answers to IDENTIFY.
BAD_ANSWERS = [
    b"",
    b"NO",
    b"[]",
    b"3",
    b"\xff",
    b'{"max_rdy_count":"many"}',
    b'{"max_rdy_count":true}',
    b'{"version":3}',
    b'{"msg_timeout":1e3}',
    b'{"msg_timeout":99999999999999999999}',
    b"[" * 100_000,
]
