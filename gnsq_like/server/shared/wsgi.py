"""The HTTP servers of both daemons: routing, parameters, errors (docs/internals 3.1).

A server is a WSGI application made of a table: path -> method -> function. A path that ends with "/" stands
for all paths with one more word there, :attr:`Request.last_word`. A function takes a :class:`Request` and
returns text, None for an empty response, or anything else to be sent as JSON; or raises :class:`Problem`.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote_to_bytes

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
NSQ_HEADER = ("X-NSQ-Content-Type", "nsq; version=1.0")
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
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

        :raises Problem: if the client does not send the whole body
        """
        try:
            body: bytes = self._environ["wsgi.input"].read(limit)
        except OSError:
            raise Problem(500, "INTERNAL_ERROR") from None
        return body


#: The result of a function of the table.
Answer = str | dict[str, Any] | list[Any] | float | None
Function = Callable[[Request], Answer]
Routes = Mapping[str, Mapping[str, Function]]


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
    """A WSGI application over a table of routes."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._right_case = {path.lower(): path for path in routes}

    def __call__(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"] or "/", environ["REQUEST_METHOD"]
        status, headers, body = self._answer(path, method, environ)
        headers.append(("Content-Length", str(len(body))))
        start_response(f"{status} {_REASONS[status]}", headers)
        return [] if method == "HEAD" else [body]

    def _functions_at(self, path: str) -> Mapping[str, Function] | None:
        folder, _, last_word = path.rpartition("/")
        if not last_word:
            return None
        return self._routes.get(path) or self._routes.get(f"{folder}/")

    def _answer(self, path: str, method: str, environ: Mapping[str, Any]) -> tuple[int, list[tuple[str, str]], bytes]:
        functions = self._functions_at(path)
        if functions is None:
            right = self._right_case.get(posixpath.normpath("/" + path.lstrip("/")).lower())
            if right is None:
                return _problem(404, "NOT_FOUND")
            return _redirect(right, method, environ.get("QUERY_STRING", ""))
        if method == "OPTIONS":
            return 200, [_allow(functions)], b""
        function = functions.get(method)
        if function is None:
            status, headers, body = _problem(405, "METHOD_NOT_ALLOWED")
            return status, [*headers, _allow(functions)], body
        try:
            answer = function(Request(environ))
        except Problem as problem:
            if problem.plain:
                return problem.status, [("Content-Type", _TEXT)], problem.text.encode()
            return _problem(problem.status, problem.text)
        except Exception:
            log.exception("%s %s failed", method, path)
            return _problem(500, "INTERNAL_ERROR")
        headers = [] if path.startswith(_PLAIN_PATHS) else [NSQ_HEADER]
        if answer is None:
            return 200, headers, b""
        if isinstance(answer, str):
            return 200, [("Content-Type", _TEXT), *headers], answer.encode()
        return 200, [("Content-Type", JSON), *headers], to_json(answer)


def _problem(status: int, text: str) -> tuple[int, list[tuple[str, str]], bytes]:
    return status, [("Content-Type", JSON), NSQ_HEADER], to_json({"message": text})


def _allow(functions: Mapping[str, Function]) -> tuple[str, str]:
    return "Allow", ", ".join(sorted([*functions, "OPTIONS"]))


def _redirect(path: str, method: str, query: str) -> tuple[int, list[tuple[str, str]], bytes]:
    """The response for a trailing or doubled slash, or the wrong case."""
    location = quote(path) + (f"?{query}" if query else "")
    headers = [("Location", location)]
    if method != "GET":
        return 307, headers, b""
    body = f'<a href="{location.replace("&", "&amp;")}">Moved Permanently</a>.\n\n'.encode()
    return 301, [*headers, ("Content-Type", "text/html; charset=utf-8")], body
