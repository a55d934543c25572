"""A topic: its figures on each node, its channels, what can be done with it, and the form that publishes to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flask import request
from werkzeug.wrappers import Response as AnyResponse

from gnsq_like.admin.history.trend import Trend, is_peek, states_of
from gnsq_like.admin.upstream import actions
from gnsq_like.admin.upstream.actions import Performed
from gnsq_like.admin.upstream.cluster import MAX_AGE
from gnsq_like.admin.web.operations import Target
from gnsq_like.admin.web.pages.channel import charts_of, quantiles_of, total_of
from gnsq_like.admin.web.pages.page import Page, Route, View
from gnsq_like.admin.web.screens import Screens
from gnsq_like.cluster.counting import TopicCount
from gnsq_like.cluster.figures import ChannelFigures
from gnsq_like.errors import NSQError


@dataclass
class ChannelRow:
    """A channel in the list of a topic."""

    figures: ChannelFigures
    trend: Trend
    states: list[str]
    sparks: dict[str, Any]


def topic_page(view: View, topic_name: str) -> Page:
    """A topic; one that no node has is shown, too, and can be deleted."""
    warnings: list[str] = []
    report: TopicCount | None = None
    try:
        found = view.cluster.topic(topic_name, MAX_AGE, with_clients=True)
        report, warnings = found.value, found.warnings
    except NSQError as exc:
        if topic_name not in view.overview.topics and topic_name not in view.overview.idle_topics:
            return Page("error.html", topic_name, {"what": "topic", "name": topic_name, "why": str(exc)}, status=404)
        if topic_name not in view.overview.idle_topics:
            warnings = [str(exc)]
    day = view.query.get("span") == "day"
    channels = _channel_rows(view, report) if report else []
    values = {
        "topic": topic_name,
        "report": report,
        "figures": report.total if report else None,
        "channels": channels,
        "total_depth": (report.total.depth if report else 0) + sum(row.figures.depth for row in channels),
        "targets": [
            each.address for each in (report.nodes if report else (total.node for total in view.overview.nodes))
        ],
        "trend": view.recorder.topic_trend(topic_name),
        "publishers": sorted(report.publishers, key=lambda each: -each["published"]) if report else [],
        "charts": charts_of(view, (topic_name,), day),
        "day": day,
        "is_dead_letter": view.site.options.is_dead_letter(topic_name),
        "commands": topic_commands(view, topic_name),
        "tombstone": {
            node.node: view.cluster.command("node", "tombstone", node.node, topic_name)
            for node in (report.total.nodes if report else ())
        },
        "quantiles": quantiles_of([each.latency for each in report.total.nodes]) if report else [],
        "tombstones": _tombstoned(view, topic_name),
    }
    return Page("topic.html", topic_name, values, warnings)


def _channel_rows(view: View, report: TopicCount) -> list[ChannelRow]:
    rows = []
    topic = report.total.topic_name
    for each in sorted(report.total.channels, key=lambda channel: channel.channel_name):
        if is_peek(each.channel_name):
            continue
        trend = view.recorder.trend(topic, each.channel_name)
        sparks = view.sparks(topic, each.channel_name, metrics=("depth",))
        rows.append(ChannelRow(each, trend, states_of(total_of(each), trend), sparks))
    return rows


def _tombstoned(view: View, topic: str) -> set[str]:
    return {total.node.address for total in view.overview.nodes if total.node.topics.get(topic)}


def topic_commands(view: View, topic: str) -> dict[str, str]:
    """The actions on a topic as commands."""
    return {word: view.cluster.command("topic", word, topic) for word in ("pause", "unpause", "empty", "delete")}


def _publish(screens: Screens, topic_name: str) -> AnyResponse:
    """The form that publishes one message."""
    site = screens.site
    where = screens.renderer.link("topic", topic_name=topic_name)
    node, body = request.form.get("node", ""), request.form.get("body", "").replace("\r\n", "\n").encode()
    try:
        defer = float(request.form.get("defer", "").strip() or 0)
        # A topic that is only registered is created by its first message, on any node.
        nodes = site.run(site.cluster.producers_of, topic_name)
        nodes = nodes or site.run(site.cluster.nodes).value
        if node not in {each.address for each in nodes}:
            return screens.go(where, f"{node[:100]} has no such topic.", "bad")

        def carry_out() -> Performed:
            site.run(actions.publish, site.cluster, node, topic_name, body, defer or None)
            return Performed(1)

        site.operations.record(
            "publish",
            site.cluster,
            Target(topic_name, node=node),
            request,
            site.identity,
            carry_out,
            bytes=len(body),
        )
    except ValueError:
        return screens.go(where, "The delay must be a number of seconds, 0 or more, and the body not be empty.", "bad")
    except NSQError as exc:
        return screens.go(where, f"That did not work: {exc}", "bad")
    return screens.go(where, f"Published to {topic_name} on {node}.")


ROUTE = Route("/topics/<topic_name>", "topic", "topics", topic_page)
PUBLISH = Route("/topics/<topic_name>/-/publish", "publish", "topics", post=_publish)
