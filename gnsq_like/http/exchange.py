"""One HTTP request and its whole response, by urllib3, within a deadline.

A timeout of urllib3 bounds one operation of the socket, so a server that sends a byte now and then would keep a
request alive for ever. Here the socket itself keeps the deadline: :class:`_Connection` wraps it as soon as it is
connected, and every read and write gets the time that is left as its timeout.

This module imports urllib3 and ssl, so it is itself imported at the first request: urllib3 imported before
``patch_all()`` breaks https. Rule for editors: whatever the peer or the network can cause leaves
:meth:`KeptConnection.fetch` as HTTPRequestFailed, with a reason in plain words.
"""

from __future__ import annotations

import errno
import http.client
import io
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urljoin, urlsplit

import gevent
from gevent import monkey
from urllib3 import HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from gnsq_like.errors import HTTPRequestFailed

#: Bytes of one read of a body.
READ_BYTES = 64 * 1024
#: Bytes of one write: over TLS, the timeout of a larger one would start anew with each record of 16 KiB.
WRITE_BYTES = 16 * 1024
#: Redirects that are followed, all within one host: Go's router corrects slashes with them (docs/internals 3.1).
MAX_REDIRECTS = 3
_REDIRECTS = {301, 302, 303, 307, 308}


class Request(NamedTuple):
    """A request and its limits."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes | None
    #: A query string that appears in no log and no error. Redirects are then returned, not followed.
    secret_query: str
    #: Seconds for all of it, and the time.monotonic() at which they are over.
    timeout: float
    deadline: float
    #: Seconds for each address of the host.
    connect_timeout: float
    max_answer_bytes: int


class Answer(NamedTuple):
    """A response, whatever its status."""

    url: str
    status: int
    content_type: str
    body: bytes


#: The request that this greenlet or thread is making.
_current: ContextVar[Request] = ContextVar("request")


class KeptConnection:
    """Makes requests to one host, for one caller at a time, over a connection that it keeps in between.

    It takes nothing from the environment (proxies, netrc) and stores no cookies.

    :param verify: True for the system's CA certificates, False, the path of a file or directory of others, or a context
    :param cert: the path of a client certificate, or of it and its key
    :param owner: the process and the hub that may use it
    """

    def __init__(
        self, verify: bool | str | ssl.SSLContext, cert: str | tuple[str, str] | None, owner: tuple[int, object | None]
    ) -> None:
        self.owner = owner
        #: time.monotonic() of its last use.
        self.last_used = 0.0
        self._verify = verify
        self._cert = cert
        #: Made for the first request; all others go to the same host.
        self._pool: HTTPConnectionPool | None = None

    def close(self) -> None:
        """Close its connection."""
        if self._pool is not None:
            self._pool.close()

    def fetch(self, request: Request) -> Answer:
        """The whole response. After an error it must be closed.

        :raises HTTPRequestFailed: there is no usable response
        """
        outer = sys.exception()
        token = _current.set(request)
        try:
            return self._follow(request)
        except (HTTPError, http.client.HTTPException, OSError, ValueError) as exc:
            raise HTTPRequestFailed(request.url, _reason(exc, outer, request)) from exc
        finally:
            _current.reset(token)

    def _follow(self, request: Request) -> Answer:
        url = request.url
        for _ in range(MAX_REDIRECTS + 1):
            response = self._send(request, url)
            with response:
                body = _read(url, response, request.max_answer_bytes)
            status, headers = response.status, response.headers
            if status not in _REDIRECTS or "Location" not in headers or request.secret_query:
                return Answer(url, status, headers.get("Content-Type", ""), body)
            url = _redirected(request.method, url, status, headers["Location"])
        raise HTTPRequestFailed(request.url, f"redirected more than {MAX_REDIRECTS} times")

    def _send(self, request: Request, url: str) -> HTTPResponse:
        """The response, of which only the headers have been read."""
        parts = urlsplit(url)
        if self._pool is None:
            self._pool = self._new_pool(parts.scheme, parts.hostname or "", parts.port)
        response = self._pool.urlopen(
            request.method,
            (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
            request.body,
            request.headers,
            retries=False,
            redirect=False,
            assert_same_host=False,
            timeout=_time_left(),
            preload_content=False,
            decode_content=False,
        )
        return cast("HTTPResponse", response)

    def _new_pool(self, scheme: str, host: str, port: int | None) -> HTTPConnectionPool:
        host = f"[{host}]" if ":" in host else host.encode("idna").decode()
        if scheme == "http":
            return _Pool(host, port)
        return _TLSPool(host, port, ssl_context=_tls_context(self._verify, self._cert))


def _tls_context(verify: bool | str | ssl.SSLContext, cert: str | tuple[str, str] | None) -> ssl.SSLContext:
    chain = (cert,) if isinstance(cert, str) else cert or ()
    for path in (*chain, *([verify] if isinstance(verify, str) else [])):
        if not Path(path).exists():  # ssl's own error does not name it
            raise FileNotFoundError(errno.ENOENT, f"{path}: {os.strerror(errno.ENOENT)}")
    if isinstance(verify, str):
        is_directory = Path(verify).is_dir()
        context = ssl.create_default_context(
            cafile=None if is_directory else verify, capath=verify if is_directory else None
        )
    elif verify is True:
        context = _system_context(ssl.SSLContext, ssl.get_default_verify_paths(), chain)
    elif verify is False:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = verify
    if chain:
        context.load_cert_chain(*chain)
    return context


@cache
def _system_context(_kind: type[ssl.SSLContext], _paths: object, _chain: tuple[str, ...]) -> ssl.SSLContext:
    """One that trusts the system's authorities. To read them takes 20 ms, so all connections share it.

    :param _kind: another one since ``patch_all()``
    :param _paths: where they lie
    :param _chain: the client certificate that it is given, or none
    """
    return ssl.create_default_context()


def _read(url: str, response: HTTPResponse, limit: int) -> bytes:
    """The body; raises HTTPRequestFailed if it is compressed, or larger than the limit."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise HTTPRequestFailed(url, "the answer is compressed, which was not asked for")
    body = bytearray()
    size = response.length_remaining or 0  # as declared
    while size <= limit and (piece := response.read(READ_BYTES, decode_content=False)):
        body += piece
        size = max(size, len(body))
    if size > limit:
        raise HTTPRequestFailed(url, f"the answer is larger than {limit} bytes")
    return bytes(body)


