"""The HTTP APIs of both daemons and the admin: routing, parameters, errors (docs/internals 3.1).

A server is a WSGI application made of a table: path -> method -> function. "<name>" in a path stands for any word; the
last word is :attr:`Request.last_word`. A function takes a :class:`Request` and returns text, None for an empty
response, or anything else to be sent as JSON; or raises :class:`HTTPProblem`.

It is called after the request's body has been read to its end and dropped. A function that needs the body is in the
table as a :class:`TakesBody`; it calls :meth:`Request.read_body` before it changes anything.
"""

from __future__ import annotations

import json
import logging
import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, unquote_to_bytes
from wsgiref.types import StartResponse, WSGIEnvironment

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
#: The beginnings of paths whose responses do not carry NSQ's header.
_PLAIN_PATHS = ("/ping", "/debug/")


class HTTPProblem(Exception):
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

    def __init__(self, environ: WSGIEnvironment) -> None:
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

        :raises HTTPProblem: if the body is cut off or malformed
        """
        try:
            body: bytes = self._environ["wsgi.input"].read(limit)
        except OSError:
            raise HTTPProblem(500, "INTERNAL_ERROR") from None
        return body

    def drop_body(self) -> None:
        """Read the body to its end. May switch.

        :raises HTTPProblem: if the body is cut off or malformed
        """
        try:
            self._environ["wsgi.input"].drop()
        except OSError:
            raise HTTPProblem(400, "INVALID_REQUEST") from None


#: The result of a function of the table.
Answer = str | dict[str, Any] | list[Any] | float | None
Function = Callable[[Request], Answer]


@dataclass(frozen=True)
class TakesBody:
    """A function of the table that reads the request's body itself."""

    function: Function


F = TypeVar("F")
#: Status, header fields and body.
Reply = tuple[int, list[tuple[str, str]], bytes]
Routes = Mapping[str, Mapping[str, Function | TakesBody]]


def parse_query(query: str) -> dict[str, str]:
    """Parse a query string as Go's net/url does.

    :raises HTTPProblem: if it cannot be decoded: a stray "%", or a ";"
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
        raise HTTPProblem(400, "INVALID_REQUEST")
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "surrogateescape")


def argument(parameters: dict[str, str], name: str) -> str:
    """A required parameter; raises HTTPProblem."""
    value = parameters.get(name)
    if value is None:
        raise HTTPProblem(400, f"MISSING_ARG_{name.upper()}")
    return value


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


class Application:
    """A WSGI application over a table of routes, for an HTTPServer without a limit for bodies."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        status, headers, body = self._answer(path, method, environ)
        headers.append(("Content-Length", str(len(body))))
        start_response(f"{status} {_REASONS[status]}", headers)
        return [] if method == "HEAD" else [body]

    def _answer(self, path: str, method: str, environ: WSGIEnvironment) -> Reply:
        if path == "*" and method == "OPTIONS":  # of the whole server
            return 200, [], b""
        functions = self._routes.get(rule_of(path, self._routes), {})
        if method not in functions and (right := self._corrected(path, method)):
            return _redirect(right, method, environ["QUERY_STRING"])
        request = Request(environ)

        def call(function: Function | TakesBody) -> Answer:
            if isinstance(function, TakesBody):
                return function.function(request)
            request.drop_body()
            return function(request)

        status, headers, body = respond(functions, method, call, path)
        if path.startswith(_PLAIN_PATHS) and status == 200:
            headers = [each for each in headers if each != NSQ_HEADER]
        return status, headers, body

    def _corrected(self, path: str, method: str) -> str:
        """The path to redirect to: without a doubled or trailing slash, in the right case."""
        clean = posixpath.normpath("/" + path.lstrip("/"))
        right = in_right_case(clean, [rule for rule, functions in self._routes.items() if method in functions])
        return "" if right == path else right


def rule_of(path: str, rules: Iterable[str]) -> str:
    """The rule that a path matches, in which "<...>" stands for any word; empty if none."""
    words = path.split("/")
    return next((rule for rule in rules if _matches(rule, words, str)), "")


def in_right_case(path: str, rules: Iterable[str]) -> str:
    """A path with the words of the rule that it matches in any case; empty if none."""
    words = path.split("/")
    rule = next((rule for rule in rules if _matches(rule, words, str.lower)), "")
    parts = rule.split("/") if rule else []
    return "/".join(word if part.startswith("<") else part for part, word in zip(parts, words, strict=False))


def _matches(rule: str, words: list[str], folded: Callable[[str], str]) -> bool:
    parts = rule.split("/")
    return len(parts) == len(words) and all(
        bool(word) if part.startswith("<") else folded(part) == folded(word)
        for part, word in zip(parts, words, strict=True)
    )


def respond(functions: Mapping[str, F], method: str, call: Callable[[F], Answer], path: str) -> Reply:
    """The response to a request for a path.

    :param functions: those of the path, by method
    :param call: calls one of them, and may raise HTTPProblem
    """
    function = functions.get(method)
    if function is None:
        if not functions:
            return refusal(404, "NOT_FOUND")
        allow = "Allow", ", ".join(sorted({*functions, "OPTIONS"}))
        if method == "OPTIONS":
            return 200, [allow], b""
        status, headers, body = refusal(405, "METHOD_NOT_ALLOWED")
        return status, [*headers, allow], body
    try:
        answer = call(function)
    except HTTPProblem as problem:
        if problem.plain:
            return problem.status, [("Content-Type", _TEXT)], problem.text.encode()
        return refusal(problem.status, problem.text)
    except Exception:
        log.exception("%s failed", path)
        return refusal(500, "INTERNAL_ERROR")
    if answer is None or answer == "":
        return 200, [NSQ_HEADER], b""
    if isinstance(answer, str):
        return 200, [("Content-Type", _TEXT), NSQ_HEADER], answer.encode()
    return 200, [("Content-Type", JSON), NSQ_HEADER], _json(answer)


def refusal(status: int, text: str) -> Reply:
    """The response with an error."""
    return status, [("Content-Type", JSON), NSQ_HEADER], _json({"message": text})


def _redirect(path: str, method: str, query: str) -> Reply:
    """The response for a trailing or doubled slash, or the wrong case."""
    location = quote(path) + (f"?{query}" if query else "")
    return 301 if method == "GET" else 307, [("Location", location)], b""
