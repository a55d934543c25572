"""One client's connection to a daemon: bytes in, bytes out, its deadlines and its end.

One greenlet reads and executes commands; the rest (messages, heartbeats, what the output could not
write at once) comes from elsewhere and goes through :class:`~gnsq_like.server.shared.client_output.Output`. The
greenlet asks for a line or a body, and only there it waits; so all that one read brought is executed in
one go, and every client gets its turn between two reads.
"""

from __future__ import annotations

import logging
from time import monotonic

import gevent
from gevent import socket

from gnsq_like.errors import ProtocolError
from gnsq_like.server.shared.client_output import Output
from gnsq_like.server.shared.requests import Requests
from gnsq_like.transport.codec_stack import CodecStack
from gnsq_like.transport.tcp import give_way

log = logging.getLogger(__name__)

#: Bytes asked of the socket in one read: some hundred messages, so that no client holds the others up for long.
_READ_BYTES = 128 * 1024
#: Seconds for which the rest of what a refused client sends is read and dropped: closing on unread data
#: would reset the connection, and could take the error frame with it.
_LINGER = 1.0


class Connection:
    """A client's socket, what was read from it, and what is to be written to it.

    :param sock: a connected gevent socket; the connection closes it
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._readable = gevent.get_hub().loop.io(sock.fileno(), 1)
        self._greenlet = gevent.getcurrent()
        #: TLS and codec, from an upgrade on.
        self.layers: CodecStack | None = None
        self.requests = Requests()
        self.output = Output(sock, self.on_held_up, self.abort)
        self._closed = False

    def on_held_up(self, held_up: bool) -> None:
        """The socket takes no more bytes, or does again; for subclasses."""

    # -- reading -------------------------------------------------------------------------------------

    def take_line(self) -> list[bytes]:
        """The words of the next line. May switch.

        :raises EOFError: if the client closed
        """
        while (words := self.requests.take_line()) is None:
            self.receive()
        return words

    def take_int32(self) -> int:
        """The next number. May switch; raises EOFError."""
        while (number := self.requests.take_int32()) is None:
            self.receive()
        return number

    def take_bytes(self, count: int) -> bytes:
        """The next ``count`` bytes. May switch; raises EOFError."""
        while (data := self.requests.take_bytes(count)) is None:
            self.receive()
        return data

    def receive(self) -> None:
        """Wait for more bytes of the client. Switches, always: the others get their turn.

        :raises EOFError: if the client closed
        """
        if self.output.flush_is_owed:
            self.output.flush()
        if self.output.held_up:  # it does not read our answers: read no more of its commands
            self.output.wait_until_drained()
        if self.layers is None:
            self.requests.feed(self.receive_wire())
        else:
            self._receive_through(self.layers)

    def _receive_through(self, layers: CodecStack) -> None:
        data = b""
        if layers.pending:
            give_way()
        else:
            data = self.receive_wire()
        try:
            data = layers.decode(data)
        except ProtocolError as exc:
            log.info("a client is cut off: %s", exc)
            raise EOFError from None
        finally:
            self.output.write_wire(layers.take_output())
        if data:
            self.requests.feed(data)

    def receive_wire(self, deadline: float | None = None) -> bytes:
        """Bytes as they come over the wire. Switches, always.

        :param deadline: until when, in monotonic seconds; None for ever
        :raises EOFError: if the client closed
        :raises TimeoutError: if nothing came until then
        """
        hub = gevent.get_hub()
        while True:
            if deadline is None:
                hub.wait(self._readable)
            else:
                socket.wait_read(self._sock.fileno(), max(0.0, deadline - monotonic()), TimeoutError())
            try:
                data = self._sock.recv(_READ_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                raise EOFError from None
            if not data:
                raise EOFError
            return data

    # -- the end -------------------------------------------------------------------------------------

    def abort(self) -> None:
        """End the connection from outside its greenlet. Never switches."""
        if self._greenlet is not gevent.getcurrent():
            self._greenlet.kill(block=False)

    def linger(self) -> None:
        """Say that nothing more comes, and let the client finish what it is sending. May switch."""
        with gevent.Timeout(_LINGER, False):
            try:
                self.output.flush()
                if self.layers is not None:
                    self.output.write_wire(self.layers.close())
                self.output.wait_until_drained()
                self._sock.shutdown(socket.SHUT_WR)
                while True:
                    self.receive()
                    self.requests = Requests()
            except (EOFError, OSError):
                pass

    def close(self) -> None:
        """Close the socket. Never switches; twice is fine."""
        if not self._closed:
            self._closed = True
            self.output.close()
            self._readable.close()
            self._sock.close()
