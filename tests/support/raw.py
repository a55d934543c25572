"""A client of plain bytes for the daemons' tests: what is sent and expected stands in the test itself; and HTTP
as bytes, of which all responses of a connection come back."""

from __future__ import annotations

import io
import json
import struct
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

from gevent import socket

RESPONSE, ERROR, MESSAGE = 0, 1, 2

#: Seconds for anything that must come.
TIMEOUT = 30.0


class Message(NamedTuple):
    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def mpub_body(*bodies: bytes) -> bytes:
    return sized(struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies)))


def connect(address: str) -> socket.socket:
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(TIMEOUT)
        sock.connect(address.removeprefix("unix:"))
        return sock
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), TIMEOUT)


class Client:
    """A connection to an nsqd, or with ``magic=b"  V1"`` to a nsqlookupd."""

    def __init__(self, address: str, magic: bytes = b"  V2") -> None:
        self.sock = connect(address)
        self.sock.sendall(magic)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.sock.close()

    def send(self, *data: bytes) -> None:
        self.sock.sendall(b"".join(data))

    def _bytes(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.sock.recv(count - len(data))
            assert piece, f"the connection ended after {data!r}"
            data += piece
        return data

    def answer(self) -> bytes:
        """A whole answer without a frame type: nsqlookupd's."""
        (size,) = struct.unpack(">i", self._bytes(4))
        return self._bytes(size)

    def frame(self, heartbeats: bool = False) -> tuple[int, bytes]:
        """The next frame: its type and payload."""
        while True:
            payload = self.answer()
            (frame_type,) = struct.unpack_from(">i", payload)
            if heartbeats or payload[4:] != b"_heartbeat_":
                return frame_type, payload[4:]
            self.send(b"NOP\n")

    def frame_after_messages(self) -> tuple[int, bytes]:
        """The next frame that is no message."""
        while (frame := self.frame())[0] == MESSAGE:
            pass
        return frame

    def expect(self, response: bytes) -> None:
        assert self.frame() == (RESPONSE, response)

    def expect_error(self, error: bytes) -> None:
        assert self.frame() == (ERROR, error)

    def expect_fatal(self, error: bytes) -> None:
        self.expect_error(error)
        self.expect_end()

    def expect_end(self) -> None:
        try:
            data = self.sock.recv(100)
        except ConnectionResetError:  # the real nsqd closes on what it has not read
            data = b""
        assert data == b""

    def message(self) -> Message:
        frame_type, payload = self.frame()
        assert frame_type == MESSAGE, payload
        timestamp_ns, attempts, message_id = struct.unpack_from(">qH16s", payload)
        return Message(timestamp_ns, attempts, message_id, payload[26:])

    # -- what most tests begin with ------------------------------------------------------------------

    def identify(self, **fields: object) -> None:
        self.send(b"IDENTIFY\n", sized(json.dumps(fields).encode()))
        self.expect(b"OK")

    def subscribe(self, topic: str, channel: str = "c", rdy: int | None = None) -> None:
        self.send(f"SUB {topic} {channel}\n".encode())
        self.expect(b"OK")
        if rdy is not None:
            self.send(b"RDY %d\n" % rdy)

    def publish(self, topic: str, *bodies: bytes) -> None:
        """One MPUB, so that the bodies arrive together."""
        self.send(f"MPUB {topic}\n".encode(), mpub_body(*bodies))
        self.expect(b"OK")

    def barrier(self) -> None:
        """Wait until all that was sent before is executed; nothing may have come before the answer."""
        self.send(b"PUB barrier\n", sized(b"x"))
        self.expect(b"OK")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def http(address: str, method: str, target: str, body: bytes = b"", **headers: str) -> Answer:
    """One HTTP request, with nothing done for or to it."""
    lines = {"Host": "localhost", "Connection": "close"}
    if body or method in ("POST", "PUT"):
        lines["Content-Length"] = str(len(body))
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    with connect(address) as sock, sock.makefile("rb") as reader:
        sock.sendall(head.encode() + b"\r\n" + body)
        status = int(reader.readline().split()[1])
        answered: dict[str, str] = {}
        while line := reader.readline().decode().strip():
            name, _, value = line.partition(": ")
            answered[name.lower()] = value
        # Not until the end of the connection: a daemon that refuses a body may still wait for it.
        if method == "HEAD" or status == 304:
            content = reader.read()
        elif answered.get("transfer-encoding") == "chunked":
            content = read_chunks(reader)
        else:
            content = reader.read(int(answered["content-length"]))
    return Answer(status, answered, content)


def read_chunks(reader: BinaryIO) -> bytes:
    body = b""
    while count := int(reader.readline(), 16):
        body += reader.read(count)
        reader.readline()
    reader.readline()
    return body


def get(address: str, target: str) -> Answer:
    return http(address, "GET", target)


def post(address: str, target: str, body: bytes = b"") -> Answer:
    return http(address, "POST", target, body)


def stats(address: str, parameters: str = "") -> Any:
    return get(address, f"/stats?format=json&include_mem=false&{parameters}").json()


def topic_stats(address: str, topic: str) -> Any:
    """The figures of a topic, None if there is none."""
    topics = stats(address, f"topic={topic.replace('#', '%23')}")["topics"]
    return topics[0] if topics else None


def channel_stats(address: str, topic: str, channel: str = "c") -> Any:
    """The figures of a channel, None if there is none."""
    found = topic_stats(address, topic)
    channels = [each for each in found["channels"] if each["channel_name"] == channel] if found else []
    return channels[0] if channels else None


#: Statuses that have no response of their own after them.
_CONTINUE = 100


class Response(NamedTuple):
    #: Such as "HTTP/1.1 200 OK".
    status_line: str
    #: By their names in lower case.
    fields: dict[str, str]
    body: bytes

    @property
    def status(self) -> int:
        return int(self.status_line.split()[1])


def exchange(address: str, sent: bytes, *methods: str) -> list[Response]:
    """Send bytes on a new connection, end the sending direction, and return the responses until the end.

    :param methods: those of the requests; only HEAD matters, whose response has no body
    """
    with connect(address) as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        received = b""
        while piece := sock.recv(65536):
            received += piece
    return parse(received, *methods)


def parse(received: bytes, *methods: str) -> list[Response]:
    """The responses in what a server sent up to the end of a connection."""
    reader = io.BytesIO(received)
    waiting = list(methods)
    found = []
    while line := reader.readline():
        fields = {}
        while field := reader.readline().rstrip(b"\r\n"):
            name, _, value = field.decode("latin-1").partition(": ")
            fields[name.lower()] = value
        status_line = line.decode("latin-1").rstrip("\r\n")
        status = int(status_line.split()[1])
        method = "" if status == _CONTINUE or not waiting else waiting.pop(0)
        # A request that is refused for its head is answered before its method counts.
        was_understood = "x-nsq-content-type" in fields or "location" in fields or status < 400
        if status == _CONTINUE or (method == "HEAD" and was_understood):
            body = b""
        elif fields.get("transfer-encoding") == "chunked":
            body = read_chunks(reader)
        else:
            body = reader.read(int(fields.get("content-length", -1)))
        found.append(Response(status_line, fields, body))
    return found
