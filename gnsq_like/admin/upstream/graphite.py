"""Graphite, as nsqadmin uses it: the rate of a target, and its graphs handed on to browsers."""

from __future__ import annotations

import math
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from gnsq_like.admin.options import AdminOptions
from gnsq_like.errors import HTTPRequestFailed
from gnsq_like.http.client import HTTPClient
from gnsq_like.http.decode import Malformed, json_of

#: What is handed on to browsers; anything else could be a page with scripts.
_IMAGES = ("image/png", "image/gif", "image/jpeg")


class Picture(NamedTuple):
    """A graph."""

    content_type: str
    body: bytes


class Graphite(HTTPClient):
    """Asks Graphite. Every request may switch; runs in the core's thread."""

    def __init__(self, options: AdminOptions) -> None:
        # A path may be part of it.
        super().__init__(
            options.graphite_url,
            options.http_client_request_timeout,
            connect_timeout=min(options.http_client_connect_timeout, options.http_client_request_timeout),
        )
        self._interval = max(1, int(options.statsd_interval))

    def rate(self, target: str) -> str:
        """The last whole interval's sum for a target, per second; "N/A" if it is not known. Raises HTTPError."""
        window = {"from": f"-{2 * self._interval}sec", "until": f"-{self._interval}sec"}
        answer = self._request("GET", "/render", {**window, "format": "json", "target": target})
        try:
            found = json_of(answer.body)
            value = found[0]["datapoints"][0][0] if found else None
        except (Malformed, LookupError, TypeError) as exc:
            raise HTTPRequestFailed(answer.url, f"the answer is malformed: {exc}") from exc
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            return "N/A"
        return f"{value / self._interval:.2f}"

    def picture(self, query: str) -> Picture:
        """A graph. Raises HTTPError, also for what is no picture."""
        answer = self._request("GET", f"/render?{query}")
        kind = answer.content_type.partition(";")[0].strip().lower()
        if kind not in _IMAGES:
            raise HTTPRequestFailed(answer.url, "the answer is no picture")
        return Picture(kind, answer.body)


def graph_url(options: AdminOptions, base: str, targets: list[str], hours: int) -> str:
    """The address of a small graph, for a page.

    :param base: of the admin, for a proxied Graphite
    """
    root = base.rstrip("/") if options.proxy_graphite else urlsplit(options.graphite_url).geturl().rstrip("/")
    fields = [
        ("width", "500"),
        ("height", "200"),
        ("from", f"-{hours}h"),
        ("until", "-1min"),
        ("lineMode", "connected"),
    ]
    return f"{root}/render?{urlencode([*fields, *(('target', each) for each in targets)])}"


def key(options: AdminOptions, kind: str, name: str, host: str = "*") -> str:
    """The name of a figure in Graphite, as nsqd pushes it through statsd.

    :param kind: "counter" or "gauge"
    :param name: such as ``topic.clicks.depth``
    """
    form = options.statsd_counter_format if kind == "counter" else options.statsd_gauge_format
    full = options.statsd_prefix.replace("%s", host.replace(".", "_").replace(":", "_")) + f".{name}"
    return form.replace("%s", full) if form else full
