"""The pages' side of HTTP: which page a request is for, and the forms that change something."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable

from flask import Response, g, redirect, request
from werkzeug.wrappers import Response as AnyResponse

from gnsq_like.admin.history.alerts import down
from gnsq_like.admin.upstream import actions
from gnsq_like.admin.upstream.actions import Performed
from gnsq_like.admin.web.operations import Target
from gnsq_like.admin.web.pages import nodes, others, topic
from gnsq_like.admin.web.pages.page import Page, View
from gnsq_like.admin.web.rendering import Kept, Renderer
from gnsq_like.admin.web.site import Site
from gnsq_like.errors import NSQError
from gnsq_like.wire.names import is_valid_name

logger = logging.getLogger(__name__)

#: The cookie with what an action says on the next page, and its longest text.
NOTE_COOKIE = "nsq_admin_note"
_MOST_TEXT = 1200

#: What is said after an action.
_DONE = {
    "create_topic": "{topic} is registered.",
    "create_channel": "{topic}/{channel} is registered, and created on the nodes that have {topic}.",
    "pause_topic": "{topic} is paused: its messages wait in the topic.",
    "unpause_topic": "{topic} runs again.",
    "empty_topic": "{topic} is empty.",
    "delete_topic": "{topic} is deleted.",
    "pause_channel": "{channel} is paused: its consumers get no messages.",
    "unpause_channel": "{channel} runs again.",
    "empty_channel": "{channel} is empty.",
    "delete_channel": "{channel} is deleted.",
    "dismiss_node": "{node} is not missed any more.",
    "tombstone_topic_producer": "{topic} is tombstoned and deleted on {node}.",
}


class Screens:
    """The pages of a site."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.renderer = Renderer()
        self._kept = Kept()

    # -- pages -----------------------------------------------------------------------------------------

    def topic(self, topic_name: str) -> Response:
        return self.show("topics", lambda view: topic.topic_page(view, topic_name))

    def channel(self, topic_name: str, channel: str) -> Response:
        return self.show("topics", lambda view: topic.channel_page(view, topic_name, channel))

    def node(self, node: str) -> Response:
        return self.show("nodes", lambda view: nodes.node_page(view, node))

    def activity(self) -> Response:
        return self.show("activity", lambda view: others.activity_page(view, self._site.audit.recent()))

    def missing(self, path: str = "") -> Response:
        """For a path that is none."""
        return self._error("There is no such page", f"/{path}"[:200], 404)

    def refused(self, status: int, why: str) -> Response:
        """For a form that was refused."""
        return self._error("That was refused" if status == 403 else "That did not work", why, status)

    def _error(self, title: str, why: str, status: int) -> Response:
        return self.show("", lambda view: Page("error.html", title, {"why": why}, status=status))

    def show(self, section: str, make: Callable[[View], Page], *, kept: bool = False) -> Response:
        """The response with a page. May switch, or block.

        :param section: which entry of the menu it belongs to
        :param kept: whether it shows nothing but the overview and its history
        """
        site = self._site
        identity = site.identity
        view = View(site.options, site.cluster, site.recorder, dict(request.args), identity.may_write, site.pipelines)
        note = _read_note()
        kept_by = (g.cluster, request.full_path, identity, self.renderer.link("topics"), site.pipelines.rounds)
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
        clusters = list(self._site.core.clusters)
        return {
            "section": section,
            "note": note,
            "user": self._site.identity.user,
            "clusters": clusters,
            "cluster_link": self._cluster_link,
        }

    def _cluster_link(self, name: str) -> str:
        was = g.cluster, g.in_cluster
        g.cluster, g.in_cluster = name, name != next(iter(self._site.core.clusters))
        try:
            return self.renderer.link("topics")
        finally:
            g.cluster, g.in_cluster = was

    # -- forms -----------------------------------------------------------------------------------------

    def allowed(self) -> Response | None:
        """The refusal of this form, if it is refused."""
        if not self._site.guard.has_token(request):
            why = "The form is too old, or comes from another site. Go back, reload the page, and try again."
            return self.refused(403, why)
        if not self._site.identity.may_write:
            return self.refused(403, "You may look at everything here, and change nothing.")
        return None

    def act(self) -> AnyResponse:
        """A button that changes something."""
        if (refusal := self.allowed()) is not None:
            return refusal
        form = request.form
        target = Target(form.get("topic", "").strip(), form.get("channel", "").strip(), form.get("node", "").strip())
        action = form.get("action", "")
        if action == "create":
            action = "create_channel" if target.channel else "create_topic"
        is_dismissal = action == "dismiss_node"
        for kind, name in (("topic", target.topic), ("channel", target.channel)):
            if (name or (kind == "topic" and not is_dismissal)) and not is_valid_name(name):
                return self.refused(400, f"“{name[:100]}” is not a name that a {kind} can have.")
        of_node = is_dismissal or "tombstone" in action
        fits = ("channel" in action) == bool(target.channel) and of_node == bool(target.node)
        if action not in _DONE or not fits:
            return self.refused(400, "There is no such action.")
        try:
            outcome = self._site.perform(action, target)
            where = self._after(action, target)
        except NSQError as exc:
            return self.go(self._after("", target), f"That did not work: {exc}", "bad")
        if is_dismissal:
            self._site.run(self._site.recorder.alerts.end, down(target.node), time.time())
        return self.told(where, outcome, _DONE[action].format(**vars(target)))

    def _after(self, action: str, target: Target) -> str:
        """The page to show after an action."""
        link = self.renderer.link
        if action == "delete_topic":
            return link("topics")
        if not target.topic:
            return link("activity")
        if action == "create_topic":
            return link("lookup")
        if action == "create_channel" and not self._site.run(self._site.cluster.producers_of, target.topic):
            return link("lookup")  # it is registered, and made on a node with the topic's first message
        if target.channel and action != "delete_channel":
            return link("channel", topic_name=target.topic, channel=target.channel)
        return link("topic", topic_name=target.topic)

    def publish(self, topic_name: str) -> AnyResponse:
        """The form that publishes one message."""
        if (refusal := self.allowed()) is not None:
            return refusal
        where = self.renderer.link("topic", topic_name=topic_name)
        node, body = request.form.get("node", ""), request.form.get("body", "").replace("\r\n", "\n").encode()
        try:
            defer = float(request.form.get("defer", "").strip() or 0)
            # A topic that is only registered is made by its first message, on any node.
            nodes = self._site.run(self._site.cluster.producers_of, topic_name)
            nodes = nodes or self._site.run(self._site.cluster.nodes).value
            if node not in {each.address for each in nodes}:
                return self.go(where, f"{node[:100]} has no such topic.", "bad")

            def carry_out() -> Performed:
                self._site.run(actions.publish, self._site.cluster, node, topic_name, body, defer or None)
                return Performed(1)

            self._site.operations.record(
                "publish",
                self._site.cluster,
                Target(topic_name, node=node),
                request,
                self._site.identity,
                carry_out,
                bytes=len(body),
            )
        except ValueError:
            return self.go(where, "The delay must be a number of seconds, 0 or more, and the body not be empty.", "bad")
        except NSQError as exc:
            return self.go(where, f"That did not work: {exc}", "bad")
        return self.go(where, f"Published to {topic_name} on {node}.")

    def told(self, where: str, outcome: Performed, text: str) -> AnyResponse:
        """Go to a page that says what came of an action."""
        if not outcome.warnings:
            return self.go(where, text)
        errors = "; ".join(outcome.warnings)
        return self.go(where, f"In part: {errors}" if outcome.done else f"That did not work: {errors}", "bad")

    def go(self, where: str, text: str, kind: str = "good") -> AnyResponse:
        """Go to a page, which says this."""
        response = redirect(where, 303)
        note = base64.urlsafe_b64encode(json.dumps({"text": text[:_MOST_TEXT], "kind": kind}).encode()).decode()
        path = request.script_root + "/"
        secure = request.is_secure
        response.set_cookie(NOTE_COOKIE, note, path=path, max_age=60, httponly=True, samesite="Strict", secure=secure)
        return response


def _read_note() -> dict[str, str] | None:
    """What the last action said; a cookie is the browser's to change, so it is only text here."""
    try:
        found = json.loads(base64.urlsafe_b64decode(request.cookies.get(NOTE_COOKIE, "")))
        return {"text": str(found["text"])[:_MOST_TEXT], "kind": "bad" if found["kind"] == "bad" else "good"}
    except (ValueError, TypeError, KeyError):
        return None
