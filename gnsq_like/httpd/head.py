"""The head of an HTTP request, parsed as strictly as NSQ's daemons parse it (docs/internals 3.1).

If a proxy and a server disagree about where a request ends, a client can hide a second request in the body of the
first. So fields that decide about the end are accepted in one form only: Content-Length is digits, given once or the
same each time; Transfer-Encoding is "chunked", once; names have no white space before the colon; the version is
HTTP/1.x. Like Go's net/http, this accepts lines that end in a bare LF, folded lines, and a Content-Length beside
"chunked", which overrides it.

Pure: lines come from a callable. Refusals have the status and the text that Go sends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

#: The bytes of a head that are read at most, as in Go.
MAX_HEAD_BYTES = (1 << 20) + 4096

_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE = re.compile(rf"({_TOKEN}) ([^ \x00-\x1f\x7f]+) HTTP/([0-9])\.([0-9])")
_NAME = re.compile(_TOKEN)
#: Spaces, tabs and visible bytes; no other control characters.
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_HOST = re.compile(r"[0-9A-Za-z!$%&()*+,\-.:;=\[\]'_~]*")
_DIGITS = re.compile("[0-9]{1,19}")
_BAD_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")
_ORIGIN = re.compile("https?://[^/?]+", re.IGNORECASE)
_LENGTH_LIMIT = 1 << 63
_REASONS = {
    400: "Bad Request",
    413: "Request Entity Too Large",
    417: "Expectation Failed",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    505: "HTTP Version Not Supported",
}
_BODIES = {417: "", 501: "Unsupported transfer encoding"}


class BadRequest(Exception):
    """A request that is refused before any application sees it; the connection ends with the response.

    :param status: the HTTP status code
    :param text: the reason, for the response, as in Go
    :param minor_version: of HTTP/1.x, in the response
    """

    def __init__(self, status: int = 400, text: str = "", minor_version: int = 1) -> None:
        self.status = status
        #: Of the response.
        self.minor_version = minor_version
        reason = _REASONS[status]
        #: The status line without the version, and the body of the response.
        self.status_line: str = f"{status} {reason}: {text}" if text else f"{status} {reason}"
        self.body: str = _BODIES.get(status, self.status_line)
        super().__init__(self.status_line)


class Head(NamedTuple):
    """A request without its body."""

    method: str
    #: As it was sent.
    target: str
    #: As it was sent, with its percent signs; "" and "*" are possible.
    path: str
    query: str
    #: Of HTTP/1.x.
    minor_version: int
    #: Names in lower case, in the order in which they were sent; values without white space around them. Latin-1.
    fields: Sequence[tuple[str, str]]
    #: The bytes of the body; 0 for chunked.
    content_length: int
    chunked: bool
    #: Whether the connection ends after the response.
    close: bool
    #: Whether the client waits for "100 Continue" before it sends the body.
    expects_continue: bool


def read_head(readline: Callable[[int], bytes], after_post: bool = False) -> Head | None:
    """Read and parse a request's head. May switch, as ``readline`` does.

    :param readline: a file's; it is given the most bytes to return
    :param after_post: skip the line breaks that old clients send after the body of a POST
    :return: None at the end of the connection
    :raises BadRequest: if the request must be refused
    :raises OSError: if reading fails
    """
    first = readline(MAX_HEAD_BYTES)
    skipped = 0
    while after_post and first in (b"\r\n", b"\n") and skipped + len(first) <= 4:
        skipped += len(first)
        first = readline(MAX_HEAD_BYTES)
    if not first:
        return None
    left = MAX_HEAD_BYTES - len(first)
    lines: list[str] = []
    while True:
        line = readline(left)
        left -= len(line)
        if line in (b"\r\n", b"\n"):
            break
        if not line.endswith(b"\n"):
            raise BadRequest(431 if left <= 0 else 400)
        lines.append(_without_end(line))
    return parse_head(_without_end(first), lines)


def _without_end(line: bytes) -> str:
    return line[: -2 if line.endswith(b"\r\n") else -1].decode("latin-1")


def parse_head(first: str, lines: list[str]) -> Head:
    """Parse a request line and the lines of the header fields, both without their ends.

    :raises BadRequest: if the request must be refused
    """
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise BadRequest
    method, target, major, minor = match.groups()
    path, query = _split_target(target)
    fields, problem = _fields(lines)
    values: dict[str, list[str]] = {}
    for name, value in fields:
        values.setdefault(name, []).append(value)
    hosts = values.get("host", ())
    if len(hosts) > 1:
        raise BadRequest
    minor_version = int(minor) if major == "1" else 0
    chunked = _is_chunked(values) if minor_version else False
    content_length = _content_length(values.get("content-length"))
    if chunked:
        content_length = 0
    if major != "1":
        raise BadRequest(505, "unsupported protocol version")
    if minor_version and not hosts:
        raise BadRequest(400, "missing required Host header")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise BadRequest(400, "malformed Host header")
    if problem:
        raise BadRequest(400, problem)
    expects_continue = (
        _expects_continue(values.get("expect"), minor_version) and minor_version > 0 and (chunked or content_length > 0)
    )
    close = _closes(values.get("connection", ()), minor_version)
    return Head(method, target, path, query, minor_version, fields, content_length, chunked, close, expects_continue)


def _split_target(target: str) -> tuple[str, str]:
    """The path and the query string of a request's target, which may be a whole URL, as proxies get it."""
    path, _, query = target.partition("?")
    if origin := _ORIGIN.match(path):
        path = path[origin.end() :]
    elif not path.startswith("/") and target != "*":
        raise BadRequest
    if "%" in path and _BAD_PERCENT.search(path):
        raise BadRequest
    return path, query


