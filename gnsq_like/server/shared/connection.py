"""One client's connection to a daemon: bytes in, bytes out, and its end.

One greenlet reads and executes commands. Messages, heartbeats and delayed writes come from other greenlets, through
:class:`~gnsq_like.server.shared.client_output.Output`. The greenlet waits where it needs more bytes; so all commands of
one read are executed together, unless they take longer than a client's turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import gevent
from gevent import socket

from gnsq_like.errors import ProtocolError
from gnsq_like.server.shared import gotext
from gnsq_like.server.shared.client_output import Output
from gnsq_like.server.shared.loop_share import TURN_TIME, Turn, give_way
from gnsq_like.server.shared.requests import LineTooLong, Requests
from gnsq_like.transport.layered import CodecStack

#: Bytes per read: some hundred messages, so that no client delays the others for long.
_READ_BYTES = 128 * 1024
#: Seconds for which further input of a refused client is read and dropped: closing a socket with unread data would
#: reset the connection, and the error frame could be lost.
_LINGER = 1.0
#: Seconds of work for a client that is gone: its input is executed, but not a bomb of compressed commands.
_WORK_AFTER_THE_END = 1.0


class Fatal(Exception):
    """An error that is sent to the client and ends its connection.

    :param code: the daemon's error code
    :param detail: the text after it
    """

    def __init__(self, code: bytes, detail: bytes = b"") -> None:
        super().__init__(code, detail)
        self.payload: bytes = code + b" " + detail if detail else code


class Connection:
    """A client's socket, with its unread input and unwritten output.

    :param sock: a connected gevent socket; the connection closes it
    :param address: "ip:port" of the client
    :param log: the daemon's logger
    """

    def __init__(self, sock: socket.socket, address: str, log: logging.Logger) -> None:
        self.address = address
        self._log = log
        self._sock = sock
        #: The socket without gevent, whose calls never wait.
        self._bare = sock._sock
        self._hub = gevent.get_hub()
        self._readable = self._hub.loop.io(sock.fileno(), 1)
        self._greenlet = gevent.getcurrent()
        #: TLS and codec, from an upgrade on.
        self.layers: CodecStack | None = None
        self.requests: Requests = Requests()
        self.output: Output = Output(self._bare, self.on_held_up, self.abort)
        self._turn = Turn()
        #: Seconds of work since the client closed the connection.
        self._worked_after_the_end = 0.0

    # -- for subclasses ------------------------------------------------------------------------------

    def respond_error(self, payload: bytes) -> None:
        """Send an error."""
        raise NotImplementedError

    def leave(self) -> None:
        """Leave the daemon's tables; called at least once, before the socket is closed. Never switches."""

    def on_held_up(self, held_up: bool) -> None:
        """The socket accepts no more bytes, or does again. Never switches."""

    # -- serving -------------------------------------------------------------------------------------

    def serve(self, magic: bytes, execute: Callable[[], None]) -> None:
        """Serve the client until it leaves or is refused. Switches.

        :param magic: the bytes that the client must send first
        :param execute: executes its commands until it raises EOFError, LineTooLong or Fatal
        """
        try:
            if self.take_bytes(len(magic)) != magic:
                raise Fatal(b"E_BAD_PROTOCOL")
            execute()
        except EOFError:
            pass
        except LineTooLong as error:
            self._log.info("client(%s): %s", self.address, error)
            self.leave()
            self._linger()
        except Fatal as fatal:
            self._log.info("client(%s): %s", self.address, gotext.printable(fatal.payload))
            self.respond_error(fatal.payload)
            self.leave()
            self._linger()
        finally:
            self.leave()
            self._close()

    # -- reading -------------------------------------------------------------------------------------

    def take_line(self) -> list[bytes]:
        """The words of the next line. May switch.

        :raises EOFError: if the client closed the connection
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

    def share_loop(self) -> None:
        """Let others have their turn, if this client's is over; writes responses before. May switch.

        :raises EOFError: if the client is gone, and the rest of its input is not executed
        """
        if self._turn.is_over:
            if self.output.flush_is_owed:
                self.output.flush()
            self._give_way()

    def _give_way(self) -> None:
        give_way()
        self._turn.begin()
        if self.output.is_closed:
            raise EOFError
        # Without layers, nothing but one read can be left.
        if self.layers is not None and self._is_at_its_end():
            self._worked_after_the_end += TURN_TIME
            if self._worked_after_the_end >= _WORK_AFTER_THE_END:
                self._log.info("client(%s): it is gone, dropping the rest of its input", self.address)
                raise EOFError

    def _is_at_its_end(self) -> bool:
        """Whether the client closed the connection, and all that it sent was read."""
        try:
            return not self._bare.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def receive(self) -> None:
        """Wait for more bytes from the client. Always switches, so that others have their turn.

        :raises EOFError: if the client closed the connection
        """
        if self.output.flush_is_owed:
            self.output.flush()
        if self.output.held_up:  # it does not read its responses, so read no more of its commands
            self.output.wait_until_drained()
        if self.layers is None:
            self.requests.feed(self.receive_wire())
        else:
            self._receive_through(self.layers)

    def _receive_through(self, layers: CodecStack) -> None:
        data = b""
        if layers.pending:
            self._give_way()
        else:
            data = self.receive_wire()
        try:
            data = layers.decode(data)
        except ProtocolError as exc:
            self._log.info("client(%s): %s", self.address, exc)
            raise EOFError from None
        finally:
            self.output.write_wire(layers.take_output())
        if data:
            self.requests.feed(data)

    def receive_wire(self) -> bytes:
        """Bytes as they come over the wire. Always switches.

        :raises EOFError: if the client closed the connection
        """
        while True:
            # As hub.wait, but for its check that nothing else has resumed this greenlet, which would do no harm here.
            self._readable.start(self._greenlet.switch)
            try:
                self._hub.switch()
            finally:
                self._readable.stop()
            try:
                data: bytes = self._bare.recv(_READ_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                raise EOFError from None
            if not data:
                raise EOFError
            self._turn.begin()
            return data

    # -- the end -------------------------------------------------------------------------------------

    def abort(self) -> None:
        """End the connection from outside its greenlet. Never switches."""
        if self._greenlet is not gevent.getcurrent():
            self._greenlet.kill(block=False)

    def _linger(self) -> None:
        """Announce the end, and let the client finish what it is sending. May switch."""
        self.requests = Requests()
        with gevent.Timeout(_LINGER, False):
            try:
                self._say_goodbye()
                self.output.wait_until_drained()
                self._sock.shutdown(socket.SHUT_WR)
                while True:
                    self.receive_wire()
            except (EOFError, OSError):
                pass

    def _say_goodbye(self) -> None:
        """Write the rest of the output, after which nothing may follow. Never switches."""
        self.output.flush()
        if self.layers is not None:
            self.output.write_wire(self.layers.close())

    def _close(self) -> None:
        self._say_goodbye()  # whatever ends the connection: commands that were executed have their responses
        self.output.close()
        self._readable.close()
        self._sock.close()
