"""A node with its topics, channels and clients."""

from __future__ import annotations

import time

from gnsq_like.admin.history.trend import is_peek
from gnsq_like.admin.upstream.cluster import MAX_AGE
from gnsq_like.admin.web.pages.channel import attributes_of
from gnsq_like.admin.web.pages.page import Page, Route, View
from gnsq_like.errors import NSQError

#: A node's figures of its memory, with their labels.
MEMORY = (
    ("heap_in_use_bytes", "Heap in use"),
    ("heap_idle_bytes", "Heap idle"),
    ("heap_released_bytes", "Heap released"),
    ("next_gc_bytes", "Next collection at"),
)


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


ROUTE = Route("/nodes/<node>", "node", "nodes", node_page)
