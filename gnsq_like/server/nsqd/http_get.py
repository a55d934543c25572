"""A GET request of a daemon's own, over gevent sockets: it lets others run where nothing is patched."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from contextlib import closing
from urllib.parse import urlsplit

import gevent
from gevent import socket

from gnsq_like.server.options import NsqdOptions

#: A longer answer is none.
MAX_ANSWER_BYTES = 1024 * 1024

_NO_HEADERS: Mapping[str, str] = {}


class HTTPGetFailed(Exception):
    """There is no answer; the text says why, and does not repeat the URL, which may hold a secret."""


def http_get(
    url: str,
    options: NsqdOptions,
    *,
    headers: Mapping[str, str] = _NO_HEADERS,
    tls_context: ssl.SSLContext | None = None,
) -> tuple[int, bytes]:
    """Status and body of the answer, within the options' timeouts. Redirects are not followed. May switch.

    :param tls_context: gevent's, for https
    :raises HTTPGetFailed: if there is none
    """
    try:
        parts = urlsplit(url)
        target = f"{parts.path or '/'}?{parts.query}"
        with (
            gevent.Timeout(options.http_client_request_timeout, TimeoutError("no answer in time")),
            closing(_connection(parts.scheme, parts.hostname, parts.port, options, tls_context)) as connection,
        ):
            connection.request("GET", target, headers=dict(headers))
            response = connection.getresponse()
            body = response.read(MAX_ANSWER_BYTES + 1)
    except (OSError, http.client.HTTPException) as exc:
        raise HTTPGetFailed(str(exc) or type(exc).__name__) from None
    except ValueError as exc:
        raise HTTPGetFailed(f"no URL: {exc}") from None
    if len(body) > MAX_ANSWER_BYTES:
        raise HTTPGetFailed(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
    return response.status, body


def _connection(
    scheme: str, host: str | None, port: int | None, options: NsqdOptions, tls_context: ssl.SSLContext | None
) -> http.client.HTTPConnection:
    if scheme not in ("http", "https") or not host:
        raise ValueError("it must be http://host:port/path or https://host:port/path")
    if scheme == "http":
        return _Connection(host, port, timeout=options.http_client_connect_timeout)
    assert tls_context is not None
    return _TlsConnection(host, port, options.http_client_connect_timeout, tls_context)


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.create_connection((self.host, self.port), self.timeout)
        self.sock.settimeout(None)  # for the rest, the request's own timeout counts


class _TlsConnection(_Connection):
    default_port = 443

    def __init__(self, host: str, port: int | None, timeout: float, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=timeout)
        self._context = context

    def connect(self) -> None:
        super().connect()
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)
