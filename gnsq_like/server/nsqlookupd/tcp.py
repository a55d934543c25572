"""One nsqd's TCP connection to nsqlookupd: protocol V1 (docs/internals 4.1).

Responses have no frame type, and errors look like responses; every error ends the connection. nsqlookupd
sends nothing unasked, and has no timeouts.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping

from gevent import socket

from gnsq_like.server.nsqlookupd.registry import Producer, Registry
from gnsq_like.server.shared.connection import Connection, Fatal
from gnsq_like.server.shared.gotext import read_object, to_json
from gnsq_like.wire.frames import OK
from gnsq_like.wire.names import is_valid_name

log = logging.getLogger("gnsq_like.nsqlookupd")

#: NSQ's nsqlookupd has no limit; the body of an IDENTIFY has some hundred bytes.
_MAX_BODY_BYTES = 1024 * 1024

_INT32 = struct.Struct(">i")


class LookupdClient(Connection):
    """One nsqd's connection.

    :param address: "ip:port" of the nsqd
    :param clock: Unix seconds
    :param identity: the response to IDENTIFY
    """

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        registry: Registry,
        clock: Callable[[], float],
        identity: Mapping[str, object],
    ) -> None:
        super().__init__(sock, address, log)
        self._registry = registry
        self._clock = clock
        self._identity = identity
        #: The nsqd in the registry, after IDENTIFY.
        self._producer: Producer | None = None
        self._executors: dict[bytes, Callable[[list[bytes]], bytes]] = {
            b"PING": self._ping,
            b"IDENTIFY": self._identify,
            b"REGISTER": self._register,
            b"UNREGISTER": self._unregister,
        }

    def execute_commands(self) -> None:
        """Take and execute commands until the nsqd leaves. Switches.

        :raises EOFError: if the nsqd closed the connection
        :raises LineTooLong: if it sent a line without an end
        :raises Fatal: after any error
        """
        while True:
            # Unlike nsqd, nsqlookupd ignores white space around the line.
            words = b" ".join(self.take_line()).strip().split(b" ")
            execute = self._executors.get(words[0])
            if execute is None:
                raise Fatal(b"E_INVALID", b"invalid command " + words[0])
            self._respond(execute(words))

    def _respond(self, payload: bytes) -> None:
        self.output.add(_INT32.pack(len(payload)) + payload)

    respond_error = _respond

    def leave(self) -> None:
        if self._producer is not None:
            log.info("DB: client(%s) left", self.address)
            producer, self._producer = self._producer, None
            self._registry.disconnect(producer)

    # -- commands ------------------------------------------------------------------------------------

    def _ping(self, words: list[bytes]) -> bytes:
        if self._producer is not None:
            self._producer.last_update = self._clock()
        return OK

    def _identify(self, words: list[bytes]) -> bytes:
        if self._producer is not None:
            raise Fatal(b"E_INVALID", b"cannot IDENTIFY again")
        producer = self._parsed(self._take_body())
        self._registry.connect(producer)
        self._producer = producer
        return to_json(self._identity)

    def _take_body(self) -> bytes:
        try:
            size = self.take_int32()
        except EOFError:
            raise Fatal(b"E_BAD_BODY", b"IDENTIFY failed to read body size") from None
        if not 0 <= size <= _MAX_BODY_BYTES:
            raise Fatal(b"E_BAD_BODY", b"IDENTIFY failed to read body")
        try:
            return self.take_bytes(size)
        except EOFError:
            raise Fatal(b"E_BAD_BODY", b"IDENTIFY failed to read body") from None

    def _parsed(self, body: bytes) -> Producer:
        try:
            facts = read_object(body)
            producer = Producer(
                remote_address=self.address,
                hostname=facts.text("hostname"),
                broadcast_address=facts.text("broadcast_address"),
                tcp_port=facts.number("tcp_port"),
                http_port=facts.number("http_port"),
                version=facts.text("version"),
                topology_zone=facts.text("topology_zone"),
                topology_region=facts.text("topology_region"),
                last_update=self._clock(),
            )
        except ValueError:
            raise Fatal(b"E_BAD_BODY", b"IDENTIFY failed to decode JSON body") from None
        if not (producer.broadcast_address and producer.tcp_port and producer.http_port and producer.version):
            raise Fatal(b"E_BAD_BODY", b"IDENTIFY missing fields")
        return producer

    def _register(self, words: list[bytes]) -> bytes:
        self._registry.register(*self._registration(words))
        return OK

    def _unregister(self, words: list[bytes]) -> bytes:
        self._registry.unregister(*self._registration(words))
        return OK

    def _registration(self, words: list[bytes]) -> tuple[Producer, str, str | None]:
        """The nsqd that registers or unregisters, and the topic and channel that it names."""
        command = words[0]
        if self._producer is None:
            raise Fatal(b"E_INVALID", b"client must IDENTIFY")
        if len(words) < 2:
            raise Fatal(b"E_INVALID", b"%b insufficient number of params" % command)
        topic = words[1].decode("latin-1")
        if not is_valid_name(topic):
            raise Fatal(b"E_BAD_TOPIC", b"%b topic name '%b' is not valid" % (command, words[1]))
        channel = words[2].decode("latin-1") if len(words) > 2 else ""
        if channel and not is_valid_name(channel):
            raise Fatal(b"E_BAD_CHANNEL", b"%b channel name '%b' is not valid" % (command, words[2]))
        return self._producer, topic, channel or None
