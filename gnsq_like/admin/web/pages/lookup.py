"""The nsqlookupds, topics that no node has, and the form that creates topics and channels."""

from __future__ import annotations

from gnsq_like.admin.upstream.cluster import MAX_AGE
from gnsq_like.admin.web.pages.page import Page, Route, View
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


ROUTE = Route("/lookup", "lookup", "lookup", lookup_page)
