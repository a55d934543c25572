"""Lookup, Spark pipelines, and what happened: changes, alerts, and the audit log."""

from __future__ import annotations

from gnsq_like.admin.upstream.cluster import MAX_AGE
from gnsq_like.admin.web.pages.page import Page, View
from gnsq_like.errors import NSQError


def lookup_page(view: View) -> Page:
    """The nsqlookupds, topics that no node has, and the form that creates topics and channels."""
    inactive: dict[str, list[str]] = {}
    warnings: list[str] = []
    if view.cluster.has_lookupds:
        try:
            found = view.cluster.inactive_topics(MAX_AGE)
            inactive, warnings = found.value, found.warnings
        except NSQError as exc:
            warnings = [str(exc)]
    values = {
        "inactive": inactive,
        "lookupds": view.overview.lookupds,
        "has_lookupds": view.cluster.has_lookupds,
        "nodes": view.overview.nodes,
        "create": view.cluster.command("channel", "create", "TOPIC", "CHANNEL"),
        "delete": {topic: view.cluster.command("topic", "delete", topic) for topic in inactive},
        "delete_channel": {
            topic: {channel: view.cluster.command("channel", "delete", topic, channel) for channel in channels}
            for topic, channels in inactive.items()
        },
    }
    return Page("lookup.html", "Lookup", values, warnings)


def pipelines_page(view: View) -> Page:
    """The Spark pipelines that are watched."""
    return Page("pipelines.html", "Pipelines", {})


def activity_page(view: View, audit: list[dict[str, object]]) -> Page:
    """What changed, what is wrong, and who did what.

    :param audit: the last actions, the newest first
    """
    values = {
        "alerts": view.alerts,
        "changes": view.recorder.changes.recent(100),
        "audit": [entry for entry in audit if entry.get("cluster", "") == view.cluster.name][:100],
        "watches": view.options.history,
        "left": view.cluster.departures.left,
    }
    return Page("activity.html", "Activity", values)
