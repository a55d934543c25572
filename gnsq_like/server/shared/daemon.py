"""The life of nsqd and nsqlookupd: they listen, serve, and stop.

A daemon runs on gevent in the hub of the thread that starts it, patched or not. ``start`` creates its state
and ``stop`` drops it; a daemon that is started again begins empty, like a process.
"""

from __future__ import annotations

import itertools
import logging
import pickle  # noqa: F401 - gevent imports it to pass on an error of its thread pool, which fails without descriptors
import ssl
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self
from wsgiref.types import WSGIApplication

import gevent
from gevent import socket
from gevent.baseserver import BaseServer

from gnsq_like.addresses import join_host_port
from gnsq_like.httpd.listen import TCPServer, bound_address, listen, unlink_socket
from gnsq_like.httpd.server import HTTPServer


class Daemon:
    """A daemon that serves TCP and HTTP, the latter also over TLS.

    :param tcp_address: where to listen for TCP; port 0 for any free one; empty for no TCP
    :param http_address: the same for HTTP; empty for no HTTP
    :param log: its logger
    :param https_address: the same for HTTP over TLS, if the daemon has a certificate
    """

    def __init__(self, tcp_address: str, http_address: str, log: logging.Logger, https_address: str = "") -> None:
        self._wanted_tcp_address = tcp_address
        self._wanted_http_address = http_address
        self._wanted_https_address = https_address
        self._log = log
        #: The addresses that it listens on, with the real ports; empty before the first start.
        self.tcp_address: str = ""
        self.http_address: str = ""
        self.https_address: str = ""
        self.is_running: bool = False
        #: For TLS; set by ``_claim``, None without a certificate.
        self._tls_context: ssl.SSLContext | None = None
        self._servers: list[BaseServer] = []
        self._unix_clients = itertools.count(1)
        #: The greenlets that serve clients, and others that must end with the daemon, in the order in which they began.
        self._greenlets: dict[gevent.Greenlet, None] = {}

    # -- for subclasses ------------------------------------------------------------------------------

    def _claim(self) -> None:
        """Claim resources that only one daemon may have; called first. Raises OSError, and claims nothing then."""

    def _release(self) -> None:
        """Release the claimed resources; called last, also after a failed start. May switch."""

    def _prepare(self) -> None:
        """Create the state; the addresses are known. Raises nothing."""

    def _serve_client(self, sock: socket.socket, address: str) -> None:
        """Serve one TCP client until it leaves."""
        raise NotImplementedError

    def _application(self, over_tls: bool) -> WSGIApplication:
        """The WSGI application for HTTP, or for HTTP over TLS."""
        raise NotImplementedError

    def _dispose(self) -> None:
        """Drop the state: no client is served any more."""

    # -- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen and serve. Does not block; clients are served while the caller's greenlet waits.

        :raises UsageError: if an option is wrong
        :raises OSError: if an address or the data path cannot be used; nothing is left open then
        """
        if self.is_running:
            return
        self._claim()
        try:
            self._listen_and_serve()
        except BaseException:
            self.is_running = False
            self._release()
            raise

    def _listen_and_serve(self) -> None:
        tcp, http, https = listeners = self._listeners()
        self.tcp_address, self.http_address, self.https_address = [
            bound_address(listener) if listener else "" for listener in listeners
        ]
        self._prepare()
        self._servers = [TCPServer(tcp, self._accept, spawn=self._spawn)] if tcp is not None else []
        # The applications read bodies themselves, with limits of their own.
        make = partial(HTTPServer, log=self._log, body_limit=None, spawn=self._spawn)
        if http is not None:
            self._servers.append(make(http, self._application(over_tls=False)))
        if https is not None:
            context = self._tls_context
            self._servers.append(make(https, self._application(over_tls=True), ssl_context=context))
        for name, address in ("TCP", self.tcp_address), ("HTTP", self.http_address), ("HTTPS", self.https_address):
            if address:
                self._log.info("%s: listening on %s", name, address)
        # Clients may connect from here on: HTTPServer looks up this host's name as it starts, and switches.
        self.is_running = True
        for server in self._servers:
            server.accept_log = self._log
            server.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop listening, close all connections and drop the state. May switch; twice is fine.

        :param timeout: seconds for greenlets to end
        """
        if not self.is_running:
            return
        self.is_running = False
        for server in self._servers:
            server.stop(0)
        self._servers = []
        gevent.sleep(0)  # lets clients' greenlets begin: one that is killed before leaves its socket open
        for address in (self.tcp_address, self.http_address, self.https_address):
            if address:
                unlink_socket(address)
        with gevent.Timeout(timeout, False):
            while alive := [each for each in self._greenlets if not each.dead]:
                gevent.killall(alive)
        self._dispose()
        self._release()

    def _spawn(self, function: Callable[..., object], *arguments: object) -> gevent.Greenlet:
        """Run a function in a greenlet that :meth:`stop` ends. Never switches."""
        greenlet = gevent.spawn(function, *arguments)
        self._greenlets[greenlet] = None
        greenlet.rawlink(self._greenlets.pop)
        return greenlet

    def _accept(self, sock: socket.socket, peer: object) -> None:
        gevent.getcurrent().name = f"{self._log.name} client"
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._serve_client(sock, self._peer_address(peer))

    def _peer_address(self, peer: object) -> str:
        if isinstance(peer, tuple):
            return join_host_port(*peer[:2])
        # The peer on a unix socket has no address; nsqlookupd needs one for each of its clients.
        return f"@{next(self._unix_clients)}"

    def _listeners(self) -> list[socket.socket | None]:
        """The sockets for TCP, HTTP and HTTPS, each None if not wanted; opens all or none."""
        https_address = self._wanted_https_address if self._tls_context is not None else ""
        listeners: list[socket.socket | None] = []
        try:
            for address in (self._wanted_tcp_address, self._wanted_http_address, https_address):
                listeners.append(self._listen(address) if address else None)
        except BaseException:
            for listener in filter(None, listeners):
                address = bound_address(listener)
                listener.close()
                unlink_socket(address)
            raise
        return listeners

    def _listen(self, address: str) -> socket.socket:
        try:
            return listen(address)
        except OSError as exc:
            raise OSError(exc.errno, f"listen ({address}) failed - {exc.strerror or exc}") from exc

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
