"""nsqlookupd's TCP face: protocol V1, which nsqds speak (docs/internals 4.1).

Answers have no frame type, and errors look like answers; every error ends the connection. nsqlookupd
sends nothing unasked and waits for ever.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from gevent import socket

from gnsq_like.server.nsqd.commands import Fatal
from gnsq_like.server.nsqlookupd.registry import Producer
from gnsq_like.server.shared.connection import Connection
from gnsq_like.server.shared.gojson import read_object
from gnsq_like.server.shared.requests import LineTooLong
from gnsq_like.server.shared.wsgi import to_json
from gnsq_like.wire.commands import MAGIC_V1
from gnsq_like.wire.frames import OK
from gnsq_like.wire.names import is_valid_name

if TYPE_CHECKING:
    from gnsq_like.server.nsqlookupd.nsqlookupd import Nsqlookupd

log = logging.getLogger("gnsq_like.nsqlookupd")

#: nsqlookupd itself sets no limit; an nsqd's introduction has some hundred bytes.
_MAX_BODY_BYTES = 1024 * 1024

_INT32 = struct.Struct(">i")


class LookupdClient(Connection):
    """One nsqd's connection.

    :param address: "ip:port" of the nsqd
    """

    def __init__(self, sock: socket.socket, address: str, lookupd: Nsqlookupd) -> None:
        super().__init__(sock)
        self._address = address
        self._lookupd = lookupd
        self._registry = lookupd.registry
        #: Who it is, from IDENTIFY on.
        self._producer: Producer | None = None
        self._executors: dict[bytes, Callable[[list[bytes]], bytes]] = {
            b"PING": self._ping,
            b"IDENTIFY": self._identify,
            b"REGISTER": self._register,
            b"UNREGISTER": self._unregister,
        }

    def run(self) -> None:
        """Serve the nsqd until it leaves or is refused. Switches."""
        try:
            if self.take_bytes(len(MAGIC_V1)) != MAGIC_V1:
                raise Fatal(b"E_BAD_PROTOCOL")
            while True:
                # Unlike nsqd, nsqlookupd takes white space around the line for nothing.
                words = b" ".join(self.take_line()).strip().split(b" ")
                execute = self._executors.get(words[0])
                if execute is None:
                    raise Fatal(b"E_INVALID", b"invalid command " + words[0])
                self._respond(execute(words))
        except (EOFError, LineTooLong):
            pass
        except Fatal as fatal:
            log.info("client(%s): %r", self._address, fatal.payload)
            self._respond(fatal.payload)
            self._leave()
            self.linger()
        finally:
            self._leave()
            self.close()

    def _respond(self, payload: bytes) -> None:
        self.output.add(_INT32.pack(len(payload)) + payload)

    def _leave(self) -> None:
        if self._producer is not None:
            log.info("DB: client(%s) left", self._address)
            producer, self._producer = self._producer, None
            self._registry.disconnect(producer)

    # -- commands ------------------------------------------------------------------------------------

    def _ping(self, words: list[bytes]) -> bytes:
        if self._producer is not None:
            self._producer.last_update = self._lookupd.clock()
        return OK

    def _identify(self, words: list[bytes]) -> bytes:
        if self._producer is not None:
            raise Fatal(b"E_INVALID", b"cannot IDENTIFY again")
        producer = self._introduced(self._take_body())
        self._registry.connect(producer)
        self._producer = producer
        return to_json(self._lookupd.identity())

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

    def _introduced(self, body: bytes) -> Producer:
        try:
            facts = read_object(body)
            producer = Producer(
                remote_address=self._address,
                hostname=facts.text("hostname"),
                broadcast_address=facts.text("broadcast_address"),
                tcp_port=facts.number("tcp_port"),
                http_port=facts.number("http_port"),
                version=facts.text("version"),
                last_update=self._lookupd.clock(),
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
        """Who wants to register or unregister, and the topic and channel named."""
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
