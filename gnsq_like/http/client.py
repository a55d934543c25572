"""What the clients of nsqd's and nsqlookupd's HTTP APIs share.

A client may be made anywhere and used from any greenlet and any OS thread. It keeps connections between
requests as *lines*: a request takes a line out of the idle ones (or makes one), uses it alone, and puts it
back; there is no lock, taking and putting are single steps of a list. A line is not taken when it

- comes from another process: a forked child must not use its parent's sockets,
- belongs to the hub of another OS thread, or was made before sockets were patched,
- has been idle for so long that something between here and there may have forgotten it.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from gnsq_like._version import __version__
from gnsq_like.errors import HTTPRequestFailed, HTTPStatusError, InvalidOption
from gnsq_like.http import blocking
from gnsq_like.http.decode import Malformed, line_of, object_of, text_of, value_of
from gnsq_like.http.url import parse_base_url

if TYPE_CHECKING:
    from types import ModuleType, TracebackType
    from typing import Self

    from gnsq_like.http.exchange import Answer, Line

#: The largest answer that is accepted unless the user sets another: /stats of thousands of channels has a few MiB.
DEFAULT_MAX_ANSWER_BYTES = 16 * 1024 * 1024
#: Seconds after which an idle line is closed rather than used: below the idle timeouts of usual proxies.
IDLE_SECONDS = 30.0
#: Idle lines that are kept; more were in use at one moment, fewer are enough afterwards.
MAX_IDLE = 8

#: Seconds for importing requests, once in a process; far above what it takes.
LOAD_SECONDS = 60.0

#: The value of the Authorization header, or what gives it for each request.
Authorization = str | Callable[[], str | None]

_T = TypeVar("_T")


@dataclass(eq=False, slots=True)  # without eq, list.remove() compares by identity, in one step
class _Idle:
    """A line that nobody uses, and what tells who may."""

    line: Line
    pid: int
    #: The hub that its socket belongs to; None for a socket of no hub.
    hub: weakref.ref[object] | None
    #: time.monotonic() of its last use.
    since: float


class HTTPClient:
    """One daemon's HTTP API. Opens nothing before the first request.

    :param address: "host:port", "[ipv6]:port", or "http(s)://[user:password@]host[:port][/path]"; the user
        and password are sent as basic authorization, before ``authorization``, and shown nowhere
    :param timeout: seconds for a request from its start to the last byte of its answer. In an OS thread
        without a hub, resolving the host name is bounded by the resolver's own timeouts only
    :param authorization: the value of the Authorization header, such as ``"Bearer ..."``; or a function that
        gives it, called in the caller's greenlet for each request, where None means none
    :param connect_timeout: seconds, within ``timeout``, for each address that the host name has
    :param verify: True, False, or the path of a file or directory of CA certificates
    :param cert: path of a client certificate with its key, or the paths of both
    :param max_answer_bytes: the largest answer that is accepted
    :raises InvalidAddress: a wrong address
    :raises InvalidOption: a wrong value of another argument

    Every request may raise :exc:`~gnsq_like.errors.HTTPRequestFailed` (no usable answer; whether the daemon
    did what was asked is then unknown) and :exc:`~gnsq_like.errors.HTTPStatusError` (the daemon says no; its
    ``message`` is the daemon's word). Nothing is tried again here. Every request may switch greenlets.
    """

    def __init__(
        self,
        address: str,
        timeout: float = 5.0,
        authorization: Authorization | None = None,
        *,
        connect_timeout: float = 2.0,
        verify: bool | str = True,
        cert: str | tuple[str, str] | None = None,
        max_answer_bytes: int = DEFAULT_MAX_ANSWER_BYTES,
    ) -> None:
        base = parse_base_url(address)
        #: Below which everything is asked; without credentials.
        self.url = base.url
        self._timeout = seconds("timeout", timeout, above_zero=True)
        self._connect_timeout = seconds("connect_timeout", connect_timeout, above_zero=True)
        if isinstance(max_answer_bytes, bool) or not isinstance(max_answer_bytes, int) or max_answer_bytes < 1:
            raise InvalidOption("max_answer_bytes", max_answer_bytes, "it must be a whole number above 0")
        self._max_answer_bytes = max_answer_bytes
        if authorization is not None and not callable(authorization):
            _check_header(authorization)
        self._authorization: Authorization | None = base.authorization or authorization
        self._verify = verify
        self._cert = cert
        #: The last one was used last. Written by every thread, one step at a time.
        self._idle: list[_Idle] = []
        #: Counts close(), so that lines in use at that moment are not kept afterwards.
        self._closed_count = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections kept for later requests. A later request is allowed and opens its own."""
        self._closed_count += 1
        while self._idle:
            try:
                idle = self._idle.pop()
            except IndexError:  # another thread took it
                return
            idle.line.close()

    def ping(self) -> str:
        """``"OK"``, when the daemon is well.

        :raises HTTPStatusError: it is not; ``message`` is then its text (``"NOK - ..."``)
        """
        return self._expect_ok(self._request("GET", "/ping"))

    # --- for the clients built on this ---

    def _get_object(self, path: str, params: Mapping[str, str], parse: Callable[[dict[str, Any]], _T]) -> _T:
        """What ``parse`` makes of the JSON object that a GET gives; Malformed becomes HTTPRequestFailed."""
        answer = self._request("GET", path, params)
        try:
            return parse(_opened(answer, object_of(answer.body)))
        except Malformed as exc:
            raise HTTPRequestFailed(answer.url, f"the answer is malformed: {exc}") from exc

    def _get_text(self, path: str, params: Mapping[str, str]) -> str:
        return text_of(self._request("GET", path, params).body)

    def _post(self, path: str, params: Mapping[str, str], body: bytes = b"") -> Answer:
        return self._request("POST", path, params, body)

    def _expect_ok(self, answer: Answer) -> str:
        """For what answers the text OK: a page of something else that answers 200 must not pass for it."""
        if answer.body != b"OK":
            raise HTTPRequestFailed(answer.url, f"the answer is not OK but {line_of(answer.body)!r}")
        return "OK"

    def _request(
        self, method: str, path: str, params: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        """The answer, if its status is 200; raises HTTPRequestFailed, HTTPStatusError. May switch."""
        url = self.url + path + (f"?{urlencode(params)}" if params else "")
        headers = self._headers(body)

        def job() -> Answer:
            left = started + self._timeout - time.monotonic()
            if left <= 0:
                raise TimeoutError
            deadline = exchange.Deadline(self._timeout, self._connect_timeout, left)
            taken_at = (os.getpid(), self._closed_count)
            line = self._take_line() or exchange.Line(self._verify, self._cert)
            try:
                answer = line.fetch(exchange.Request(method, url, headers, body), deadline, self._max_answer_bytes)
            except BaseException:  # also a caller's gevent.Timeout: half an answer may be on the line
                line.close()
                raise
            self._put_line(line, taken_at)
            return answer

        try:
            exchange = _exchange()
            started = time.monotonic()
            answer = blocking.run(job, self._timeout)
        except TimeoutError as exc:
            raise HTTPRequestFailed(url, f"no answer within {self._timeout:g} s") from exc
        if answer.status != 200:
            raise _status_error(answer)
        return answer

    def _headers(self, body: bytes | None) -> dict[str, str]:
        headers = {
            "Accept": "application/vnd.nsq; version=1.0",
            "Accept-Encoding": "identity",
            "User-Agent": f"gnsq_like/{__version__}",
        }
        if body:
            headers["Content-Type"] = "application/octet-stream"
        authorization = self._authorization
        if callable(authorization):
            authorization = authorization()
        if authorization is not None:
            headers["Authorization"] = _check_header(authorization)
        return headers

    def _take_line(self) -> Line | None:
        hub = blocking.current_hub()
        for idle in reversed(self._idle.copy()):
            owner = None if idle.hub is None else idle.hub()
            stale = time.monotonic() - idle.since > IDLE_SECONDS or idle.pid != os.getpid()
            if owner is not None and owner is not hub and not stale:
                continue
            try:
                self._idle.remove(idle)
            except ValueError:  # another thread took it
                continue
            if owner is hub and not stale:
                return idle.line
            idle.line.close()
        return None

    def _put_line(self, line: Line, taken_at: tuple[int, int]) -> None:
        """Keep a line, unless there was a fork or a close() since it was taken."""
        if taken_at != (os.getpid(), self._closed_count) or len(self._idle) >= MAX_IDLE:
            line.close()
            return
        hub = blocking.current_hub()
        owner = None if hub is None else weakref.ref(hub)
        self._idle.append(_Idle(line, os.getpid(), owner, time.monotonic()))


@cache
def _exchange() -> ModuleType:
    """The module exchange. The first call loads it, and with it requests, urllib3 and ssl. May switch."""
    return blocking.run(lambda: import_module("gnsq_like.http.exchange"), LOAD_SECONDS)


def seconds(option: str, value: float, *, above_zero: bool = False) -> float:
    """``value``, if it is a duration; raises InvalidOption."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidOption(option, value, "it must be a number of seconds")
    if value < 0 or (above_zero and value == 0):
        raise InvalidOption(option, value, "it must be above 0" if above_zero else "it must not be negative")
    return value


def _check_header(value: object) -> str:
    # Else requests would refuse it, with the secret in its error.
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or value != value.strip():
        raise InvalidOption(
            "authorization", "<hidden>", "a header's value is printable ASCII, without blanks around it"
        )
    return value


def _opened(answer: Answer, value: dict[str, Any]) -> dict[str, Any]:
    """What older daemons put inside {"status_code", "status_txt", "data"}."""
    if "data" not in value or "status_code" not in value:
        return value
    status = value_of(value, "status_code", int)
    if status != 200:
        raise HTTPStatusError(answer.url, status, value_of(value, "status_txt", str, ""))
    if not isinstance(value["data"], dict):
        raise Malformed('"data" is not an object')
    return value["data"]


def _status_error(answer: Answer) -> HTTPStatusError:
    """From nsqd's {"message"}, the older {"status_txt"}, or whatever text there is (docs/internals 3.1)."""
    message = line_of(answer.body)
    try:
        value = object_of(answer.body)
    except Malformed:
        return HTTPStatusError(answer.url, answer.status, message)
    word = value.get("message", value.get("status_txt"))
    if isinstance(word, str):
        message = word
    if message == "TLS_REQUIRED":
        message = f"TLS_REQUIRED: this nsqd answers only over https, on port {value.get('https_port')}"
    return HTTPStatusError(answer.url, answer.status, message)
