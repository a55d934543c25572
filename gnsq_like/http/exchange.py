"""One HTTP request and its whole answer, within one deadline.

requests' own timeouts hold for each socket operation, so a server that sends a byte now and then keeps a
request alive for ever. Here every connect, send and read gets what is left until the deadline, as the
socket's timeout: the connection classes at the end of this file ask the deadline in ``_current``.

An adapter of requests is used without a Session: no cookies, no netrc, no proxies and no other settings
from the environment, no redirect that is not decided here.

This module imports requests, urllib3 and ssl; so it is itself imported at the first request only
(requests imported before ``patch_all()`` breaks https). Rule for editors: what the peer or the network can
cause leaves :func:`Line.fetch` as HTTPRequestFailed, built from a reason without a traceback's jargon.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import sys
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from gnsq_like.errors import HTTPRequestFailed

#: Bytes of one read of an answer.
READ_BYTES = 64 * 1024
#: Bytes of one send: over TLS each send may take the socket's whole timeout for every 16 KiB record.
SEND_BYTES = 16 * 1024
#: Redirects that are followed, all within one host: Go's router corrects slashes so (docs/internals 3.1).
MAX_REDIRECTS = 3


class Deadline:
    """When a request must be over.

    :param seconds: the time it has altogether
    :param connect_timeout: seconds for each address that the host name has
    :param left: seconds of it that are left: waiting for a thread counts too
    """

    def __init__(self, seconds: float, connect_timeout: float, left: float) -> None:
        self.seconds = seconds
        self.connect_timeout = connect_timeout
        self._end = time.monotonic() + left

    def remaining(self) -> float:
        """Seconds left; raises TimeoutError when there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        return left


