"""One HTTP request and its whole response, by ``requests``.

A timeout of requests bounds connecting to one address, and one read: a server that sends a byte now and then keeps a
request alive beyond any timeout. So the caller waits for a request no longer than until its deadline, and the request
ends by itself, elsewhere (:func:`~gnsq_like.runtime.thread_pool.call_blocking`); its Session is used again after that.

This module imports requests, urllib3 and ssl, so it is itself imported at the first request: requests imported
before ``patch_all()`` breaks https. Rule for editors: every failure that the peer or the network can cause leaves
:meth:`Session.fetch` as HTTPRequestFailed, with a readable reason.
"""

from __future__ import annotations

import errno
import http.client
import os
import socket
import ssl
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from gnsq_like.addresses import shown
from gnsq_like.errors import HTTPRequestFailed, reason_of

#: Bytes of one read of a body.
READ_BYTES = 64 * 1024
#: Seconds after which an idle connection is closed rather than used: below the idle timeouts of usual proxies.
IDLE_SECONDS = 30.0
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

    def time_left(self) -> float:
        """Seconds until the deadline; raises TimeoutError when there are none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        return left


class Answer(NamedTuple):
    """A response, whatever its status."""

    url: str
    status: int
    content_type: str
    body: bytes


#: The request that this greenlet or thread is making.
_current: ContextVar[Request] = ContextVar("request")


class Session(requests.Session):
    """Makes requests to one host, one at a time, over a connection that it keeps in between.

    It takes nothing from the environment (proxies, netrc, CA bundles) and stores no cookies.

    :param tls: True for the system's CA certificates, False, the path of a file or directory of others, or a context
    :param chain: the path of a client certificate, or of it and its key
    :param turn: a lock that each caller holds from before its request begins until it has ended
    """

    def __init__(self, tls: bool | str | ssl.SSLContext, chain: str | tuple[str, str] | None, turn: Any) -> None:
        super().__init__()
        self.trust_env = False
        self.headers.clear()
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
        self.turn = turn
        self._tls = tls
        self._chain = chain
        #: Whether certificates are read, by the first request, because that can fail.
        self._is_ready = False
        #: time.monotonic() of its last use.
        self._last_used = 0.0
        self._is_closed = False

    def close(self) -> None:
        """Close its connection; one that is in use, at the end of its request."""
        self._is_closed = True
        super().close()

    def fetch(self, request: Request) -> Answer:
        """The whole response. Blocks.

        :raises HTTPRequestFailed: there is no usable response
        """
        token = _current.set(request)
        is_whole = False
        try:
            if not self._is_ready:
                self._prepare(urlsplit(request.url).scheme)
            elif time.monotonic() - self._last_used > IDLE_SECONDS:
                super().close()
            answer = _follow(self, request)
            is_whole = True
        except (requests.RequestException, HTTPError, http.client.HTTPException, OSError, ValueError) as exc:
            if isinstance(exc, requests.RequestException):
                exc.request = None  # it holds the Authorization header, and error reports show attributes
            raise HTTPRequestFailed(request.url, _reason(exc, request)) from exc
        finally:
            _current.reset(token)
            self._last_used = time.monotonic()
            # After a failure half a response may be on the connection.
            if self._is_closed or not is_whole:
                super().close()
        return answer

    def _prepare(self, scheme: str) -> None:
        context = _tls_context(self._tls, self._chain) if scheme == "https" else None
        if context is not None:
            self.verify = context.verify_mode != ssl.CERT_NONE
        self.mount(f"{scheme}://", _Adapter(context))
        self._is_ready = True

    def get_redirect_target(self, resp: requests.Response) -> None:
        """requests sees no redirect: it would read its body without a limit."""


def _follow(session: requests.Session, request: Request) -> Answer:
    url = request.url
    for _ in range(MAX_REDIRECTS + 1):
        left = request.time_left()
        with session.request(
            request.method,
            url,
            data=request.body,
            headers=request.headers,
            timeout=(min(left, request.connect_timeout), left),
            allow_redirects=False,
            stream=True,
        ) as response:
            body = _read(response, request)
        if not response.is_redirect or request.secret_query:
            return Answer(url, response.status_code, response.headers.get("Content-Type", ""), body)
        url = _redirected(request.method, url, response)
    raise HTTPRequestFailed(request.url, f"redirected more than {MAX_REDIRECTS} times")


def _read(response: requests.Response, request: Request) -> bytes:
    """The body; raises HTTPRequestFailed if it is compressed, or larger than the limit."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise HTTPRequestFailed(response.url, "the answer is compressed, which was not asked for")
    limit = request.max_answer_bytes
    body = bytearray()
    size = response.raw.length_remaining or 0  # as declared
    while size <= limit and request.time_left() and (piece := response.raw.read(READ_BYTES, decode_content=False)):
        body += piece
        size = max(size, len(body))
    if size > limit:
        raise HTTPRequestFailed(response.url, f"the answer is larger than {limit} bytes")
    return bytes(body)


def _redirected(method: str, url: str, response: requests.Response) -> str:
    """The URL that a redirect leads to; raises HTTPRequestFailed for one that must not be followed."""
    try:
        target = urljoin(url, response.headers["Location"])
        origin = _origin(target)
    except ValueError:
        raise HTTPRequestFailed(url, "redirected to something that is no URL") from None
    if origin != _origin(url):
        parts = urlsplit(shown(target))
        elsewhere = f"{parts.scheme}://{parts.netloc}"
        raise HTTPRequestFailed(url, f"redirected to another server, {elsewhere}; not followed")
    status = response.status_code
    if method != "GET" and status not in (307, 308):
        raise HTTPRequestFailed(url, f"redirected with status {status}, which would turn it into a GET")
    return target


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


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
    """A context that trusts the system's authorities. Reading them takes 20 ms, so all connections share it.

    :param _kind: another one since ``patch_all()``
    :param _paths: where they lie
    :param _chain: the client certificate that it is given, or none
    """
    return ssl.create_default_context()


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
    (OSError, reason_of),
    (BaseException, lambda exc: f"{type(exc).__name__}: {exc}"),
)


def _reason(exc: BaseException, request: Request) -> str:
    """The reason in words, from the innermost exception of the network, below those of requests and urllib3."""
    if isinstance(exc, requests.ConnectTimeout) and request.deadline > time.monotonic():
        return f"no connection within {request.connect_timeout:g} s"
    inner: BaseException | None = exc
    while inner is not None:
        if isinstance(inner, OSError | http.client.HTTPException):
            exc = inner
        inner = inner.__cause__ or inner.__context__
    if isinstance(exc, TimeoutError) and not exc.errno:
        return f"no answer within {request.timeout:g} s"
    return next(words(exc) for kind, words in _WORDS if isinstance(exc, kind))


class _Connection(HTTPConnection):
    def request(self, method: str, url: str, *args: Any, **kwargs: Any) -> None:
        current = _current.get()
        if self.sock is None:
            self.connect()
        # urllib3 would give writing the body no more time than connecting.
        self.timeout = current.time_left()
        # The query is added here, below urllib3's pool, which logs URLs and shows them in errors.
        super().request(method, f"{url}?{current.secret_query}" if current.secret_query else url, *args, **kwargs)


class _TLSConnection(_Connection, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSConnection


class _Adapter(HTTPAdapter):
    """One connection, whose context alone says which certificates are accepted.

    :param context: for https
    """

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        super().__init__(pool_connections=1, pool_maxsize=1)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TLSPool}

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, ssl_context=self._context)

    def cert_verify(self, *_: object) -> None:
        """Do nothing: requests would add its own CA bundle to the context."""
