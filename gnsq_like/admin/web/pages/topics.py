"""The list of all topics: searched, sorted, a hundred at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gnsq_like.admin.history.trend import Trend, is_peek, topic_states
from gnsq_like.admin.web.pages.page import UPWARDS, Page, Route, View

#: Rows of a page.
PER_PAGE = 100


@dataclass
class TopicRow:
    """A line of the list."""

    name: str
    depth: int
    in_flight: int
    trend: Trend
    channels: int
    clients: int
    messages: int
    nodes: int
    states: list[str]
    is_dead_letter: bool
    #: Known to nsqlookupd only.
    is_idle: bool = False
    sparks: dict[str, Any] | None = None


def _number(value: float) -> float:
    return -1.0 if math.isnan(value) else value


#: Columns by which the list may be sorted; those of figures begin with the highest.
SORTS: dict[str, Callable[[TopicRow], Any]] = {
    "name": lambda row: row.name.lower(),
    "depth": lambda row: row.depth,
    "in_flight": lambda row: row.in_flight,
    "rate": lambda row: _number(row.trend.rate_in),
    "drain": lambda row: _number(row.trend.drain),
    "channels": lambda row: row.channels,
    "clients": lambda row: row.clients,
    "messages": lambda row: row.messages,
    "state": lambda row: len(row.states),
}


def sort_of(query: Any, sorts: dict[str, Any], default: str) -> tuple[str, bool]:
    """The column to sort by, and whether downwards."""
    column = query.get("sort", default)
    if column not in sorts:
        column = default
    given = query.get("order", "")
    return column, given == "down" if given in ("up", "down") else column not in UPWARDS


def topics_page(view: View) -> Page:
    """The first page."""
    wanted = view.query.get("q", "").strip()
    only = view.query.get("show", "")
    rows = [_row(view, name) for name in view.overview.topics]
    if not only:
        rows += [_idle_row(name, view) for name in view.overview.idle_topics]
    troubled = sum(bool(row.states) for row in rows)
    if wanted:
        rows = [row for row in rows if wanted.lower() in row.name.lower()]
    if only == "trouble":
        rows = [row for row in rows if row.states]
    elif only == "dead":
        rows = [row for row in rows if row.is_dead_letter]
    column, down = sort_of(view.query, SORTS, "name")
    rows.sort(key=lambda row: row.name.lower())
    rows.sort(key=SORTS[column], reverse=down)
    pages = max(1, math.ceil(len(rows) / PER_PAGE))
    page = _page_number(view.query.get("page", "1"), pages)
    shown = rows[(page - 1) * PER_PAGE : page * PER_PAGE]
    for row in shown:
        row.sparks = view.sparks(row.name)
    values = {
        "rows": shown,
        "found": len(rows),
        "total": len(view.overview.topics) + len(view.overview.idle_topics),
        "deepest": max((row.depth for row in rows), default=0),
        "troubled": troubled,
        "dead": sum(view.site.options.is_dead_letter(name) for name in view.overview.topics),
        "column": column,
        "down": down,
        "page": page,
        "pages": pages,
        "q": wanted,
        "only": only,
        "some_node": next((total.node.address for total in view.overview.nodes), "127.0.0.1:4151"),
    }
    return Page("topics.html", "Topics", values)


def _page_number(text: str, most: int) -> int:
    return min(most, int(text)) if text.isascii() and text.isdigit() and 0 < len(text) < 6 and int(text) else 1


def _row(view: View, name: str) -> TopicRow:
    topic = view.overview.topics[name]
    channels = {each: channel for each, channel in topic.channels.items() if not is_peek(each)}
    trends = {each: view.recorder.trend(name, each) for each in channels}
    states, is_dead_letter = topic_states(topic, trends), view.site.options.is_dead_letter(name)
    return TopicRow(
        name=name,
        depth=topic.depth + sum(channel.depth for channel in channels.values()),
        in_flight=sum(channel.in_flight for channel in channels.values()),
        trend=view.recorder.topic_trend(name),
        channels=len(channels),
        clients=sum(channel.clients for channel in channels.values()),
        messages=topic.messages,
        nodes=topic.nodes,
        # Dead letters wait for a person.
        states=[state for state in states if not (is_dead_letter and state.startswith("no "))],
        is_dead_letter=is_dead_letter,
    )


def _idle_row(name: str, view: View) -> TopicRow:
    return TopicRow(name, 0, 0, Trend(drain=0.0), 0, 0, 0, 0, [], view.site.options.is_dead_letter(name), is_idle=True)


ROUTE = Route("/topics", "topics", "topics", topics_page, kept=True)
