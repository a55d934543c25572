"""gevent's WSGI server with a strict handler, with and without TLS; all HTTP of this package is served by it.

The handler reads heads by :mod:`~gnsq_like.httpd.head` and bodies by
:mod:`~gnsq_like.httpd.body`, instead of gevent's lenient parsers. gevent's WSGIHandler calls the application and writes
    its response. As with NSQ's daemons, HTTP/1.0 is answered in kind, and a response after which the connection ends
    has "Connection: close".

Every wait for a client is limited by :mod:`~gnsq_like.httpd.connections`.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from io import BytesIO
from typing import Any
from urllib.parse import unquote_to_bytes
from wsgiref.types import WSGIApplication, WSGIEnvironment

import gevent
from gevent import socket
from gevent.pywsgi import LoggingLogAdapter, WSGIHandler, WSGIServer

from gnsq_like.httpd.body import BadBody, Body
from gnsq_like.httpd.connections import (
    BYTES_PER_SECOND,
    HTTPConnection,
    HTTPConnections,
    TooManyConnections,
)
from gnsq_like.httpd.head import BadRequest, Head, read_head
from gnsq_like.httpd.listen import Acceptor

#: A response's body up to this size leaves in one write with its head.
_JOINED_BYTES = 16 * 1024
#: Bytes of a client's input that are read after the last response, which the client would lose if its input met a
#: closed socket; and the seconds for that.
_LINGER_BYTES = 1 << 20
_LINGER = 0.5
#: Seconds between two looks at clients that owe something.
_LOOK = 1.0
#: How plain HTTP begins where TLS is expected.
_PLAIN_BEGINNINGS = (b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO")
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_NOT_TLS = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"


class HTTPServer(Acceptor, WSGIServer):
    """A WSGI server on a listening socket, for the applications of this package.

    :param listener: a listening gevent socket
    :param application: the WSGI application
    :param log: for exceptions of the application
    :param body_limit: Read bodies up to this many bytes before the application is called, and refuse longer ones
        with 413, malformed ones with 400, so that nothing is executed before its request is whole. None for an
        application that does that itself: its ``wsgi.input`` is a Body.
    :param connections: how many there may be, and how long clients may take
    :param options: ``spawn`` and ``ssl_context`` (gevent's) of WSGIServer
    """

    def __init__(
        self,
        listener: socket.socket,
        application: WSGIApplication,
        log: logging.Logger,
        *,
        body_limit: int | None = 1 << 20,
        connections: HTTPConnections | None = None,
        **options: Any,
    ) -> None:
        errors = LoggingLogAdapter(log, logging.ERROR)
        super().__init__(listener, application, log=None, error_log=errors, handler_class=_Handler, **options)
        self.body_limit = body_limit
        self._log = self.accept_log = log
        self.connections = connections or HTTPConnections()
        self.connections.watch = self._begin_to_look
        #: The timer that limits waits for clients; None while there is no such wait.
        self._reaper: gevent.Greenlet | None = None

    def _begin_to_look(self) -> None:
        if self._reaper is None:
            self._reaper = gevent.spawn(self._look_after)

    def _look_after(self) -> None:
        while self.connections.owing:
            gevent.sleep(_LOOK)
            self.connections.shut_overdue()
        self._reaper = None

    def make_room(self) -> None:
        self.connections.make_room()

    def handle(self, sock: socket.socket, address: object) -> None:
        """Called by gevent for each connection without TLS, in a greenlet of its own."""
        try:
            with self.connections.opened(sock) as connection:
                _Handler(sock, address, self, connection).handle()
        except TooManyConnections:
            with suppress(OSError):
                sock.sendall(_BUSY)
            sock.close()

    def wrap_socket_and_handle(self, client_socket: socket.socket, address: object) -> None:
        """Called by gevent for each connection over TLS, in a greenlet of its own."""
        try:
            with self.connections.opened(client_socket) as connection:
                tls_socket = self._shake_hands(connection, address)
                if tls_socket is not None:
                    try:
                        _Handler(tls_socket, address, self, connection).handle()
                    finally:
                        tls_socket.close()
        except TooManyConnections:
            client_socket.close()

    def _shake_hands(self, connection: HTTPConnection, address: object) -> socket.socket | None:
        """The connection's socket over TLS; None, and closed, if that fails. May switch."""
        client_socket = connection.sock
        try:
            with connection.owed(connection.seconds):
                if not client_socket.recv(5, socket.MSG_PEEK).startswith(_PLAIN_BEGINNINGS):
                    # The connection must have the socket before the handshake, which may have to be broken off.
                    wrapped = self.wrap_socket(client_socket, do_handshake_on_connect=False, **self.ssl_args)
                    client_socket = connection.sock = wrapped
                    wrapped.do_handshake()
                    return wrapped
                client_socket.sendall(_NOT_TLS)
                _linger(client_socket)
        except OSError as exc:
            self._log.info("HTTPS: handshake with %s failed: %s", address, exc)
        client_socket.close()
        return None


class _Handler(WSGIHandler):
    """One connection; the methods are called by gevent, in this order for each request."""

    #: The request being handled; set by ``_begin``.
    _head: Head
    _body: Body

    def __init__(self, sock: socket.socket, address: object, server: HTTPServer, connection: HTTPConnection) -> None:
        super().__init__(sock, address, server)
        self._connection = connection

    def handle_one_request(self) -> bool | None:
        """Read and answer one request. True to go on; None if the connection ends."""
        try:
            if not self.rfile.peek(1):
                return None
            with self._connection.owed(self._connection.seconds):
                head = read_head(self.rfile.readline, self.command == "POST")
            if head is None:
                return None
            self._begin(head)
        except BadRequest as exc:
            self._refuse(exc)
            return None
        except BadBody:
            self._refuse(BadRequest())
            return None
        except OSError:
            return None
        self.handle_one_response()
        if self.close_connection and not self._body.ended:
            _linger(self.socket)
        self._connection.idle()
        return None if self.close_connection else True

    def _begin(self, head: Head) -> None:
        """Take a head, and the body if the server has a limit for it. May switch."""
        self._head = head
        self.command, self.path = head.method, head.target
        self.request_version = "HTTP/1.1" if head.minor_version else "HTTP/1.0"
        self.close_connection = head.close
        self.response_length = 0
        invite = self._invite if head.expects_continue else None
        self._body = Body(self.rfile, head.content_length, head.chunked, invite, self._connection)
        self.wsgi_input = self._body
        self.application = self.server.application
        self.environ = self.get_environ()
        if self.server.body_limit is not None:
            self._read_body(head, self.server.body_limit)

    def _invite(self) -> None:
        self.socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _read_body(self, head: Head, limit: int) -> None:
        if head.content_length > limit:
            raise BadRequest(413)
        data = self._body.read(limit + 1)
        if len(data) > limit:
            raise BadRequest(413)
        self.environ["wsgi.input"] = BytesIO(data)
        self.environ["CONTENT_LENGTH"] = str(len(data))

    def get_environ(self) -> WSGIEnvironment:
        head = self._head
        environ: WSGIEnvironment = self.server.get_environ()
        environ["REQUEST_METHOD"] = head.method
        environ["PATH_INFO"] = unquote_to_bytes(head.path).decode("latin-1") if "%" in head.path else head.path
        environ["QUERY_STRING"] = head.query
        environ["SERVER_PROTOCOL"] = self.request_version
        if isinstance(self.client_address, tuple):
            environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = str(self.client_address[0]), str(self.client_address[1])
        for name, value in head.fields:
            if "_" in name:  # looks like another name there
                continue
            key = "HTTP_" + name.replace("-", "_").upper()
            separator = "; " if name == "cookie" else ","
            environ[key] = f"{environ[key]}{separator}{value}" if key in environ else value
        environ.pop("HTTP_CONTENT_LENGTH", None)
        if not head.chunked:
            environ["CONTENT_LENGTH"] = str(head.content_length)
        content_type = environ.pop("HTTP_CONTENT_TYPE", None)
        if content_type is not None:
            environ["CONTENT_TYPE"] = content_type
        environ["wsgi.input"] = self._body
        environ["wsgi.input_terminated"] = True
        return environ

    def finalize_headers(self) -> None:
        """Called before the response's head is written: adds the fields about the connection. May switch."""
        if not self.close_connection and not self._body.skip():
            self.close_connection = True
        super().finalize_headers()
        if self.command == "HEAD":
            self.response_use_chunked = False
        if not self._head.minor_version:
            # gevent has added one that also says "close", which HTTP/1.0 does not need.
            fields = [field for field in self.response_headers if field[0] != b"Connection"]
            if b"content-length" not in [name.lower() for name, _ in fields]:
                self.close_connection = True
            if not self.close_connection:
                fields.append((b"Connection", b"keep-alive"))
            self.response_headers[:] = fields
        elif self.close_connection and (b"Connection", b"close") not in self.response_headers:
            self.response_headers.append((b"Connection", b"close"))

    def _write_with_headers(self, data: bytes) -> None:
        """Write the response's head, and the body with it if that is small."""
        self.headers_sent = True
        self.finalize_headers()
        lines = [b"%b %b" % (self.request_version.encode(), self.status)]
        lines += [b"%b: %b" % field for field in self.response_headers]
        head = b"\r\n".join([*lines, b"", b""])
        if self.response_use_chunked or self.command == "HEAD" or len(data) > _JOINED_BYTES:
            self._sendall(head)
            self._write(data)
        else:
            self._sendall(head + data)

    def _write(self, data: bytes) -> None:
        if self.command != "HEAD":
            super()._write(data)

    def _sendall(self, data: bytes) -> None:
        with self._connection.owed(self._connection.seconds + len(data) / BYTES_PER_SECOND):
            super()._sendall(data)

    def _refuse(self, problem: BadRequest) -> None:
        """Send the last response of the connection; the client may still be sending. May switch."""
        body = problem.body.encode()
        # As in Go, the end of the connection ends the body.
        last = "Content-Type: text/plain; charset=utf-8" if body else "Content-Length: 0"
        lines = [f"HTTP/1.{problem.minor_version} {problem.status_line}", "Connection: close", last]
        with suppress(OSError):
            with self._connection.owed(self._connection.seconds):
                self.socket.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            _linger(self.socket)

    def log_request(self) -> None:
        """Requests are not logged, so their lines need not be made."""


def _linger(sock: socket.socket) -> None:
    """Let a client read the last response although it has sent unread data. May switch."""
    with suppress(OSError), gevent.Timeout(_LINGER, False):
        sock.shutdown(socket.SHUT_WR)
        read = 0
        while read < _LINGER_BYTES and (data := sock.recv(_JOINED_BYTES)):
            read += len(data)
