"""One HTTP request and its whole response, by a ``requests.Session``, within a deadline.

A timeout of requests bounds one operation of the socket, so a server that sends a byte now and then would keep a
request alive for ever. Here the socket itself keeps the deadline: :class:`_Connection` wraps it as soon as it is
connected, and every read and write gets the time that is left as its timeout.

This module imports requests, urllib3 and ssl, so it is itself imported at the first request: requests imported
before ``patch_all()`` breaks https. Rule for editors: whatever the peer or the network can cause leaves
:meth:`Session.fetch` as HTTPRequestFailed, with a reason in plain words.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from http.cookiejar import DefaultCookiePolicy
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import gevent
import requests
from gevent import monkey
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError

from gnsq_like.errors import HTTPRequestFailed

#: Bytes of one read of a body.
READ_BYTES = 64 * 1024
#: Bytes of one write: over TLS, the timeout of a larger one would start anew with each record of 16 KiB.
WRITE_BYTES = 16 * 1024
#: Redirects that are followed, all within one host: Go's router corrects slashes with them (docs/internals 3.1).
MAX_REDIRECTS = 3


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


class Session(requests.Session):
    """Makes requests to one host, for one caller at a time, over a connection that it keeps in between.

    It takes nothing from the environment (proxies, netrc, CA bundles) and stores no cookies.

    :param verify: as in requests: True, False, or the path of a file or directory of CA certificates; or a context
    :param cert: as in requests: the path of a client certificate, or of it and its key
    :param owner: the process and the hub that may use it
    """

    def __init__(
        self, verify: bool | str | ssl.SSLContext, cert: str | tuple[str, str] | None, owner: tuple[int, object | None]
    ) -> None:
        super().__init__()
        self.owner = owner
        #: time.monotonic() of its last use.
        self.last_used = 0.0
        self.trust_env = False
        self.stream = True
        self.cert = cert
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
        self.verify = verify if isinstance(verify, bool | str) else True
        adapter = HTTPAdapter()
        adapter.init_poolmanager(1, 1, ssl_context=None if isinstance(verify, bool | str) else verify)
        adapter.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TLSPool}
        self.mount("http://", adapter)
        self.mount("https://", adapter)

    def get_redirect_target(self, resp: requests.Response) -> None:
        """requests follows no redirect: it would read the redirect's body without a limit."""

    def fetch(self, request: Request) -> Answer:
        """The whole response. After an error the session must be closed.

        :raises HTTPRequestFailed: there is no usable response
        """
        outer = sys.exception()
        token = _current.set(request)
        try:
            return self._follow(request)
        except (requests.RequestException, HTTPError, http.client.HTTPException, OSError, ValueError) as exc:
            if isinstance(exc, requests.RequestException):
                exc.request = None  # it holds the Authorization header, and error reports show attributes
            raise HTTPRequestFailed(request.url, _reason(exc, outer, request)) from exc
        finally:
            _current.reset(token)

    def _follow(self, request: Request) -> Answer:
        url = request.url
        for _ in range(MAX_REDIRECTS + 1):
            # Not prepare(), which also looks for cookies and credentials: a twelfth of a small request's CPU time.
            prepared = requests.PreparedRequest()
            prepared.prepare_method(request.method)
            prepared.prepare_url(url, None)
            prepared.prepare_headers(request.headers)
            prepared.prepare_body(request.body, None)
            with self.send(prepared, timeout=_time_left()) as response:
                body = _read(response, request.max_answer_bytes)
            if not response.is_redirect or request.secret_query:
                return Answer(url, response.status_code, response.headers.get("Content-Type", ""), body)
            url = _redirected(request.method, response)
        raise HTTPRequestFailed(request.url, f"redirected more than {MAX_REDIRECTS} times")


def _read(response: requests.Response, limit: int) -> bytes:
    """The body; raises HTTPRequestFailed if it is compressed, or larger than the limit."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise HTTPRequestFailed(response.url, "the answer is compressed, which was not asked for")
    body = bytearray()
    size = response.raw.length_remaining or 0  # as declared
    while size <= limit and (piece := response.raw.read(READ_BYTES, decode_content=False)):
        body += piece
        size = max(size, len(body))
    if size > limit:
        raise HTTPRequestFailed(response.url, f"the answer is larger than {limit} bytes")
    return bytes(body)


def _redirected(method: str, response: requests.Response) -> str:
    """The URL that a redirect leads to; raises HTTPRequestFailed for one that must not be followed."""
    try:
        target = urljoin(response.url, response.headers["Location"])
        origin = _origin(target)
    except ValueError:
        raise HTTPRequestFailed(response.url, "redirected to something that is no URL") from None
    status = response.status_code
    if origin != _origin(response.url):
        parts = urlsplit(target)
        elsewhere = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        raise HTTPRequestFailed(response.url, f"redirected to another server, {elsewhere}; not followed")
    if method != "GET" and status not in (307, 308):
        raise HTTPRequestFailed(response.url, f"redirected with status {status}, which would turn it into a GET")
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
    """What happened, from the innermost exception of the network, below those of requests and urllib3.

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

    def __init__(self, sock: Any) -> None:
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

    def __init__(self, sock: Any) -> None:
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
    def connect(self) -> None:
        if self.ssl_context is not None:  # it alone decides whom to trust
            self.cert_reqs = self.ssl_context.verify_mode
            self.ca_certs = self.ca_cert_dir = None
        super().connect()


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSConnection
