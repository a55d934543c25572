"""A look at a topic's messages as they come; its form begins one."""

from __future__ import annotations

from flask import request
from werkzeug.wrappers import Response as AnyResponse

from gnsq_like.admin.peek import MOST_MESSAGES, SECONDS
from gnsq_like.admin.upstream.actions import Performed
from gnsq_like.admin.web.operations import Target
from gnsq_like.admin.web.pages.page import Page, Route, View
from gnsq_like.admin.web.screens import Screens
from gnsq_like.errors import NSQError


def peek_page(view: View, topic_name: str) -> Page:
    look = view.site.peeks.find(view.cluster.name, topic_name)
    if look is None:
        return Page(
            "error.html", topic_name, {"what": "look at", "name": topic_name, "why": "It has ended."}, status=404
        )
    values = {
        "topic": topic_name,
        "messages": look.messages[::-1],
        "running": look.running,
        "left": look.left,
        "began": look.began,
        "most": MOST_MESSAGES,
        "seconds": SECONDS,
        "sample_rate": look.sample_rate,
        "skipped": look.skipped,
    }
    return Page("peek.html", f"Messages of {topic_name}", values, look.problems[:3])


def _begin(screens: Screens, topic_name: str) -> AnyResponse:
    site = screens.site

    def carry_out() -> Performed:
        def start() -> None:
            rate = site.recorder_of(cluster.name).topic_trend(topic_name).rate_in
            site.peeks.start(cluster, topic_name, rate)

        site.run(start)
        return Performed(1)

    cluster = site.cluster
    try:
        site.operations.record("look_at_messages", cluster, Target(topic_name), request, site.identity, carry_out)
    except NSQError as exc:
        where = screens.renderer.link("topic", topic_name=topic_name)
        return screens.go(where, f"No look: {exc}", "bad")
    return screens.go(screens.renderer.link("peek", topic_name=topic_name), "Looking for 30 s.")


ROUTE = Route("/topics/<topic_name>/-/messages", "peek", "topics", peek_page, _begin, has_messages=True)
