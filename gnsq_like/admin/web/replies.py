"""Responses of the JSON API, in nsqadmin's form, and compression of all that are worth it."""

from __future__ import annotations

import gzip
from typing import Any
from urllib.parse import quote

from flask import Request, Response, current_app, redirect, request
from werkzeug.exceptions import HTTPException

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


def is_missing(path: str, method: str = "GET") -> bool:
    """Whether a path is none of the pages and of the API."""
    adapter = current_app.create_url_adapter(request)
    try:
        endpoint, _ = adapter.match(path, method) if adapter is not None else ("", {})
    except HTTPException:
        return True
    return bool(endpoint.partition(" ")[0].endswith((".missing", ".api_other")))


def not_found(otherwise: Response | None = None) -> Any:
    """The response to a request that no route takes: a redirect if only its case is wrong, as nsqadmin has it.

    :param otherwise: instead of nsqadmin's JSON
    """
    corrected = _in_right_case(request.path, [rule.rule for rule in current_app.url_map.iter_rules()])
    if corrected != request.path and not is_missing(corrected, request.method):
        query = request.query_string.decode("latin-1")
        target = f"{request.script_root}{quote(corrected)}{'?' * bool(query)}{query}"
        return redirect(target, 301 if request.method == "GET" else 307)
    return problem(404, "NOT_FOUND") if otherwise is None else otherwise


def _in_right_case(path: str, rules: list[str]) -> str:
    """A path with the words of the rule that it matches but for its case."""
    words = path.split("/")
    for rule in rules:
        parts = rule.split("/")
        if len(parts) == len(words) and all(
            part.startswith("<") or part.lower() == word.lower() for part, word in zip(parts, words, strict=True)
        ):
            return "/".join(word if part.startswith("<") else part for part, word in zip(parts, words, strict=True))
    return path


def warning(warnings: list[str]) -> str:
    """The ``message`` of a successful response."""
    return f"WARNING: {'; '.join(warnings)}" if warnings else ""


def compress(asked: Request, response: Response) -> None:
    """Compress the response, if the client accepts that and it is worth it."""
    if response.direct_passthrough or response.is_streamed or "Content-Encoding" in response.headers:
        return
    response.vary.add("Accept-Encoding")
    if not asked.accept_encodings["gzip"] or response.status_code != 200:
        return
    body = response.get_data()
    if len(body) >= _WORTH_IT:
        response.set_data(gzip.compress(body, _LEVEL, mtime=0))
        response.headers["Content-Encoding"] = "gzip"
