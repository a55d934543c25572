"""HTTP as bytes: what is sent is sent as it is, and all responses of the connection come back."""

from __future__ import annotations

import io
from typing import NamedTuple

from gevent import socket

from tests.support.raw import connect, read_chunks

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
