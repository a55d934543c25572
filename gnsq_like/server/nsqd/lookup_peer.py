"""nsqd as a client of one nsqlookupd: says which topics and channels it has, and stays known (docs/internals 4.4).

Whoever reads the answers of nsqlookupd must know what was asked: every command waits for its answer.
After a failure everything is said again, so what was not said meanwhile need not be kept.
"""

from __future__ import annotations

import json
import logging
import socket as plain_socket
import struct
from contextlib import closing
from time import monotonic
from typing import TYPE_CHECKING, Any

import gevent
from gevent import socket
from gevent.queue import Empty, Queue
from gevent.select import select

from gnsq_like.addresses import join_host_port
from gnsq_like.errors import NSQError
from gnsq_like.http.nsqlookupd import LookupdClient
from gnsq_like.server.options import VERSION
from gnsq_like.server.shared.listen import dial
from gnsq_like.wire.commands import MAGIC_V1, PING, identify, register, unregister
from gnsq_like.wire.frames import OK

if TYPE_CHECKING:
    from gnsq_like.server.nsqd.nsqd import Nsqd

log = logging.getLogger("gnsq_like.nsqd")

#: Seconds for connecting, and for each write and each answer, as nsqd has it.
_TIMEOUT = 1.0
#: Seconds between pings, as nsqd has it.
PING_INTERVAL = 15.0
#: Seconds between looks whether the connection still stands.
_CHECK_INTERVAL = 1.0
#: Seconds until the next try to connect: doubled with each failure, up to the ping interval.
_FIRST_RETRY = 0.25
#: A longer answer is none.
_MAX_ANSWER_BYTES = 1024 * 1024

_INT32 = struct.Struct(">i")


class LookupPeer:
    """One nsqlookupd, by its TCP address; :meth:`run` is a greenlet."""

    def __init__(self, address: str, nsqd: Nsqd) -> None:
        self.address = address
        self._nsqd = nsqd
        #: What is to be said next; None while nothing has been said yet on a connection that stands.
        self._commands: Queue | None = None
        #: Where its HTTP face is, once it has said so.
        self._http_address: tuple[str, int] | None = None

    def announce(self, topic: str, channel: str | None, exists: bool) -> None:
        """A topic or channel has come or gone. Never switches."""
        if self._commands is not None:
            self._commands.put((register if exists else unregister)(topic, channel))

    def run(self) -> None:
        """Stay connected and registered until killed. Switches."""
        retry = _FIRST_RETRY
        while True:
            try:
                with closing(dial(self.address, _TIMEOUT)) as sock:
                    self._register(sock)
                    retry = _FIRST_RETRY
                    self._follow(sock)
            except (OSError, ValueError) as exc:
                log.warning("LOOKUPD(%s): %s", self.address, exc)
            finally:
                self._commands = None
            gevent.sleep(retry)
            retry = min(2 * retry, PING_INTERVAL)

    def _register(self, sock: socket.socket) -> None:
        """Say who this nsqd is and all that it has."""
        nsqd = self._nsqd
        sock.sendall(MAGIC_V1)
        answer = self._ask(
            sock,
            identify(
                {
                    "broadcast_address": nsqd.broadcast_address,
                    "hostname": plain_socket.gethostname(),
                    "http_port": nsqd.broadcast_http_port,
                    "tcp_port": nsqd.broadcast_tcp_port,
                    "version": VERSION,
                }
            ),
        )
        self._http_address = _http_address(answer)
        # What changes from here on is queued, and said after all there is now.
        self._commands = Queue()
        commands = []
        for topic in nsqd.broker.topics.values():
            commands += [register(topic.name, channel) for channel in topic.channels] or [register(topic.name)]
        for command in commands:
            self._ask_ok(sock, command)
        log.info("LOOKUPD(%s): registered", self.address)

    def _follow(self, sock: socket.socket) -> None:
        """Pass on what changes, and ping; ends with an error."""
        assert self._commands is not None
        ping_at = monotonic() + PING_INTERVAL
        while True:
            try:
                command = self._commands.get(timeout=_CHECK_INTERVAL)
            except Empty:
                # Nothing was asked, so all there can be to read is the connection's end.
                if select([sock], [], [], 0)[0]:
                    raise ConnectionError("the connection was closed") from None
                if monotonic() < ping_at:
                    continue
                ping_at += PING_INTERVAL
                command = PING
            self._ask_ok(sock, command)

    def _ask_ok(self, sock: socket.socket, command: bytes) -> None:
        answer = self._ask(sock, command)
        if answer != OK:
            raise ValueError(f"answered {answer!r} to {command!r}")

    def _ask(self, sock: socket.socket, command: bytes) -> bytes:
        sock.sendall(command)
        (size,) = _INT32.unpack(_receive(sock, 4))
        if not 0 <= size <= _MAX_ANSWER_BYTES:
            raise ValueError(f"answered with {size} bytes")
        return _receive(sock, size)

    def channels_of(self, topic: str) -> list[str]:
        """The channels of a topic that this nsqlookupd knows; none if it does not answer. May switch."""
        if self._http_address is None:
            return []
        options = self._nsqd.options
        try:
            with LookupdClient(
                join_host_port(*self._http_address),
                options.http_client_request_timeout,
                connect_timeout=options.http_client_connect_timeout,
                max_answer_bytes=_MAX_ANSWER_BYTES,
            ) as client:
                return client.channels(topic)
        except NSQError as exc:
            log.error("LOOKUPD(%s): no channels of %s: %s", self.address, topic, exc)
            return []


def _http_address(answer: bytes) -> tuple[str, int] | None:
    """Where a nsqlookupd says its HTTP face is.

    :raises ValueError: if it did not answer what nsqlookupd answers
    """
    try:
        facts: dict[str, Any] = json.loads(answer)
        return str(facts["broadcast_address"]), int(facts["http_port"])
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"answered {answer!r} to IDENTIFY") from None


def _receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionError("the connection was closed")
        data += piece
    return data