def _fields(lines: list[str]) -> tuple[list[tuple[str, str]], str]:
    """The header fields, and the refusal of a name with spaces, which Go checks last."""
    if lines and lines[0][0] in " \t":
        raise BadRequest
    fields: list[tuple[str, str]] = []
    problem = ""
    for line in _unfolded(lines):
        name, colon, value = line.partition(":")
        if not colon:
            raise BadRequest
        value = value.lstrip(" \t")
        if not _VALUE.fullmatch(value) or not _NAME.fullmatch(name.replace(" ", "")):
            raise BadRequest
        if " " in name:
            problem = "invalid header name"
        fields.append((name.lower(), value))
    return fields, problem


def _unfolded(lines: list[str]) -> list[str]:
    """The lines with their continuations, which begin with white space; none ends in it, but an empty continuation."""
    whole: list[str] = []
    for line in lines:
        if line[0] not in " \t":
            whole.append(line.rstrip(" \t"))
        elif ":" not in whole[-1]:
            raise BadRequest
        else:
            whole[-1] += " " + line.strip(" \t")
    return whole


def _is_chunked(values: dict[str, list[str]]) -> bool:
    codings = values.get("transfer-encoding")
    if codings is None:
        return False
    if len(codings) > 1 or codings[0].lower() != "chunked":
        raise BadRequest(501)
    return True


def _content_length(values: list[str] | None) -> int:
    if values is None:
        return 0
    if len(set(values)) > 1:
        raise BadRequest
    if not values[0]:
        return 0
    if not _DIGITS.fullmatch(values[0]) or int(values[0]) >= _LENGTH_LIMIT:
        raise BadRequest
    return int(values[0])


def _elements(values: Sequence[str]) -> list[str]:
    """The elements of comma-separated lists, in lower case."""
    return [element.strip(" \t").lower() for value in values for element in value.split(",")]


def _expects_continue(values: list[str] | None, minor_version: int) -> bool:
    if not values or not values[0]:
        return False
    if values[0].lower() != "100-continue":
        raise BadRequest(417, minor_version=minor_version)
    return True


def _closes(values: Sequence[str], minor_version: int) -> bool:
    found = _elements(values)
    return "close" in found or (minor_version == 0 and "keep-alive" not in found)
