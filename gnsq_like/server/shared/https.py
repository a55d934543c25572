"""HTTP over TLS: gevent's WSGI server, which logs a failed handshake as information instead of an error."""

from __future__ import annotations

import logging

from gevent import socket
from gevent.pywsgi import WSGIServer

log = logging.getLogger("gnsq_like.nsqd")


class HTTPSServer(WSGIServer):
    """A WSGIServer whose ``ssl_context`` is gevent's."""

    def wrap_socket_and_handle(self, client_socket: socket.socket, address: object) -> object:
        """Called by gevent for each connection, in its own greenlet."""
        try:
            tls_socket = self.wrap_socket(client_socket, **self.ssl_args)
        except OSError as exc:
            log.info("HTTPS: handshake with %s failed: %s", address, exc)
            client_socket.close()
            return None
        try:
            return self.handle(tls_socket, address)
        finally:
            tls_socket.close()
