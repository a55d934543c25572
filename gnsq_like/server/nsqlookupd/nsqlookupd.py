"""nsqlookupd in Python: NSQ's clients and tools can use it in place of the real one (docs/internals 4)."""

from __future__ import annotations

import logging
import socket as plain_socket
from collections.abc import Callable
from typing import Any

from gevent import socket

from gnsq_like.httpd.listen import broadcast_host, port_of
from gnsq_like.httpd.wsgi import Application
from gnsq_like.runtime.native import wall_clock
from gnsq_like.server.daemon_options import VERSION, NsqlookupdOptions
from gnsq_like.server.nsqlookupd.http import routes
from gnsq_like.server.nsqlookupd.registry import Registry
from gnsq_like.server.nsqlookupd.tcp import LookupdClient
from gnsq_like.server.shared.daemon import Daemon
from gnsq_like.wire.commands import MAGIC_V1

log = logging.getLogger("gnsq_like.nsqlookupd")


class Nsqlookupd(Daemon):
    """A nsqlookupd that runs in this process, on gevent.

    The constructor only keeps the options; :meth:`start` listens. After that, ``tcp_address`` and
    ``http_address`` are the real addresses, and ``registry`` can be inspected.

    :param options: the options; or pass them one by one, as in ``Nsqlookupd(tcp_address="127.0.0.1:0")``
    :param clock: Unix seconds, by which producers become inactive and tombstones expire
    """

    def __init__(
        self, options: NsqlookupdOptions | None = None, *, clock: Callable[[], float] = wall_clock, **changes: Any
    ) -> None:
        self.options: NsqlookupdOptions = options or NsqlookupdOptions(**changes)
        self.clock = clock
        super().__init__(self.options.tcp_address, self.options.http_address, log)
        #: The topics and channels with their nsqds; a new one at every start.
        self.registry: Registry = self._new_registry()

    def _new_registry(self) -> Registry:
        return Registry(self.options.inactive_producer_timeout, self.options.tombstone_lifetime)

    def identity(self) -> dict[str, object]:
        """The response to IDENTIFY."""
        return {
            "broadcast_address": self.options.broadcast_address or broadcast_host(self.tcp_address),
            "hostname": plain_socket.gethostname(),
            "http_port": port_of(self.http_address) if self.http_address else 0,
            "tcp_port": port_of(self.tcp_address),
            "version": VERSION,
        }

    def _prepare(self) -> None:
        self.registry = self._new_registry()

    def _application(self, over_tls: bool) -> Application:
        return Application(routes(self.registry, self.clock))

    def _serve_client(self, sock: socket.socket, address: str) -> None:
        client = LookupdClient(sock, address, self.registry, self.clock, self.identity())
        client.serve(MAGIC_V1, client.execute_commands)
