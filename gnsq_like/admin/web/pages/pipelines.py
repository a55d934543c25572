"""The Spark pipelines that are watched."""

from __future__ import annotations

from gnsq_like.admin.web.pages.page import Page, Route, View


def pipelines_page(view: View) -> Page:
    """The Spark pipelines that are watched."""
    return Page("pipelines.html", "Pipelines", {})


ROUTE = Route("/pipelines", "pipelines", "pipelines", pipelines_page)
