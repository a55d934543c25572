"""nsqd as a client of one nsqlookupd: registers topics and channels and keeps them so (docs/internals 4.4).

Responses do not say which command they answer, so every command waits for its response. After a failure
everything is registered again, so changes made meanwhile need not be kept.
"""

from __future__ import annotations

import json
import logging
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any

import gevent
from gevent import socket
from gevent.queue import Empty, Queue

from gnsq_like.addresses import join_host_port
from gnsq_like.errors import NSQError
from gnsq_like.http.nsqlookupd import LookupdClient
from gnsq_like.httpd.listen import dial
from gnsq_like.server.broker.topic import Topic
from gnsq_like.server.daemon_options import NsqdOptions
from gnsq_like.wire.commands import MAGIC_V1, PING, identify, register, unregister
from gnsq_like.wire.frames import OK

log = logging.getLogger("gnsq_like.nsqd")

#: Seconds for connecting, and for each write and each response, as in nsqd.
_TIMEOUT = 1.0
#: Seconds between pings, as in nsqd.
PING_INTERVAL = 15.0
#: Seconds until the next attempt to connect: doubled with each failure, up to the ping interval.
_FIRST_RETRY = 0.25
#: Larger responses are rejected.
_MAX_RESPONSE_BYTES = 1024 * 1024

_INT32 = struct.Struct(">i")


class LookupPeer:
    """One nsqlookupd; :meth:`run` is a greenlet.

    :param address: its TCP address
    :param identity: the body of IDENTIFY about this nsqd
    :param topics: returns all topics
    """

    def __init__(
        self,
        address: str,
        identity: Mapping[str, object],
        topics: Callable[[], Iterable[Topic]],
        options: NsqdOptions,
    ) -> None:
        self.address = address
        self._identity = identity
        self._topics = topics
        self._options = options
        #: Commands to send, and None after the connection ended; no queue until everything is being registered on one.
        self._commands: Queue | None = None
        #: The address of its HTTP API, once it is known.
        self._http_address: tuple[str, int] | None = None

    def announce(self, topic: str, channel: str | None, exists: bool) -> None:
        """Register or unregister a topic or channel. Never switches."""
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
        """Identify this nsqd, and register all its topics and channels."""
        sock.sendall(MAGIC_V1)
        self._http_address = _http_address(self._ask(sock, identify(dict(self._identity))))
        # Later changes are queued, and follow the registration of what exists now.
        self._commands = Queue()
        commands = []
        for topic in self._topics():
            commands += [register(topic.name, channel) for channel in topic.channels] or [register(topic.name)]
        for command in commands:
            self._ask_ok(sock, command)
        log.info("LOOKUPD(%s): registered", self.address)

    def _follow(self, sock: socket.socket) -> None:
        """Send changes and pings; ends with an error."""
        assert self._commands is not None
        ping_at = time.monotonic() + PING_INTERVAL
        with closing(gevent.get_hub().loop.io(sock.fileno(), 1)) as readable:
            while True:
                # No response is expected, so the socket becomes readable only if the connection ends.
                readable.start(self._commands.put, None)
                try:
                    command = self._commands.get(timeout=max(0.0, ping_at - time.monotonic()))
                except Empty:
                    command = PING
                    ping_at = time.monotonic() + PING_INTERVAL
                finally:
                    readable.stop()
                if command is None:
                    raise ConnectionError("the connection was closed")
                self._ask_ok(sock, command)

    def _ask_ok(self, sock: socket.socket, command: bytes) -> None:
        answer = self._ask(sock, command)
        if answer != OK:
            raise ValueError(f"responded {answer!r} to {command!r}")

    def _ask(self, sock: socket.socket, command: bytes) -> bytes:
        sock.sendall(command)
        (size,) = _INT32.unpack(_receive(sock, 4))
        if not 0 <= size <= _MAX_RESPONSE_BYTES:
            raise ValueError(f"responded with {size} bytes")
        return _receive(sock, size)

    def channels_of(self, topic: str) -> list[str]:
        """The channels of a topic that this nsqlookupd knows; none if it does not respond. May switch."""
        if self._http_address is None:
            return []
        options = self._options
        try:
            with LookupdClient(
                join_host_port(*self._http_address),
                options.http_client_request_timeout,
                connect_timeout=options.http_client_connect_timeout,
                max_answer_bytes=_MAX_RESPONSE_BYTES,
            ) as client:
                return client.channels(topic)
        except NSQError as exc:
            log.error("LOOKUPD(%s): no channels of %s: %s", self.address, topic, exc)
            return []


def _http_address(answer: bytes) -> tuple[str, int] | None:
    """The address of a nsqlookupd's HTTP API, from its response to IDENTIFY.

    :raises ValueError: if that is malformed
    """
    try:
        facts: dict[str, Any] = json.loads(answer)
        return str(facts["broadcast_address"]), int(facts["http_port"])
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"responded {answer!r} to IDENTIFY") from None


def _receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionError("the connection was closed")
        data += piece
    return data
