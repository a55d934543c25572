"""Responses of the JSON API, in nsqadmin's form, and compression of all that are worth it."""

from __future__ import annotations

import gzip
from typing import Any

from flask import Request, Response

from gnsq_like.server.shared.gotext import to_json
from gnsq_like.server.shared.wsgi import JSON, NSQ_HEADER

#: Bytes from which a response is compressed.
_WORTH_IT = 1000
#: Fast; higher levels save little of such pages.
_LEVEL = 3


class Refusal(Exception):
    """An error response.

    :param status: the HTTP status
    :param text: NSQ's name of the error, or a sentence
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text


def json_reply(value: Any, status: int = 200) -> Response:
    """A response as NSQ's daemons send it."""
    response = Response(to_json(value), status)
    response.headers["Content-Type"] = JSON
    response.headers[NSQ_HEADER[0]] = NSQ_HEADER[1]
    response.headers["Cache-Control"] = "no-store"
    return response


def problem(status: int, text: str) -> Response:
    """An error response of the API."""
    return json_reply({"message": text}, status)


def warning(warnings: list[str]) -> str:
    """The ``message`` of a successful response."""
    return f"WARNING: {'; '.join(warnings)}" if warnings else ""


def compress(request: Request, response: Response) -> None:
    """Compress the response, if the client accepts that and it is worth it."""
    if response.direct_passthrough or response.is_streamed or "Content-Encoding" in response.headers:
        return
    response.vary.add("Accept-Encoding")
    if not request.accept_encodings["gzip"] or response.status_code != 200:
        return
    body = response.get_data()
    if len(body) >= _WORTH_IT:
        response.set_data(gzip.compress(body, _LEVEL, mtime=0))
        response.headers["Content-Encoding"] = "gzip"
