"""``/healthz`` and ``/metrics`` of a process that only runs Readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gnsq_like import Reader
from gnsq_like.addresses import join_host_port, parse_address
from gnsq_like.contrib.health import Health
from gnsq_like.errors import InvalidAddress, NSQError


@contextmanager
def served_pages(
    address: str | None,
    readers: Iterable[Reader],
    metrics: Callable[..., Iterable[bytes]] | None,
    report: Callable[[str], object],
) -> Iterator[None]:
    """Serve the pages during the block, in the caller's hub, if there is an address.

    This is the hub of the Readers, so a prompt answer also shows that the hub is not blocked.

    :param address: "host:port"; None for no pages
    :param metrics: the WSGI application for ``/metrics``; None for no such page
    :param report: called with a line that says where the pages are
    :raises NSQError: when the address is wrong, or cannot be listened on
    """
    if address is None:
        yield
        return
    where = parse_address(address, to_listen=True)
    if not where.host:
        raise InvalidAddress(address, "health pages are served at host:port")
    from gevent.pywsgi import WSGIServer

    server = WSGIServer((where.host, where.port), _application(readers, metrics), log=None)
    try:
        server.start()
    except OSError as exc:
        raise NSQError(f"cannot listen on {address}: {exc.strerror or exc}") from exc
    report(f"health on http://{join_host_port(where.host, server.server_port)}/healthz")
    try:
        yield
    finally:
        server.stop(timeout=1)


def _application(
    readers: Iterable[Reader], metrics: Callable[..., Iterable[bytes]] | None
) -> Callable[..., Iterable[bytes]]:
    pages: dict[str, Any] = {"/healthz": Health(readers)}
    if metrics is not None:
        pages["/metrics"] = metrics

    def application(environ: Mapping[str, Any], start_response: Any) -> Iterable[bytes]:
        page = pages.get(environ["PATH_INFO"])
        if page is None:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"not found\n"]
        answer: Iterable[bytes] = page(environ, start_response)
        return answer

    return application
