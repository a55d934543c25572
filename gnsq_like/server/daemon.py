"""What nsqd and nsqlookupd have in common: they listen, serve, and stop.

A daemon runs on gevent in the thread that starts it, in that thread's hub, patched or not. Its state is
made by ``start`` and dropped by ``stop``; a daemon started again begins empty, like a process.
"""

from __future__ import annotations

import itertools
import logging
from types import TracebackType
from typing import Self

import gevent
from gevent import socket
from gevent.baseserver import BaseServer
from gevent.pool import Group
from gevent.pywsgi import LoggingLogAdapter, WSGIServer
from gevent.server import StreamServer

from gnsq_like.addresses import join_host_port
from gnsq_like.server.http_face import Application
from gnsq_like.server.listen import bound_address, listen, unlink_socket


class Daemon:
    """A daemon with a TCP and an HTTP face.

    :param tcp_address: where to listen for TCP; port 0 for any free one
    :param http_address: the same for HTTP; empty for no HTTP
    :param log: where it reports
    """

    def __init__(self, tcp_address: str, http_address: str, log: logging.Logger) -> None:
        self._wanted_tcp_address = tcp_address
        self._wanted_http_address = http_address
        self._log = log
        #: The addresses that it listens on, with their real ports; empty before the first start.
        self.tcp_address = ""
        self.http_address = ""
        self.is_running = False
        self._servers: list[BaseServer] = []
        self._unix_clients = itertools.count(1)
        #: The greenlets that serve clients and whatever else must end with the daemon.
        self._greenlets = Group()

    # -- for subclasses ------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Make the state; the addresses are known. Raises nothing."""

    def _serve_client(self, sock: socket.socket, address: str) -> None:
        """Serve one TCP client until it leaves."""
        raise NotImplementedError

    def _application(self) -> Application:
        """The WSGI application of the HTTP face."""
        raise NotImplementedError

    def _dispose(self) -> None:
        """Nobody is served any more."""

    # -- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen and serve. Does not block; clients are served whenever the caller's greenlet waits.

        :raises OSError: if an address cannot be listened on; nothing is left open then
        """
        if self.is_running:
            return
        tcp_listener = self._listen(self._wanted_tcp_address)
        http_listener = None
        try:
            if self._wanted_http_address:
                http_listener = self._listen(self._wanted_http_address)
        except BaseException:
            tcp_listener.close()
            unlink_socket(self._wanted_tcp_address)
            raise
        self.tcp_address = bound_address(tcp_listener)
        self.http_address = bound_address(http_listener) if http_listener else ""
        self._prepare()
        self._servers = [StreamServer(tcp_listener, self._accept, spawn=self._greenlets.spawn)]
        self._log.info("TCP: listening on %s", self.tcp_address)
        if http_listener is not None:
            errors = LoggingLogAdapter(self._log, logging.ERROR)
            self._servers.append(
                WSGIServer(http_listener, self._application(), spawn=self._greenlets.spawn, log=None, error_log=errors)
            )
            self._log.info("HTTP: listening on %s", self.http_address)
        for server in self._servers:
            server.start()
        self.is_running = True

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
        for address in (self.tcp_address, self.http_address):
            if address:
                unlink_socket(address)
        self._greenlets.kill(timeout=timeout)
        self._dispose()

    def _accept(self, sock: socket.socket, peer: object) -> None:
        gevent.getcurrent().name = f"{self._log.name} client"
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._serve_client(sock, self._peer_address(peer))

    def _peer_address(self, peer: object) -> str:
        if isinstance(peer, tuple):
            return join_host_port(*peer[:2])
        # A unix socket's peer has no name; nsqlookupd needs one for each of its clients.
        return f"@{next(self._unix_clients)}"

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
