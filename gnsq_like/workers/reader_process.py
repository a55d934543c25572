"""Readers, or the relay of an outbox, as a process of their own, with the pages ``/healthz`` and ``/metrics``."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from gevent.event import Event

from gnsq_like import Reader, ReaderGroup
from gnsq_like.addresses import join_host_port, parse_address
from gnsq_like.contrib.health import Health, ReportedRelay
from gnsq_like.errors import InvalidAddress, InvalidOption, NSQError
from gnsq_like.httpd.listen import listen
from gnsq_like.runtime.signals import on_signals

if TYPE_CHECKING:
    from gnsq_like.contrib.prometheus import Metrics

logger = logging.getLogger(__name__)


def run(
    *readers: Reader,
    health: str | None = None,
    metrics: str | Metrics | None = None,
    stop_timeout: float = 30.0,
) -> None:
    """Run Readers until all have stopped: by SIGTERM, by SIGINT, or by themselves. May switch.

    ::

        run(archiving, counting, health="127.0.0.1:8001", metrics="127.0.0.1:8001")

    Signals are handled only in the main thread. A second SIGINT (a second Ctrl-C) ends the wait for running handlers.

    :param readers: not started, each with a handler
    :param health: "host:port" for ``/healthz``, which answers 200 while all Readers are healthy, and 503 otherwise
    :param metrics: "host:port" for ``/metrics``, which may be the same; or a Metrics of gnsq_like.contrib.prometheus
        that watches the Readers already, whose page is then at the address of ``health``
    :param stop_timeout: seconds for running handlers after a signal
    :raises NSQError: if a Reader gave up, see ``Reader.run``, and the others have been stopped too; or if an address is
        wrong or cannot be listened on
    :raises ModuleNotFoundError: if metrics need prometheus-client, which is not installed
    """
    if not readers:
        raise InvalidOption("readers", (), "it must be one Reader or several")
    group = ReaderGroup(*readers, stop_timeout=stop_timeout)
    with served_pages(readers, health, metrics, logger.info):
        group.run()


@contextmanager
def served_pages(
    readers: Sequence[Reader],
    health: str | None,
    metrics: str | Metrics | None,
    report: Callable[[str], object],
    relays: Sequence[ReportedRelay] = (),
) -> Iterator[None]:
    """Serve the pages during the block, in the caller's hub; for the parameters see :func:`run`.

    This is the hub of the Readers, so a prompt answer also shows that the hub is not blocked.

    :param report: called with a line for each address
    :param relays: of an outbox, which ``/healthz`` reports too
    """
    pages: dict[str, dict[str, WSGIApplication]] = {}
    handlers = [(reader, reader.handler) for reader in readers]
    if health is not None:
        pages[health] = {"/healthz": Health(readers, relays=relays)}
    if isinstance(metrics, str):
        pages.setdefault(metrics, {})["/metrics"] = _measured(readers)
    elif metrics is not None:
        if health is None:
            raise InvalidOption("metrics", metrics, "its page is at the address of health; set that, or an address")
        pages[health]["/metrics"] = metrics.wsgi_app()
    try:
        with ExitStack() as servers:
            for address, page in pages.items():
                servers.enter_context(_served(address, page, report))
            yield
    finally:
        for reader, handler in handlers:
            if reader.handler is not handler:
                reader.handler = handler


def _measured(readers: Iterable[Reader]) -> WSGIApplication:
    """The page with the metrics of these Readers only; replaces their handlers by ones that are timed."""
    from gnsq_like.contrib.prometheus import Metrics

    metrics = Metrics(registry=None)
    for reader in readers:
        metrics.time_reader(reader)
        metrics.watch_reader(reader)
    return metrics.wsgi_app()


@contextmanager
def _served(address: str, pages: Mapping[str, WSGIApplication], report: Callable[[str], object]) -> Iterator[None]:
    where = parse_address(address, to_listen=True)
    if not where.host:
        raise InvalidAddress(address, "pages are served at host:port")
    from gnsq_like.httpd.server import HTTPServer

    try:
        listener = listen(address)
    except OSError as exc:
        raise NSQError(f"cannot listen on {address}: {exc.strerror or exc}") from exc
    server = HTTPServer(listener, _application(pages), logger)
    server.start()
    root = f"http://{join_host_port(where.host, server.server_port)}"
    report(f"health on {root}/healthz" if "/healthz" in pages else f"metrics on {root}/metrics")
    try:
        yield
    finally:
        server.stop(timeout=1)


def _application(pages: Mapping[str, WSGIApplication]) -> WSGIApplication:
    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        page = pages.get(environ["PATH_INFO"])
        if page is None:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"not found\n"]
        return page(environ, start_response)

    return application


def run_relay(
    relay: ReportedRelay,
    thread: AbstractContextManager[object],
    health: str | None,
    metrics: Metrics | None,
    report: Callable[[str], object],
) -> None:
    """Run a relay until SIGTERM or SIGINT; for the other parameters see ``served_pages``. In the main thread only.

    The relay waits for the database and the Producer, which block a thread unless the process is patched; the main
    thread's hub has the signals and the pages.

    :param thread: runs the relay during the block
    :raises NSQError: for a wrong address
    """
    stopped = Event()
    with (
        on_signals((signal.SIGTERM, signal.SIGINT), lambda number: stopped.set()),
        served_pages((), health, metrics, report, relays=(relay,)),
        thread,
    ):
        stopped.wait()
