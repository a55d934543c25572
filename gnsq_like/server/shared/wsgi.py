"""The HTTP servers of both daemons: routing, parameters, errors (docs/internals 3.1).

A server is a WSGI application made of a table: path -> method -> function. A path that ends with "/" stands
for all paths with one more word there, :attr:`Request.last_word`. A function takes a :class:`Request` and
returns text, None for an empty response, or anything else to be sent as JSON; or raises :class:`Problem`.

It is called once the request's body has been read to its end, and dropped. A function that needs the body is in the
table as a :class:`TakesBody`; it calls :meth:`Request.read_body` before it changes anything.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from gnsq_like.server.shared.gotext import to_json
from gnsq_like.wire.names import is_valid_name

log = logging.getLogger(__name__)

_REASONS = {
    200: "OK",
    301: "Moved Permanently",
    307: "Temporary Redirect",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Request Entity Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"
NSQ_HEADER = ("X-Nsq-Content-Type", "nsq; version=1.0")
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_HTML_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})
#: The beginnings of paths whose responses do not carry NSQ's header.
_PLAIN_PATHS = ("/ping", "/debug/")


class Problem(Exception):
    """A response with an error status.

    :param status: the HTTP status code
    :param text: NSQ's name of the error
    :param plain: send the text as it is, not in JSON
    """

    def __init__(self, status: int, text: str, plain: bool = False) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text
        self.plain = plain


class Request:
    """One HTTP request."""

    def __init__(self, environ: Mapping[str, Any]) -> None:
        self._environ = environ

    @property
    def last_word(self) -> str:
        """The part of the path after the last slash."""
        return str(self._environ["PATH_INFO"]).rpartition("/")[2]

    def parameters(self) -> dict[str, str]:
        """The query string's parameters, the first of each name; those in a body are ignored."""
        return parse_query(self._environ.get("QUERY_STRING", ""))

    @property
    def content_length(self) -> int | None:
        """The length of the body according to the client; None if it gives none (chunked)."""
        text = self._environ.get("CONTENT_LENGTH") or ""
        return int(text) if text.isdigit() else None

    def read_body(self, limit: int) -> bytes:
        """The body, or its first ``limit`` bytes. May switch.

        :raises Problem: if the body is cut off or malformed
        """
        try:
            body: bytes = self._environ["wsgi.input"].read(limit)
        except OSError:
            raise Problem(500, "INTERNAL_ERROR") from None
        return body

    def drop_body(self) -> None:
        """Read the body to its end. May switch.

        :raises Problem: if the body is cut off or malformed
        """
        try:
            self._environ["wsgi.input"].drop()
        except OSError:
            raise Problem(400, "INVALID_REQUEST") from None


#: The result of a function of the table.
Answer = str | dict[str, Any] | list[Any] | float | None
Function = Callable[[Request], Answer]


@dataclass(frozen=True)
class TakesBody:
    """A function of the table that reads the request's body itself."""

    function: Function


Routes = Mapping[str, Mapping[str, Function | TakesBody]]


def parse_query(query: str) -> dict[str, str]:
    """Parse a query string as Go's net/url does.

    :raises Problem: if it cannot be decoded: a stray "%", or a ";"
    """
    parameters: dict[str, str] = {}
    for pair in query.split("&"):
        if not pair:
            continue
        name, _, value = pair.partition("=")
        parameters.setdefault(_decoded(name), _decoded(value))
    return parameters


def _decoded(text: str) -> str:
    bad_percent = any(not set(part[:2]) <= _HEX_DIGITS or len(part) < 2 for part in text.split("%")[1:])
    if ";" in text or bad_percent:
        raise Problem(400, "INVALID_REQUEST")
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "surrogateescape")


def topic_and_channel_names(request: Request) -> tuple[str, str]:
    """The two parameters of the channel endpoints of both daemons; raises Problem."""
    parameters = request.parameters()
    topic = argument(parameters, "topic")
    if not is_valid_name(topic):
        raise Problem(400, "INVALID_ARG_TOPIC")
    channel = argument(parameters, "channel")
    if not is_valid_name(channel):
        raise Problem(400, "INVALID_ARG_CHANNEL")
    return topic, channel


