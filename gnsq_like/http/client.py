"""The base of the clients for nsqd's and nsqlookupd's HTTP APIs, and the checks of what these answer.

A client may be made anywhere and used from any greenlet and any OS thread. It has one :class:`~.exchange.Session` for
each process and hub, which makes one request at a time: a forked child must not use its parent's sockets, and a socket
belongs to a hub. A request that outlasts its caller's wait keeps the Session until it ends.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

import gevent
from gevent import monkey
from gevent._hub_local import get_hub_if_exists
from gevent.lock import Semaphore

from gnsq_like._version import __version__
from gnsq_like.addresses import parse_base_url
from gnsq_like.errors import HTTPRequestFailed, HTTPStatusError, InvalidOption, check_seconds, reason_of
from gnsq_like.runtime import native
from gnsq_like.runtime.thread_pool import call_blocking
from gnsq_like.wire.names import encode_channel, encode_topic

if TYPE_CHECKING:
    import ssl
    from types import ModuleType
    from typing import Self

    from gnsq_like.http.exchange import Answer, Session

#: The largest response that is accepted by default: /stats of thousands of channels takes a few MiB.
DEFAULT_MAX_ANSWER_BYTES = 16 * 1024 * 1024
#: Seconds that a request has to end by itself when its time is up, so that its connection is closed in order.
GRACE_SECONDS = 0.05
#: Seconds for importing requests, once in a process; far above what it takes.
LOAD_SECONDS = 60.0

#: The value of the Authorization header, or a function that returns it for each request.
Authorization = str | Callable[[], str | None]

_T = TypeVar("_T")
_Item = TypeVar("_Item")
_Value = TypeVar("_Value", str, int)

_NAMES = {str: "text", int: "a whole number"}
#: In JSON, a surrogate. Half of a pair is text to Python, but cannot be written anywhere.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Malformed(Exception):
    """A response is malformed; the text says how. Never leaves this package's clients."""


