"""The responses of all pages: permission to see a page and to use its form, and the note of an action on the next
page."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable

from flask import Response, g, redirect, request
from werkzeug.wrappers import Response as AnyResponse

from gnsq_like.admin.upstream.actions import Performed
from gnsq_like.admin.web.pages.page import Page, Route, View
from gnsq_like.admin.web.rendering import Kept, Renderer
from gnsq_like.admin.web.site import Site

logger = logging.getLogger(__name__)

#: The cookie with the note for the next page, and its longest text.
NOTE_COOKIE = "nsq_admin_note"
_MOST_TEXT = 1200


class Screens:
    """The pages of a site."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.renderer = Renderer()
        self._kept = Kept()

    # -- pages -----------------------------------------------------------------------------------------

    def answer(self, route: Route, **names: str) -> AnyResponse:
        """The response to a request of a page, or of its form. May switch, or block."""
        if route.has_messages and (refusal := self._hidden()) is not None:
            return refusal
        if request.method == "POST" and route.post is not None:
            return self._refused_form() or route.post(self, **names)
        make = route.make
        assert make is not None
        return self.show(route.section, lambda view: make(view, **names), kept=route.kept)

    def _hidden(self) -> Response | None:
        """The refusal of a page with messages; None if this user may see it."""
        if not self.site.options.peek:
            return self.refused(403, "Looking at messages is switched off here.")
        if not self.site.identity.may_write:
            return self.refused(403, "Messages are shown only to those who may change something.")
        return None

    def missing(self, path: str = "") -> Response:
        """The page for an unknown path."""
        return self._error("There is no such page", f"/{path}"[:200], 404)

    def refused(self, status: int, why: str) -> Response:
        """The page for a form that was refused."""
        return self._error("That was refused" if status == 403 else "That did not work", why, status)

    def _error(self, title: str, why: str, status: int) -> Response:
        return self.show("", lambda view: Page("error.html", title, {"why": why}, status=status))

    def show(self, section: str, make: Callable[[View], Page], *, kept: bool = False) -> Response:
        """The response with a page. May switch, or block.

        :param section: its entry of the menu
        :param kept: whether it depends only on the overview and its history
        """
        site = self.site
        identity = site.identity
        view = View(site, site.cluster, site.recorder, dict(request.args), identity.may_write)
        note = _read_note()
        kept_by = (g.cluster, request.full_path, identity, self.renderer.link("topics"))
        kept = kept and note is None

        def build() -> Page | str:
            view.look()
            html = self._kept.get(kept_by, view.overview.taken) if kept else None
            return html if html is not None else make(view)

        found = site.run(build)
        status = 200 if isinstance(found, str) else found.status
        if isinstance(found, str):
            html = found
        else:
            html = self.renderer.html(found, view, self._common(section, note))
            if kept:
                self._kept.put(kept_by, view.overview.taken, html)
        token = site.guard.token(request)
        response = self.renderer.response(html, token, view.overview.at, status)
        if request.headers.get("X-Requested-With") != "refresh":
            path = request.script_root + "/"
            site.guard.set_token(response, token, path, secure=request.is_secure)
            if note is not None:
                response.delete_cookie(NOTE_COOKIE, path=path, httponly=True, samesite="Strict")
        return response

    def _common(self, section: str, note: dict[str, str] | None) -> dict[str, object]:
        clusters = list(self.site.core.clusters)
        return {
            "section": section,
            "note": note,
            "user": self.site.identity.user,
            "clusters": clusters,
            "cluster_link": self._cluster_link,
        }

    def _cluster_link(self, name: str) -> str:
        was = g.cluster, g.in_cluster
        g.cluster, g.in_cluster = name, name != next(iter(self.site.core.clusters))
        try:
            return self.renderer.link("topics")
        finally:
            g.cluster, g.in_cluster = was

    # -- forms -----------------------------------------------------------------------------------------

    def _refused_form(self) -> Response | None:
        """The refusal of this form; None if it is accepted."""
        if not self.site.guard.has_token(request):
            why = "The form is too old, or comes from another site. Go back, reload the page, and try again."
            return self.refused(403, why)
        if not self.site.identity.may_write:
            return self.refused(403, "You may look at everything here, and change nothing.")
        return None

    def told(self, where: str, outcome: Performed, text: str) -> AnyResponse:
        """Redirect to a page that shows the result of an action."""
        if not outcome.warnings:
            return self.go(where, text)
        errors = "; ".join(outcome.warnings)
        return self.go(where, f"In part: {errors}" if outcome.done else f"That did not work: {errors}", "bad")

    def go(self, where: str, text: str, kind: str = "good") -> AnyResponse:
        """Redirect to a page that shows this note."""
        response = redirect(where, 303)
        note = base64.urlsafe_b64encode(json.dumps({"text": text[:_MOST_TEXT], "kind": kind}).encode()).decode()
        path = request.script_root + "/"
        secure = request.is_secure
        response.set_cookie(NOTE_COOKIE, note, path=path, max_age=60, httponly=True, samesite="Strict", secure=secure)
        return response


def _read_note() -> dict[str, str] | None:
    """The note of the last action. The browser may have changed the cookie, so it is treated as plain text."""
    try:
        found = json.loads(base64.urlsafe_b64decode(request.cookies.get(NOTE_COOKIE, "")))
        return {"text": str(found["text"])[:_MOST_TEXT], "kind": "bad" if found["kind"] == "bad" else "good"}
    except (ValueError, TypeError, KeyError):
        return None