def argument(parameters: dict[str, str], name: str) -> str:
    """A required parameter; raises Problem."""
    value = parameters.get(name)
    if value is None:
        raise Problem(400, f"MISSING_ARG_{name.upper()}")
    return value


#: Any WSGI application.
WSGIApplication = Callable[[Mapping[str, Any], Callable[..., Any]], Iterable[bytes]]


class Application:
    """A WSGI application over a table of routes, for an HTTPServer without a limit for bodies."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._right_case = {(method, path.lower()): path for path, functions in routes.items() for method in functions}
        #: All that are used; "*" stands for the whole server.
        self._methods = {method for method, _ in self._right_case}

    def __call__(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        status, headers, body = self._answer(path, method, environ)
        headers.append(("Content-Length", str(len(body))))
        start_response(f"{status} {_REASONS[status]}", headers)
        return [] if method == "HEAD" else [body]

    def _functions_at(self, path: str) -> Mapping[str, Function | TakesBody]:
        folder, _, last_word = path.rpartition("/")
        if not last_word:
            return {}
        return self._routes.get(path) or self._routes.get(f"{folder}/") or {}

    def _answer(self, path: str, method: str, environ: Mapping[str, Any]) -> tuple[int, list[tuple[str, str]], bytes]:
        functions = self._functions_at(path)
        function = functions.get(method)
        if function is not None:
            return self._result(function, path, Request(environ))
        if right := self._corrected(path, method):
            return _redirect(right, method, environ["QUERY_STRING"])
        methods = self._methods if path == "*" else [*functions]
        if method == "OPTIONS" and methods:
            return 200, [] if path == "*" else [_allow(methods)], b""
        if not methods:
            return _problem(404, "NOT_FOUND")
        status, headers, body = _problem(405, "METHOD_NOT_ALLOWED")
        return status, [*headers, _allow(methods)], body

    def _corrected(self, path: str, method: str) -> str:
        """The path of this method that is meant: without a doubled or trailing slash, in the right case."""
        clean = posixpath.normpath("/" + path.lstrip("/"))
        if right := self._right_case.get((method, clean.lower())):
            return right
        folder, _, last_word = clean.rpartition("/")
        return self._right_case.get((method, f"{folder}/".lower()), "") and f"{folder}/".lower() + last_word

    def _result(
        self, function: Function | TakesBody, path: str, request: Request
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        try:
            if isinstance(function, TakesBody):
                answer = function.function(request)
            else:
                request.drop_body()
                answer = function(request)
        except Problem as problem:
            if problem.plain:
                return problem.status, [("Content-Type", _TEXT)], problem.text.encode()
            return _problem(problem.status, problem.text)
        except Exception:
            log.exception("%s failed", path)
            return _problem(500, "INTERNAL_ERROR")
        headers = [] if path.startswith(_PLAIN_PATHS) else [NSQ_HEADER]
        if not answer and (answer is None or answer == ""):
            return 200, headers, b""
        if isinstance(answer, str):
            return 200, [("Content-Type", _TEXT), *headers], answer.encode()
        return 200, [("Content-Type", JSON), *headers], to_json(answer)


def _problem(status: int, text: str) -> tuple[int, list[tuple[str, str]], bytes]:
    return status, [("Content-Type", JSON), NSQ_HEADER], to_json({"message": text})


def _allow(methods: Iterable[str]) -> tuple[str, str]:
    return "Allow", ", ".join(sorted([*methods, "OPTIONS"]))


def _redirect(path: str, method: str, query: str) -> tuple[int, list[tuple[str, str]], bytes]:
    """The response for a trailing or doubled slash, or the wrong case."""
    target = path + (f"?{query}" if query else "")
    location = "".join(char if char.isascii() else f"%{ord(char):x}" for char in target)
    headers = [("Location", location)]
    if method != "GET":
        return 307, headers, b""
    body = f'<a href="{target.translate(_HTML_ESCAPES)}">Moved Permanently</a>.\n\n'.encode("latin-1")
    return 301, [*headers, ("Content-Type", "text/html; charset=utf-8")], body
