"""A topic and a channel: their figures on each node, what uses them, and what can be done with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gnsq_like.admin.history.trend import Trend, is_peek, states_of
from gnsq_like.admin.upstream.cluster import MAX_AGE
from gnsq_like.admin.upstream.overview import ChannelTotal
from gnsq_like.admin.web.drawing import chart
from gnsq_like.admin.web.pages.page import Page, View
from gnsq_like.cluster.counting import TopicCount
from gnsq_like.cluster.figures import ChannelFigures, connected_seconds
from gnsq_like.cluster.nodes import place_of
from gnsq_like.errors import NSQError

#: Clients that a page shows; of more it shows those with most in flight.
MOST_CLIENTS = 500


@dataclass
class ChannelRow:
    """A channel in the list of a topic."""

    figures: ChannelFigures
    trend: Trend
    states: list[str]
    sparks: dict[str, Any]


def topic_page(view: View, topic: str) -> Page:
    """A topic; also one that no node has, which can be deleted."""
    warnings: list[str] = []
    report: TopicCount | None = None
    try:
        found = view.cluster.topic(topic, MAX_AGE, with_clients=True)
        report, warnings = found.value, found.warnings
    except NSQError as exc:
        if topic not in view.overview.topics and topic not in view.overview.idle_topics:
            return Page("error.html", topic, {"what": "topic", "name": topic, "why": str(exc)}, status=404)
        if topic not in view.overview.idle_topics:
            warnings = [str(exc)]
    day = view.query.get("span") == "day"
    channels = _channel_rows(view, report) if report else []
    values = {
        "topic": topic,
        "report": report,
        "figures": report.total if report else None,
        "channels": channels,
        "total_depth": (report.total.depth if report else 0) + sum(row.figures.depth for row in channels),
        "targets": [
            each.address for each in (report.nodes if report else (total.node for total in view.overview.nodes))
        ],
        "trend": view.recorder.topic_trend(topic),
        "publishers": sorted(report.publishers, key=lambda each: -each["published"]) if report else [],
        "charts": _charts(view, (topic,), day),
        "day": day,
        "is_dead_letter": view.options.is_dead_letter(topic),
        "commands": topic_commands(view, topic),
        "tombstone": {
            node.node: view.cluster.command("node", "tombstone", node.node, topic)
            for node in (report.total.nodes if report else ())
        },
        "quantiles": _quantiles([each.latency for each in report.total.nodes]) if report else [],
        "tombstones": _tombstoned(view, topic),
    }
    return Page("topic.html", topic, values, warnings)


def _channel_rows(view: View, report: TopicCount) -> list[ChannelRow]:
    rows = []
    topic = report.total.topic_name
    for each in sorted(report.total.channels, key=lambda channel: channel.channel_name):
        if is_peek(each.channel_name):
            continue
        trend = view.recorder.trend(topic, each.channel_name)
        sparks = view.sparks(topic, each.channel_name, metrics=("depth",))
        rows.append(ChannelRow(each, trend, states_of(_total_of(each), trend), sparks))
    return rows


def _total_of(figures: ChannelFigures) -> ChannelTotal:
    nodes = figures.nodes or [figures]
    return ChannelTotal(
        figures.topic_name,
        figures.channel_name,
        depth=figures.depth,
        in_flight=figures.in_flight_count,
        deferred=figures.deferred_count,
        clients=figures.client_count,
        nodes=len(nodes),
        paused=sum(each.paused for each in nodes),
    )


def _tombstoned(view: View, topic: str) -> set[str]:
    return {total.node.address for total in view.overview.nodes if total.node.topics.get(topic)}


def topic_commands(view: View, topic: str) -> dict[str, str]:
    """The actions on a topic as commands."""
    return {word: view.cluster.command("topic", word, topic) for word in ("pause", "unpause", "empty", "delete")}


def channel_page(view: View, topic: str, channel: str) -> Page:
    """A channel with its clients."""
    try:
        found = view.cluster.channel(topic, channel, MAX_AGE)
    except NSQError as exc:
        return Page("error.html", channel, {"what": "topic", "name": topic, "why": str(exc)}, status=404)
    figures = found.value
    if figures is None:
        why = f"no node has it; {topic} has no channel of this name"
        return Page("error.html", channel, {"what": "channel", "name": channel, "why": why}, found.warnings, 404)
    day = view.query.get("span") == "day"
    trend = view.recorder.trend(topic, channel)
    clients = sorted(figures.clients or (), key=lambda each: (-each["in_flight_count"], each["hostname"]))
    values = {
        "topic": topic,
        "channel": channel,
        "figures": figures,
        "trend": trend,
        "states": states_of(_total_of(figures), trend),
        "clients": clients[:MOST_CLIENTS],
        "client_count": len(clients),
        # Without zones, all that NSQ after 1.3.0 counts is elsewhere.
        "have_zones": figures.zone_local_msg_count or figures.region_local_msg_count,
        "attributes": {id(client): attributes_of(client) for client in clients[:MOST_CLIENTS]},
        "connected": {id(client): connected_seconds(client) for client in clients[:MOST_CLIENTS]},
        "charts": _charts(view, (topic, channel), day),
        "day": day,
        "quantiles": _quantiles([each.latency for each in figures.nodes]),
        "commands": {
            word: view.cluster.command("channel", word, topic, channel)
            for word in ("pause", "unpause", "empty", "delete")
        },
    }
    return Page("channel.html", f"{topic}/{channel}", values, found.warnings)


def _quantiles(latencies: list[Any]) -> list[float]:
    """The quantiles that the nodes report, the highest first."""
    found = {each["quantile"] for latency in latencies for each in latency.percentiles}
    return sorted(found, reverse=True)


def attributes_of(client: dict[str, Any]) -> list[str]:
    """What is special about a client's connection."""
    words = []
    if client["sample_rate"]:
        words.append(f"samples {client['sample_rate']} %")
    if client["tls"]:
        words.append(client["tls_version"] or "TLS")
    words += [name for name in ("deflate", "snappy") if client[name]]
    if client["authed"]:
        words.append(f"authorized as {client['auth_identity']}" if client["auth_identity"] else "authorized")
    if place := place_of(client["topology_region"], client["topology_zone"]):
        words.append(place)
        words += next(
            ([f"same {kind}"] for kind in ("zone", "region") if _is_where_its_node_is(client, f"topology_{kind}")), []
        )
    return words


def _is_where_its_node_is(client: dict[str, Any], name: str) -> bool:
    return bool(client[name]) and client[name] == client[f"node_{name}"]


def _charts(view: View, key: tuple[str, ...], day: bool) -> list[Any]:
    columns, is_topic = view.recorder.columns, len(key) == 1
    charts = [
        chart(columns.series(key, "depth", day=day), "Depth, with channels" if is_topic else "Depth", "", "depth"),
        chart(columns.series(key, "rate", day=day), "Published" if is_topic else "Arriving", "/s", "rate"),
        chart(columns.series(key, "in_flight", day=day), "In flight", "", "in-flight"),
    ]
    retries = [
        (at, requeued + timed_out)
        for (at, requeued), (_, timed_out) in zip(
            columns.series(key, "requeued", day=day), columns.series(key, "timed_out", day=day), strict=True
        )
    ]
    return [*charts, chart(retries, "Requeues and timeouts", "/s", "retries")]
