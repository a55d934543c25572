"""Serves the status of a run, in a thread with a hub of its own.

The thread of the run waits for Spark most of the time, in calls that let no greenlet run.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any
from wsgiref.types import WSGIApplication

from gnsq_like.addresses import parse_address
from gnsq_like.errors import NSQError
from gnsq_like.runtime.hub_thread import HubThread
from gnsq_like.server.shared.daemon import Daemon

#: Seconds for the server to stop.
_TIMEOUT = 10.0

Status = Callable[[], Mapping[str, Any]]


class CannotServe(NSQError):
    """The status of a run cannot be served; the text says why."""


class LiveServer:
    """The thread. Next: :meth:`close`.

    :param status: returns the present status; called in the thread
    :param address: where to listen
    :param clock: the time of day
    :raises CannotServe: the address cannot be used, or a package is missing
    """

    def __init__(self, status: Status, address: str, clock: Callable[[], float] = time.time) -> None:
        #: Where it listens.
        self.address = ""
        self._thread = HubThread("gnsq_like pipeline watch")
        self._handle = self._thread.start()
        self._pages: _Pages | None = None
        try:
            self._handle.run(self._start, status, address, clock)
        except BaseException:
            self.close()
            raise

    def _start(self, status: Status, address: str, clock: Callable[[], float]) -> None:
        try:
            self._pages = _Pages(status, address, clock)
            self._pages.start()
        except ModuleNotFoundError as exc:
            package = (exc.name or "").partition(".")[0].replace("_", "-")
            raise CannotServe(f"{package} is not installed: install the extra [pipeline]") from exc
        except OSError as exc:
            self._pages = None
            raise CannotServe(f"cannot serve the pipeline's status: {exc.strerror or exc}") from exc
        self.address = self._pages.http_address

    def close(self) -> None:
        """Stop listening, and end the thread; twice is fine. May block for some seconds."""
        if self._thread.hub_handle is None:
            return
        self._handle.run(self._stop, timeout=2 * _TIMEOUT)
        self._thread.end(_TIMEOUT)

    def _stop(self) -> None:
        if self._pages is not None:
            self._pages.stop(_TIMEOUT)


class _Pages(Daemon):
    """The HTTP server."""

    def __init__(self, status: Status, address: str, clock: Callable[[], float]) -> None:
        from gnsq_like.spark.watch.status_pages import status_app

        super().__init__("", address, logging.getLogger("gnsq_like.pipeline"))
        self._app: Any = status_app(status, is_local=_is_loopback(address), clock=clock).wsgi_app

    def _application(self, over_tls: bool) -> WSGIApplication:
        application: WSGIApplication = self._app
        return application


def _is_loopback(address: str) -> bool:
    host = parse_address(address, to_listen=True).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