class Request(NamedTuple):
    """What is asked."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None


class Answer(NamedTuple):
    """What came, whatever its status."""

    url: str
    status: int
    content_type: str
    body: bytes


#: The deadline of the request that this greenlet or thread is making.
_current: ContextVar[Deadline] = ContextVar("deadline")


class Line:
    """A connection to one host, kept between requests; for one caller at a time.

    :param verify: as in requests: True, False, or the path of a file or directory of CA certificates
    :param cert: as in requests: the path of a client certificate, or of it and its key
    """

    def __init__(self, verify: bool | str, cert: str | tuple[str, str] | None) -> None:
        self._verify = verify
        self._cert = cert
        self._adapter = _Adapter(pool_connections=1, pool_maxsize=1)

    def fetch(self, request: Request, deadline: Deadline, max_bytes: int) -> Answer:
        """Ask, and read the answer whole. After an error the line must be closed.

        :param max_bytes: the largest body that is accepted
        :raises HTTPRequestFailed: there is no answer that could be used
        """
        outer = sys.exception()
        token = _current.set(deadline)
        try:
            return self._follow(request, deadline, max_bytes)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as exc:
            failure: Exception = exc
        except (http.client.HTTPException, OSError, ValueError) as exc:
            failure = exc
        finally:
            _current.reset(token)
        reason = _reason(failure, outer, deadline)
        if isinstance(failure, requests.RequestException):
            failure.request = None  # it holds the Authorization header, and error reports show attributes
        raise HTTPRequestFailed(request.url, reason) from failure

    def close(self) -> None:
        """Close the connection. Nothing is written to it: it may be one that a forked child inherited."""
        self._adapter.close()

    def _follow(self, request: Request, deadline: Deadline, max_bytes: int) -> Answer:
        first_url = request.url
        for _ in range(MAX_REDIRECTS + 1):
            answer, location = self._ask(request, deadline, max_bytes)
            if location is None:
                return answer
            request = request._replace(url=_redirected(request, answer.status, location))
        raise HTTPRequestFailed(first_url, f"redirected more than {MAX_REDIRECTS} times")

    def _ask(self, request: Request, deadline: Deadline, max_bytes: int) -> tuple[Answer, str | None]:
        prepared = requests.Request(request.method, request.url, dict(request.headers), data=request.body).prepare()
        with self._adapter.send(
            prepared, stream=True, timeout=deadline.remaining(), verify=self._verify, cert=self._cert
        ) as response:
            headers = response.headers
            if headers.get("Content-Encoding", "identity") != "identity":
                raise HTTPRequestFailed(request.url, "the answer is compressed, which was not asked for")
            body = _read(response.raw, request.url, max_bytes)
            location = headers.get("Location") if response.status_code in (301, 302, 303, 307, 308) else None
            return Answer(request.url, response.status_code, headers.get("Content-Type", ""), body), location


def _read(raw: Any, url: str, max_bytes: int) -> bytes:
    too_large = HTTPRequestFailed(url, f"the answer is larger than {max_bytes} bytes")
    declared = raw.headers.get("Content-Length", "")
    length = int(declared) if declared.isdecimal() and len(declared) < 20 else 0
    if length > max_bytes:
        raise too_large
    pieces = []
    held = 0
    while piece := raw.read(READ_BYTES, decode_content=False):
        held += len(piece)
        if held > max_bytes:
            raise too_large
        pieces.append(piece)
    if held < length:  # urllib3 before 2 does not look
        raise HTTPRequestFailed(url, "the answer ended early")
    return b"".join(pieces)


def _redirected(request: Request, status: int, location: str) -> str:
    """The URL to ask instead; raises HTTPRequestFailed where that must not be followed."""
    try:
        target = urljoin(request.url, location)
        origin = _origin(target)
    except ValueError:
        raise HTTPRequestFailed(request.url, "redirected to something that is no URL") from None
    if origin != _origin(request.url):
        raise HTTPRequestFailed(request.url, f"redirected to another host, {origin[1]!r}; not followed")
    if request.method != "GET" and status not in (307, 308):
        raise HTTPRequestFailed(request.url, f"redirected with status {status}, which would turn it into a GET")
    return target


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _reason(exc: BaseException, outer: BaseException | None, deadline: Deadline) -> str:
    """What happened, in words: from the innermost exception of the network, below requests' and urllib3's.

    :param outer: what the caller was handling already; its chain is none of ours
    """
    inner: BaseException | None = exc
    while inner is not None and inner is not outer:
        if isinstance(inner, OSError | http.client.HTTPException):
            exc = inner
        inner = inner.__cause__ or inner.__context__
    if isinstance(exc, _NoConnection):
        return str(exc)
    if isinstance(exc, TimeoutError) and not exc.errno:
        return f"no answer within {deadline.seconds:g} s"
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"the TLS certificate is not accepted: {exc.verify_message}"
    if isinstance(exc, ssl.SSLError):
        return f"TLS failed: {exc.reason or exc}"
    if isinstance(exc, socket.gaierror):
        return f"the host name is not known: {exc.strerror}"
    if isinstance(exc, http.client.RemoteDisconnected):
        return "the connection was closed without an answer"
    if isinstance(exc, http.client.IncompleteRead):
        return "the answer ended early"
    if isinstance(exc, http.client.HTTPException):
        return f"the answer is not HTTP ({type(exc).__name__})"
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror
    return f"{type(exc).__name__}: {exc}"


class _NoConnection(TimeoutError):
    """The connect timeout is over, the deadline is not."""


class _Reader(io.RawIOBase):
    """The reading side of a socket, each read bounded by what is left until the deadline."""

    def __init__(self, raw: Any, sock: Any, deadline: Deadline) -> None:
        self._raw = raw
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._deadline.remaining())
        count: int | None = self._raw.readinto(buffer)
        return count

    def fileno(self) -> int:
        return int(self._raw.fileno())

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        # detach() keeps the SocketIO, and with it the socket's count of its users.
        self.fp: Any = io.BufferedReader(_Reader(self.fp.detach(), sock, _current.get()))


class _Bounded(HTTPConnection):
    """A connection whose every step asks the current deadline."""

    response_class = _Response

    def _new_conn(self) -> socket.socket:
        try:
            return _dial(self._dns_host, self.port, self.socket_options or [], _current.get())
        except TimeoutError as exc:
            raise ConnectTimeoutError(self, "connect timed out") from exc
        except OSError as exc:
            raise NewConnectionError(self, "connect failed") from exc

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        view = memoryview(data)
        for start in range(0, len(view), SEND_BYTES):
            self.sock.settimeout(_current.get().remaining())
            super().send(view[start : start + SEND_BYTES])


class _BoundedTLS(_Bounded, HTTPSConnection):
    pass


def _dial(host: str, port: int, options: Any, deadline: Deadline) -> socket.socket:
    """A socket connected to the first of the host's addresses that takes it, one after the other."""
    failure: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM):
        left = deadline.remaining()
        sock = socket.socket(family, kind, protocol)
        try:
            for option in options:
                sock.setsockopt(*option)
            sock.settimeout(min(left, deadline.connect_timeout))
            sock.connect(address)
            sock.settimeout(deadline.remaining())  # TLS's handshake comes next
            return sock
        except OSError as exc:
            sock.close()
            failure = exc
            if isinstance(exc, TimeoutError) and not exc.errno:  # ours, not the kernel's
                failure = _NoConnection(f"no connection within {min(deadline.seconds, deadline.connect_timeout):g} s")
        except BaseException:  # a gevent.Timeout or a kill, where sockets are patched
            sock.close()
            raise
    raise failure or OSError(f"no address for {host}")


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Bounded


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _BoundedTLS


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TLSPool}
