"""The admin as a server of its own, over the same HTTP server as NSQ's daemons in Python."""

from __future__ import annotations

import logging
import ssl
from typing import Any
from wsgiref.types import WSGIApplication

from gevent.ssl import SSLContext

from gnsq_like.admin.admin_options import AdminOptions
from gnsq_like.admin.web.app import app_of
from gnsq_like.admin.web.site import Site
from gnsq_like.errors import InvalidOption
from gnsq_like.server.shared.daemon import Daemon

log = logging.getLogger("gnsq_like.nsqadmin")


class AdminServer(Daemon):
    """Serves the admin's pages and API at ``http_address`` and ``https_address``; a context manager.

    It runs on gevent in the thread that starts it; upstreams are asked in a thread of its own.

    :raises InvalidOption: if a file that an option names cannot be used
    """

    def __init__(self, options: AdminOptions | None = None, **given: Any) -> None:
        self.options: AdminOptions = AdminOptions(**given) if options is None else options
        super().__init__("", self.options.http_address, log, self.options.https_address)
        self._tls_context = _tls_context(self.options)
        self._site = Site(self.options)

    def _application(self, over_tls: bool) -> WSGIApplication:
        return app_of(self._site).wsgi_app

    def _prepare(self) -> None:
        self._site.core.start()

    def _dispose(self) -> None:
        self._site.core.stop()


def _tls_context(options: AdminOptions) -> ssl.SSLContext | None:
    if not options.tls_cert:
        return None
    # gevent's: its handshakes let other greenlets run.
    context: ssl.SSLContext = SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except OSError as exc:
        reason = f"it cannot be used: {exc.strerror or exc}"
        raise InvalidOption("tls_cert", f"{options.tls_cert}, {options.tls_key}", reason) from exc
    return context
