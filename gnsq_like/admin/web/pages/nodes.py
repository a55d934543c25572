"""All nodes, and the nsqlookupds that know them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gnsq_like.admin.upstream.overview import NodeTotal
from gnsq_like.admin.web.pages.page import Page, Route, View
from gnsq_like.admin.web.pages.topics import sort_of

SORTS: dict[str, Callable[[NodeTotal], Any]] = {
    "host": lambda total: (total.node.hostname.lower(), total.node.address),
    "version": lambda total: total.node.version,
    "zone": lambda total: total.node.place,
    "depth": lambda total: total.depth,
    "in_flight": lambda total: total.in_flight,
    "topics": lambda total: total.topics,
    "clients": lambda total: total.clients,
    "messages": lambda total: total.messages,
    "uptime": lambda total: total.start_time and -total.start_time,
}


@dataclass
class LookupdRow:
    """A nsqlookupd."""

    address: str
    problem: str
    nodes: int


def nodes_page(view: View) -> Page:
    """All nodes, and the nsqlookupds that know them."""
    wanted = view.query.get("q", "").strip()
    totals = [total for total in view.overview.nodes if wanted.lower() in _names(total)]
    column, down = sort_of(view.query, SORTS, "host")
    totals.sort(key=SORTS[column], reverse=down)
    lookupds = [
        LookupdRow(
            address,
            problem,
            sum(address in total.node.lookupds for total in view.overview.nodes),
        )
        for address, problem in view.overview.lookupds.items()
    ]
    answering = sum(not row.problem for row in lookupds)
    values = {
        "totals_by_node": totals,
        "lookupds": lookupds,
        "answering": answering,
        "have_zones": any(total.node.place for total in totals),
        "column": column,
        "down": down,
        "q": wanted,
        "deepest": max((total.depth for total in totals), default=0),
        "now": time.time(),
        "hidden": {total.node.address: sum(total.node.topics.values()) for total in totals},
    }
    return Page("nodes.html", "Nodes", values)


def _names(total: NodeTotal) -> str:
    return f"{total.node.hostname} {total.node.address}".lower()


ROUTE = Route("/nodes", "nodes", "nodes", nodes_page, kept=True)
