"""Responses of the JSON API, in nsqadmin's form, and where no route matches; compression of large responses."""

from __future__ import annotations

import gzip
from typing import Any
from urllib.parse import quote

from flask import Request, Response, current_app, redirect, request
from werkzeug.exceptions import HTTPException

from gnsq_like.httpd.wsgi import Reply, in_right_case, refusal

#: Bytes from which a response is compressed.
_WORTH_IT = 1000
#: Fast; higher levels save little of such pages.
_LEVEL = 3


def response_of(reply: Reply) -> Response:
    """A response of the API."""
    status, headers, body = reply
    return Response(body, status, [*headers, ("Cache-Control", "no-store")])


def problem(status: int, text: str) -> Response:
    """An error response of the API."""
    return response_of(refusal(status, text))


def is_missing(path: str, method: str = "GET") -> bool:
    """Whether a path belongs to no page and not to the API."""
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
    corrected = in_right_case(request.path, [rule.rule for rule in current_app.url_map.iter_rules()])
    if corrected not in ("", request.path) and not is_missing(corrected, request.method):
        query = request.query_string.decode("latin-1")
        target = f"{request.script_root}{quote(corrected)}{'?' * bool(query)}{query}"
        return redirect(target, 301 if request.method == "GET" else 307)
    return problem(404, "NOT_FOUND") if otherwise is None else otherwise


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
