"""Targets for HTTP: requests to the daemons, and what the daemons' clients are answered."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from wsgiref.types import WSGIApplication

from gevent import socket

from gnsq_like.addresses import parse_address
from gnsq_like.errors import InvalidAddress
from gnsq_like.http import nsqd as nsqd_client
from gnsq_like.http import nsqlookupd as lookupd_client
from gnsq_like.http.client import Malformed, list_of, object_of
from gnsq_like.http.nsqd import checked_stats
from gnsq_like.httpd.server import HTTPServer
from gnsq_like.httpd.wsgi import Application
from gnsq_like.server import Nsqd, Nsqlookupd
from gnsq_like.server.nsqd import http, information
from tests.fuzz.streams import Input, head

_LOG = logging.getLogger("tests.fuzz")
#: A response begins so.
_RESPONSE = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
#: Topics after which a daemon is replaced by a new one.
_MOST_TOPICS = 20


class _Failures(logging.Handler):
    """What daemons log as their own faults is raised."""

    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError(self.format(record))


@contextmanager
def _raised_failures() -> Iterator[None]:
    """Within it only: other tests of this process look at what is logged."""
    logs, failures = (_LOG, logging.getLogger("gnsq_like.httpd.wsgi")), _Failures(logging.ERROR)
    for log in logs:
        log.addHandler(failures)
    try:
        yield
    finally:
        for log in logs:
            log.removeHandler(failures)


def _server(application: WSGIApplication, **options: Any) -> HTTPServer:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    return HTTPServer(listener, application, _LOG, **options)


class _Plain:
    """An application that keeps the bodies it is given."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.bodies.append(environ["wsgi.input"].read())
        assert int(environ["CONTENT_LENGTH"]) == len(self.bodies[-1])
        start_response("200 OK", [("Content-Length", "2")])
        return [b"OK"]


class _Faces:
    """The HTTP faces of nsqd, of nsqlookupd, and of an application that leaves bodies to the server."""

    def __init__(self) -> None:
        self.plain = _Plain()
        self._limited = _server(self.plain, body_limit=1000)
        self._renew()

    def _renew(self) -> None:
        self._nsqd, self._lookupd = Nsqd(), Nsqlookupd()
        for daemon in (self._nsqd, self._lookupd):
            daemon.tcp_address, daemon.http_address = "127.0.0.1:1", "127.0.0.1:2"
        # Without /config, which would dial and change what is logged.
        application = Application({**information.routes(self._nsqd), **http.routes(self._nsqd)})
        self._servers = [
            _server(application, body_limit=None),
            _server(self._lookupd._application(False), body_limit=None),
            self._limited,
        ]

    def serve(self, number: int, data: bytes) -> bytes:
        """What one of them answers."""
        client = Input(data)
        server = self._servers[number]
        with _raised_failures():
            server.handle(client, ("127.0.0.1", 3))
        if len(self._nsqd.broker.topics) > _MOST_TOPICS or len(self._lookupd.registry.topics) > _MOST_TOPICS:
            for each in self._servers[:2]:
                each.socket.close()
            self._renew()
        return bytes(client.sent)


_faces: list[_Faces] = []


def http_faces(data: bytes) -> None:
    """Every request is answered, none with 500, and none is executed before it is whole."""
    [number], data = head(data, 1)
    if not _faces:
        _faces.append(_Faces())
    faces = _faces[0]
    before = len(faces.plain.bodies)
    sent = faces.serve(number % 3, data)
    statuses = [int(status) for status in _RESPONSE.findall(sent)]
    assert not sent or sent.startswith(b"HTTP/1.")
    assert 500 not in statuses or number % 3 == 0  # a body that is cut off is nsqd's INTERNAL_ERROR
    for body in faces.plain.bodies[before:]:
        assert body in data or b"chunked" in data.lower()
    del faces.plain.bodies[:]


def answers(data: bytes) -> None:
    """JSON of /stats, /info, /lookup, /nodes and /debug: a result, or Malformed; addresses, or InvalidAddress."""
    [kind], data = head(data, 1)
    with suppress(Malformed):
        value = object_of(data)
        if kind % 4 == 0:
            nsqd_client._info(value)
        elif kind % 4 == 1:
            checked_stats(value)
        elif kind % 4 == 2:
            for key in value:
                list_of(value, key, dict)
        else:
            for node in lookupd_client._lookup_result(value).producers:
                for address in (node.tcp_address, node.http_address):
                    with suppress(InvalidAddress):
                        parse_address(address)
