"""Changes in the cluster, alerts, and actions of users."""

from __future__ import annotations

from gnsq_like.admin.web.pages.page import Page, Route, View


def activity_page(view: View) -> Page:
    """Changes, alerts and actions of users."""
    values = {
        "alerts": view.alerts,
        "changes": view.recorder.changes.recent(100),
        "audit": [entry for entry in view.site.audit.recent() if entry.get("cluster", "") == view.cluster.name][:100],
        "watches": view.site.options.history,
        "left": view.cluster.departures.left,
    }
    return Page("activity.html", "Activity", values)


ROUTE = Route("/activity", "activity", "activity", activity_page)
