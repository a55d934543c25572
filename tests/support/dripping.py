"""A relay that hands on every byte in a write of its own, so that whatever is read is cut everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import gevent
from gevent import socket
from gevent.server import StreamServer

from gnsq_like.addresses import parse_address


@contextmanager
def dripping(address: str) -> Iterator[str]:
    """Between here and ``address``; gives the relay's own address."""
    target = parse_address(address)

    def drip(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                for at in range(len(data)):
                    sink.sendall(data[at : at + 1])
                    gevent.sleep(0)  # the other side reads it before the next one comes
            sink.shutdown(socket.SHUT_WR)

    def handle(client: socket.socket, _address: object) -> None:
        with socket.create_connection((target.host, target.port)) as nsqd:
            for sock in (client, nsqd):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            gevent.joinall([gevent.spawn(drip, client, nsqd), gevent.spawn(drip, nsqd, client)])

    server = StreamServer(("127.0.0.1", 0), handle)
    server.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.stop(timeout=0.1)
