"""Pages as HTML: the templates, their helpers, and ETags.

Viewers of the same page with the same rights share its HTML; what differs is inserted afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from flask import Response, g, request, url_for
from markupsafe import escape

from gnsq_like._version import __version__
from gnsq_like.admin.web import words
from gnsq_like.admin.web.drawing import bar
from gnsq_like.admin.web.pages.page import UPWARDS, Page, View
from gnsq_like.server.daemon_options import VERSION

_HERE = Path(__file__).parent
#: A placeholder for the token, until the page is sent.
_TOKEN = "(the token of this browser)"
#: A placeholder for the overview's time, which alone makes no new page.
_AS_OF = "(the time of the overview)"
#: Seconds between two refreshes of a page.
EVERY = 5
#: Pages that are kept for several viewers.
_MOST_KEPT = 64
#: Files that browsers get, with their types.
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


class Assets:
    """The static files, read once."""

    def __init__(self) -> None:
        #: By name: type, content, and a word that changes with it.
        self._files: dict[str, tuple[str, bytes, str]] = {}
        for path in sorted((_HERE / "static").iterdir()):
            if path.suffix in _TYPES:
                data = path.read_bytes()
                self._files[path.name] = (_TYPES[path.suffix], data, hashlib.sha256(data).hexdigest()[:12])

    def version(self, name: str) -> str:
        return self._files[name][2]

    def response(self, name: str) -> Response | None:
        """The file; None if no file has this name."""
        if name not in self._files:
            return None
        kind, data, version = self._files[name]
        response = Response(data, content_type=kind)
        forever = request.args.get("v") == version
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if forever else "no-cache"
        response.set_etag(version)
        response.make_conditional(request)
        return response


class Renderer:
    """Makes responses of pages."""

    def __init__(self) -> None:
        self.assets = Assets()
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            finalize=words.cut,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            name: getattr(words, name)
            for name in (
                *("number", "compact", "rate", "span", "drain", "latency", "clock", "moment", "size"),
                *("share", "seconds", "whole"),
            )
        }
        self._templates.filters["uptime"] = words.span
        self._templates.globals |= {"bar": bar, "ident": id, "version": VERSION, "own_version": __version__}

    def link(self, endpoint: str, **names: str) -> str:
        """The path of a page of this request's cluster."""
        values: dict[str, Any] = dict(names)
        if g.in_cluster:
            return url_for(f".{endpoint} of a cluster", cluster=g.cluster, **values)
        return url_for(f".{endpoint}", **values)

    def html(self, page: Page, view: View, common: Mapping[str, object]) -> str:
        """The page's HTML, with a mark for the token."""
        query = {name: value for name, value in request.args.items() if name in ("q", "sort", "order", "show", "page")}

        def sorted_by(column: str) -> str:
            was, down = page.values["column"], page.values["down"]
            first_down = column not in UPWARDS
            now_down = (not down) if column == was else first_down
            fields = {**query, "sort": column, "order": "down" if now_down else "up"}
            fields.pop("page", None)
            return f"{request.path}?{urlencode(fields)}"

        def paged(number: int) -> str:
            return f"{request.path}?{urlencode({**query, 'page': number})}"

        base: dict[str, object] = {
            "page": page,
            "values": page.values,
            "totals": view.totals,
            "cluster": view.cluster,
            "warnings": [*dict.fromkeys([*view.overview.warnings, *page.warnings])],
            "alert_count": len(view.alerts),
            "link": self.link,
            "asset": lambda name: f"{self.link('static', name=name)}?v={self.assets.version(name)}",
            "sorted": sorted_by,
            "paged": paged,
            "here": request.path,
            "q": request.args.get("q", ""),
            "token": _TOKEN,
            "as_of": _AS_OF,
            "every": EVERY,
            "note": None,
            "may_write": view.may_write,
            "peek_allowed": view.site.options.peek and view.may_write,
        }
        return self._templates.get_template(page.template).render({**base, **common})

    def response(self, html: str, token: str, at: float, status: int = 200) -> Response:
        """The response for the page's HTML, of an overview of this time; 304 if the browser has it."""
        digest = hashlib.blake2b(html.encode(), digest_size=12).hexdigest()
        as_of = words.clock(at)
        response = Response(html.replace(_TOKEN, str(escape(token))).replace(_AS_OF, as_of), status)
        response.headers["X-As-Of"] = as_of
        response.headers["Cache-Control"] = "private, no-cache"
        if status == 200:
            response.set_etag(digest, weak=True)
            response.make_conditional(request)
        return response


class Kept:
    """HTML that several viewers get, for as long as the overview that it was made of."""

    def __init__(self) -> None:
        self._pages: dict[tuple[object, ...], tuple[float, str]] = {}

    def get(self, key: tuple[object, ...], taken: float) -> str | None:
        found = self._pages.get(key)
        return found[1] if found is not None and found[0] == taken else None

    def put(self, key: tuple[object, ...], taken: float, html: str) -> None:
        self._pages.pop(key, None)
        self._pages[key] = (taken, html)
        while len(self._pages) > _MOST_KEPT:
            self._pages.pop(next(iter(self._pages)), None)
