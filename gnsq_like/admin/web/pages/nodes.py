"""The nodes, one node, and the counter."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gnsq_like.admin.history.trend import is_peek
from gnsq_like.admin.upstream.cluster import MAX_AGE
from gnsq_like.admin.upstream.overview import NodeTotal
from gnsq_like.admin.web.pages.page import Page, View
from gnsq_like.admin.web.pages.topic import attributes_of
from gnsq_like.admin.web.pages.topics import sort_of
from gnsq_like.errors import NSQError

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
#: A node's figures of its memory, with what they mean.
MEMORY = (
    ("heap_in_use_bytes", "Heap in use"),
    ("heap_idle_bytes", "Heap idle"),
    ("heap_released_bytes", "Heap released"),
    ("next_gc_bytes", "Next collection at"),
)


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


def node_page(view: View, node: str) -> Page:
    """A node with its topics, channels and clients."""
    try:
        found = view.cluster.node(node, MAX_AGE)
    except NSQError as exc:
        return Page("error.html", node, {"what": "node", "name": node, "why": str(exc)}, status=502)
    report = found.value
    if report is None:
        why = "no nsqlookupd knows it" if view.cluster.has_lookupds else "it is none of the nsqds that were given"
        return Page("error.html", node, {"what": "node", "name": node, "why": why}, found.warnings, 404)
    clients = [
        (topic.topic_name, channel.channel_name, client)
        for topic in report.topics
        for channel in topic.channels
        if not is_peek(channel.channel_name)
        for client in channel.clients or ()
    ]
    total = next((each for each in view.overview.nodes if each.node.address == node), None)
    found_memory = [(label, report.memory.get(name)) for name, label in MEMORY]
    memory = [(label, value) for label, value in found_memory if isinstance(value, int | float) and value]
    values = {
        "node": report.node,
        "report": report,
        "total": total,
        "topics": report.topics,
        "clients": clients[:500],
        "client_count": len(clients),
        "attributes": {id(client): attributes_of(client) for _, _, client in clients[:500]},
        "memory": memory,
        "pause": report.memory.get("gc_pause_usec_99") or None,
        "now": time.time(),
        "tombstone": {
            topic.topic_name: view.cluster.command("node", "tombstone", node, topic.topic_name)
            for topic in report.topics
        },
        "is_peek": is_peek,
    }
    return Page("node.html", node, values, found.warnings)


def counter_page(view: View) -> Page:
    """One large number: all messages that channels have had."""
    channels = [
        channel
        for topic in view.overview.topics.values()
        for name, channel in topic.channels.items()
        if not is_peek(name)
    ]
    rates = [view.recorder.trend(channel.topic, channel.name) for channel in channels]
    known = [trend.rate_in for trend in rates if not math.isnan(trend.rate_in)]
    top = sorted(channels, key=lambda channel: -channel.messages)[:10]
    values = {
        "count": sum(channel.messages for channel in channels),
        "rate": sum(known) if known else math.nan,
        "top": [(channel, view.recorder.trend(channel.topic, channel.name)) for channel in top],
        "most": top[0].messages if top else 0,
    }
    return Page("counter.html", "Counter", values)