class HTTPClient:
    """One daemon's HTTP API. Opens no connection before the first request.

    :param address: "host:port", "[ipv6]:port", or "http(s)://[user:password@]host[:port][/path]"; the user and
        password are sent as basic authorization, instead of ``authorization``, and shown nowhere
    :param timeout: seconds for a request, up to the last byte of the response, with the time that it waits for the
        client's earlier request
    :param authorization: the value of the Authorization header, such as ``"Bearer ..."``; or a function that
        returns it, called in the caller's greenlet for each request, where None sends no header
    :param connect_timeout: seconds, within ``timeout``, for each address of the host name
    :param verify: True for the CA certificates of the system, False, the path of a file or directory of others, or an
        ``ssl.SSLContext``
    :param cert: path of a client certificate with its key, or the paths of both
    :param max_answer_bytes: larger responses are rejected
    :raises InvalidAddress: a wrong address
    :raises InvalidOption: a wrong value of another argument

    Every request may raise :exc:`~gnsq_like.errors.HTTPRequestFailed` (no usable response; whether the daemon did
    what was asked is unknown) and :exc:`~gnsq_like.errors.HTTPStatusError` (the daemon refused; ``message`` is its
    reason). No request is retried. Every request may switch greenlets.
    """

    #: The type of the bodies that it sends.
    _body_type = "application/octet-stream"

    def __init__(
        self,
        address: str,
        timeout: float = 5.0,
        authorization: Authorization | None = None,
        *,
        connect_timeout: float = 2.0,
        verify: bool | str | ssl.SSLContext = True,
        cert: str | tuple[str, str] | None = None,
        max_answer_bytes: int = DEFAULT_MAX_ANSWER_BYTES,
    ) -> None:
        #: Every request goes below this URL. It holds no credentials.
        self.url: str
        self.url, credentials = parse_base_url(address)
        check_seconds("timeout", timeout, above=0)
        check_seconds("connect_timeout", connect_timeout, above=0)
        self._timeout, self._connect_timeout = timeout, connect_timeout
        if isinstance(max_answer_bytes, bool) or not isinstance(max_answer_bytes, int) or max_answer_bytes < 1:
            raise InvalidOption("max_answer_bytes", max_answer_bytes, "it must be a whole number above 0")
        self._max_answer_bytes = max_answer_bytes
        if authorization is not None and not callable(authorization):
            _check_header(authorization)
        self._authorization: Authorization | None = credentials or authorization
        self._verify = _check_verify(verify)
        self._cert = _check_cert(cert)
        #: By process and hub, and whether sockets were patched. close() begins a new dict.
        self._sessions: dict[tuple[int, bool, Any], Session] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections kept for later requests. A later request is allowed and opens its own."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.close()

    def ping(self) -> str:
        """``"OK"``, when the daemon is healthy.

        :raises HTTPStatusError: it is not; ``message`` is then its text (``"NOK - ..."``)
        """
        return self._expect_ok(self._request("GET", "/ping"))

    # --- for subclasses ---

    def _get_object(self, path: str, params: Mapping[str, str], parse: Callable[[dict[str, Any]], _T]) -> _T:
        """GET a JSON object, and return the result of ``parse``; Malformed becomes HTTPRequestFailed."""
        return self._decoded(self._request("GET", path, params), lambda body: parse(object_of(body)))

    def _decoded(self, answer: Answer, decode: Callable[[bytes], _T]) -> _T:
        try:
            return decode(answer.body)
        except Malformed as exc:
            raise HTTPRequestFailed(answer.url, f"the answer is malformed: {exc}") from exc

    def _post(self, path: str, params: Mapping[str, str], body: bytes = b"") -> Answer:
        return self._request("POST", path, params, body)

    def _expect_ok(self, answer: Answer) -> str:
        """Check that a response is the text OK: a login page with status 200 is not."""
        if answer.body != b"OK":
            raise HTTPRequestFailed(answer.url, f"the answer is not OK but {line_of(answer.body)!r}")
        return "OK"

    def _request(
        self, method: str, path: str, params: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        """The response, if its status is 200; raises HTTPRequestFailed, HTTPStatusError. May switch."""
        answer = self._fetch(method, path + (f"?{urlencode(params)}" if params else ""), body)
        if answer.status != 200:
            raise _status_error(answer)
        return answer

    def _fetch(self, method: str, path: str, body: bytes | None = None, secret_query: str = "") -> Answer:
        """The response, whatever its status; raises HTTPRequestFailed. May switch.

        :param secret_query: sent after the path, and never shown; redirects are then returned, not followed
        """
        url = self.url + path
        headers = self._headers(body)
        deadline = time.monotonic() + self._timeout
        limits = (self._timeout, deadline, self._connect_timeout, self._max_answer_bytes)
        try:
            session = self._session_here()
            request = _exchange().Request(method, url, headers, body, secret_query, *limits)
            if not session.turn.acquire(timeout=self._timeout):
                raise HTTPRequestFailed(url, f"an earlier request has not ended within {self._timeout:g} s")
            left = deadline - time.monotonic()
            return call_blocking(lambda: session.fetch(request), left + GRACE_SECONDS, session.turn.release)
        except TimeoutError as exc:
            raise HTTPRequestFailed(url, f"no answer within {self._timeout:g} s") from exc
        except (OSError, ImportError, RuntimeError) as exc:  # no file descriptors or threads are left
            raise HTTPRequestFailed(url, reason_of(exc)) from exc

    def _session_here(self) -> Session:
        is_patched = monkey.is_module_patched("socket")
        hub = gevent.get_hub() if is_patched else get_hub_if_exists()  # None in a thread without one
        pid = os.getpid()
        session = self._sessions.get((pid, is_patched, hub))
        if session is None:
            sessions = self._sessions
            for other in [each for each in sessions if each[0] != pid or (each[2] and each[2].dead)]:
                sessions.pop(other).close()
            turn = native.allocate_lock() if hub is None else Semaphore()
            session = sessions.setdefault((pid, is_patched, hub), _exchange().Session(self._verify, self._cert, turn))
        return session

    def _headers(self, body: bytes | None) -> dict[str, str]:
        headers = {
            "Accept": "application/vnd.nsq; version=1.0",
            "Accept-Encoding": "identity",
            "User-Agent": f"gnsq_like/{__version__}",
        }
        if body:
            headers["Content-Type"] = self._body_type
        authorization = self._authorization
        if callable(authorization):
            authorization = authorization()
        if authorization is not None:
            headers["Authorization"] = _check_header(authorization)
        return headers


def json_of(body: bytes) -> Any:
    """The value of a JSON text."""
    try:
        value = json.loads(body)
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise Malformed("it is not JSON") from None
    return value


def object_of(body: bytes) -> dict[str, object]:
    """The value of a JSON text that must be an object."""
    value = json_of(body)
    if not isinstance(value, dict):
        raise Malformed("a JSON object was expected")
    return value


def text_of(body: bytes) -> str:
    """Text; bytes that are not UTF-8 are replaced."""
    return body.decode("utf-8", "replace")


def line_of(body: bytes) -> str:
    """The beginning of a text as one line, for an error."""
    return " ".join(text_of(body[:1000]).split())[:200]


def value_of(record: Mapping[str, object], name: str, kind: type[_Value], default: _Value | None = None) -> _Value:
    """A field, of this type; ``default`` if it is missing."""
    value = record.get(name, default)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Malformed(f'"{name}" is not {_NAMES[kind]}')
    return value


def list_of(record: Mapping[str, object], name: str, kind: type[_Item], default: object = ...) -> list[_Item]:
    """A field that is a list, each of its items of this type; empty for null, which is Go's empty list.

    :param default: None if the field may be missing
    """
    value = record.get(name, default)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise Malformed(f'"{name}" is not a list of {kind.__name__}')
    return value


def record_of(cls: type[_T], record: Mapping[str, object], **others: object) -> _T:
    """A dataclass made of a record's fields of the same names, which are text or whole numbers.

    :param others: values of its other fields; a field that the record lacks has its default
    """
    for each in fields(cls):  # type: ignore[arg-type]
        if each.name not in others and (each.name in record or each.default is MISSING):
            is_text = each.type.startswith("str")
            others[each.name] = value_of(record, each.name, str) if is_text else value_of(record, each.name, int)
    return cls(**others)


def topic_params(topic: str) -> dict[str, str]:
    """A topic as a parameter of a request; raises InvalidName."""
    encode_topic(topic)
    return {"topic": topic}


def channel_params(topic: str, channel: str) -> dict[str, str]:
    """A channel as parameters of a request; raises InvalidName."""
    encode_channel(channel)
    return {**topic_params(topic), "channel": channel}


def _check_verify(value: Any) -> bool | str | ssl.SSLContext:
    # Not by type: ssl must not be imported before the application may have patched it.
    if not isinstance(value, bool | str) and not hasattr(value, "wrap_bio"):
        raise InvalidOption("verify", value, "it must be True, False, a path (str) or an ssl.SSLContext")
    return value


def _check_cert(value: Any) -> str | tuple[str, str] | None:
    is_pair = isinstance(value, tuple) and len(value) == 2 and all(isinstance(path, str) for path in value)
    if value is not None and not isinstance(value, str) and not is_pair:
        raise InvalidOption("cert", value, "it must be a path (str), a tuple of two paths, or None")
    return value


def _check_header(value: object) -> str:
    # Otherwise http.client would refuse it, with the secret in its error.
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or value != value.strip():
        raise InvalidOption("authorization", "<hidden>", "it must be printable ASCII, without blanks around it")
    return value


def _status_error(answer: Answer) -> HTTPStatusError:
    """From nsqd's {"message"}, or whatever text there is (docs/internals 3.1)."""
    message, https_port = line_of(answer.body), None
    with suppress(Malformed):
        value = object_of(answer.body)
        word = value.get("message")
        if word == "TLS_REQUIRED":
            https_port = value_of(value, "https_port", int)
            message = f"TLS_REQUIRED: this nsqd answers only over https, on port {https_port}"
        elif isinstance(word, str):
            message = word
    return HTTPStatusError(answer.url, answer.status, message, https_port)


@cache
def _exchange() -> ModuleType:
    """The module exchange. The first call imports it, and with it requests and ssl. May switch."""
    return call_blocking(lambda: import_module("gnsq_like.http.exchange"), LOAD_SECONDS)
