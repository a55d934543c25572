"""A channel: its figures on each node, its graphs, and its clients."""

from __future__ import annotations

from typing import Any

from gnsq_like.admin.history.trend import states_of
from gnsq_like.admin.upstream.cluster import MAX_AGE
from gnsq_like.admin.upstream.overview import ChannelTotal
from gnsq_like.admin.web.drawing import chart
from gnsq_like.admin.web.pages.page import Page, Route, View
from gnsq_like.cluster.figures import ChannelFigures, connected_seconds
from gnsq_like.cluster.nodes import place_of
from gnsq_like.errors import NSQError

#: The most clients that a page shows: those with most messages in flight.
MOST_CLIENTS = 500


def channel_page(view: View, topic_name: str, channel: str) -> Page:
    """A channel with its clients."""
    try:
        found = view.cluster.channel(topic_name, channel, MAX_AGE)
    except NSQError as exc:
        return Page("error.html", channel, {"what": "topic", "name": topic_name, "why": str(exc)}, status=404)
    figures = found.value
    if figures is None:
        why = f"no node has it; {topic_name} has no channel of this name"
        return Page("error.html", channel, {"what": "channel", "name": channel, "why": why}, found.warnings, 404)
    day = view.query.get("span") == "day"
    trend = view.recorder.trend(topic_name, channel)
    clients = sorted(figures.clients or (), key=lambda each: (-each["in_flight_count"], each["hostname"]))
    values = {
        "topic": topic_name,
        "channel": channel,
        "figures": figures,
        "trend": trend,
        "states": states_of(total_of(figures), trend),
        "clients": clients[:MOST_CLIENTS],
        "client_count": len(clients),
        # Without zones, all that NSQ after 1.3.0 counts is elsewhere.
        "have_zones": figures.zone_local_msg_count or figures.region_local_msg_count,
        "attributes": {id(client): attributes_of(client) for client in clients[:MOST_CLIENTS]},
        "connected": {id(client): connected_seconds(client) for client in clients[:MOST_CLIENTS]},
        "charts": charts_of(view, (topic_name, channel), day),
        "day": day,
        "quantiles": quantiles_of([each.latency for each in figures.nodes]),
        "commands": {
            word: view.cluster.command("channel", word, topic_name, channel)
            for word in ("pause", "unpause", "empty", "delete")
        },
    }
    return Page("channel.html", f"{topic_name}/{channel}", values, found.warnings)


def attributes_of(client: dict[str, Any]) -> list[str]:
    """Words for special features of a client's connection, such as TLS."""
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


def total_of(figures: ChannelFigures) -> ChannelTotal:
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


def quantiles_of(latencies: list[Any]) -> list[float]:
    """The quantiles that the nodes report, the highest first."""
    found = {each["quantile"] for latency in latencies for each in latency.percentiles}
    return sorted(found, reverse=True)


def charts_of(view: View, key: tuple[str, ...], day: bool) -> list[Any]:
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


ROUTE = Route("/topics/<topic_name>/<channel>", "channel", "topics", channel_page)