def _redirected(method: str, url: str, status: int, location: str) -> str:
    """The URL that a redirect leads to; raises HTTPRequestFailed for one that must not be followed."""
    try:
        target = urljoin(url, location)
        origin = _origin(target)
    except ValueError:
        raise HTTPRequestFailed(url, "redirected to something that is no URL") from None
    if origin != _origin(url):
        parts = urlsplit(target)
        elsewhere = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        raise HTTPRequestFailed(url, f"redirected to another server, {elsewhere}; not followed")
    if method != "GET" and status not in (307, 308):
        raise HTTPRequestFailed(url, f"redirected with status {status}, which would turn it into a GET")
    return target


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


#: In words, by the type of an exception; the first that fits.
_WORDS: tuple[tuple[type[BaseException], Callable[[Any], str]], ...] = (
    (ssl.SSLCertVerificationError, lambda exc: f"the TLS certificate is not accepted: {exc.verify_message}"),
    (ssl.SSLError, lambda exc: f"TLS failed: {exc.reason or exc}"),
    (socket.gaierror, lambda exc: f"the host name is not known: {exc.strerror}"),
    (http.client.RemoteDisconnected, lambda _: "the connection was closed without an answer"),
    (http.client.IncompleteRead, lambda _: "the answer ended early"),
    (
        http.client.HTTPException,
        lambda exc: f"the answer is not HTTP ({type(exc).__name__}); is this the port of the HTTP API?",
    ),
    (ConnectionResetError, lambda exc: f"{exc.strerror}; is this the port of the HTTP API?"),
    (BaseException, lambda exc: getattr(exc, "strerror", None) or f"{type(exc).__name__}: {exc}"),
)


def _reason(exc: BaseException, outer: BaseException | None, request: Request) -> str:
    """What happened, from the innermost exception of the network, below those of urllib3.

    :param outer: the exception that the caller is handling already; it and its causes are of no concern here
    """
    inner: BaseException | None = exc
    while inner is not None and inner is not outer:
        if isinstance(inner, OSError | http.client.HTTPException):
            exc = inner
        inner = inner.__cause__ or inner.__context__
    if isinstance(exc, TimeoutError) and not exc.errno:
        # Reads and writes get all the time that is left: while there is some, only connecting can time out.
        if request.deadline - time.monotonic() > 0.05:
            return f"no connection within {request.connect_timeout:g} s"
        return f"no answer within {request.timeout:g} s"
    return next(words(exc) for kind, words in _WORDS if isinstance(exc, kind))


def _time_left() -> float:
    """Seconds until the deadline of the current request; raises TimeoutError when there are none."""
    left = _current.get().deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    return left


class _BoundedReads(io.RawIOBase):
    """The reading side of a socket; no read lasts beyond the deadline."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_time_left())
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _BoundedSocket:
    """A connected socket for http.client and urllib3; no read or write lasts beyond the deadline."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_BoundedReads(self._sock))

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(view), WRITE_BYTES):
            self._sock.settimeout(_time_left())
            self._sock.sendall(view[start : start + WRITE_BYTES])


class _Connection(HTTPConnection):
    def connect(self) -> None:
        self.timeout = min(_time_left(), _current.get().connect_timeout)
        _connect_uninterrupted(self, super().connect)
        bounded: Any = _BoundedSocket(self.sock)
        self.sock = bounded

    def request(self, method: str, url: str, *args: Any, **kwargs: Any) -> None:
        # The query is added here, below urllib3's pool, which logs URLs and shows them in errors.
        query = _current.get().secret_query
        super().request(method, f"{url}?{query}" if query else url, *args, **kwargs)


def _connect_uninterrupted(connection: _Connection, connect: Callable[[], None]) -> None:
    """Connect in a greenlet of its own, which goes on if this one is killed, or interrupted by a gevent.Timeout.

    If connecting fails with an OSError, urllib3 closes the socket; after any other exception it leaves it open.
    """
    if not monkey.is_module_patched("socket"):
        connect()
        return

    def connected() -> Exception | None:
        try:
            connect()
        except Exception as exc:
            return exc  # raised below: gevent would print it, too
        return None

    connecting = gevent.spawn(connected)
    try:
        failure = connecting.get()
    except BaseException:  # GreenletExit and gevent.Timeout, too
        connecting.link(lambda _: connection.close())
        raise
    if failure is not None:
        raise failure


class _TLSConnection(_Connection, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSConnection
