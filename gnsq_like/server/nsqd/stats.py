"""The content of /stats, as JSON and as text (docs/internals 3.4), without the figures of Go's memory."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Protocol

from gnsq_like.server.broker.broker import Broker
from gnsq_like.server.broker.channel import Channel
from gnsq_like.server.broker.latency import NOT_MEASURED, percentiles_of
from gnsq_like.server.broker.topic import Topic
from gnsq_like.server.daemon_options import VERSION, NsqdOptions, version_line
from gnsq_like.server.nsqd.authorizations import Access
from gnsq_like.server.nsqd.tcp import NsqdClient
from gnsq_like.server.shared import gotext
from gnsq_like.server.shared.gotext import format_duration
from gnsq_like.server.shared.tls import cipher_name, version_name
from gnsq_like.transport.compression import Deflate, Snappy

#: Of a channel, by the consumers' distance.
_TAKEN_COUNTS = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")


class Observed(Protocol):
    """The members of an nsqd that are used here."""

    broker: Broker
    clients: dict[NsqdClient, None]
    options: NsqdOptions
    start_time: int

    @property
    def health(self) -> str: ...


def stats(nsqd: Observed, topic: str, channel: str, include_clients: bool) -> dict[str, object]:
    """The figures of an nsqd.

    :param topic: the only topic; empty for all
    :param channel: the name of the only channels, and of one that each topic must have; empty for all
    """
    chosen = _chosen_topics(nsqd, topic, channel)
    found: dict[str, object] = {
        "version": VERSION,
        "health": nsqd.health,
        "start_time": nsqd.start_time,
        "topics": None if chosen is None else [_topic(t, channel, include_clients, nsqd.options) for t in chosen],
    }
    found["producers"] = _producers(nsqd.clients, topic) or None if include_clients else None
    return found


def _chosen_topics(nsqd: Observed, topic: str, channel: str) -> list[Topic] | None:
    topics = nsqd.broker.topics
    if topic:
        if topic not in topics:
            return None
        chosen = [topics[topic]]
    else:
        chosen = [topics[name] for name in sorted(topics)]
    return [t for t in chosen if not channel or channel in t.channels]


def _topic(topic: Topic, only_channel: str, include_clients: bool, options: NsqdOptions) -> dict[str, object]:
    return {
        "topic_name": topic.name,
        "channels": [
            _channel(topic.channels[name], include_clients, options)
            for name in sorted(topic.channels)
            if not only_channel or name == only_channel
        ],
        "depth": topic.depth,
        "backend_depth": topic.queue.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": _latency(topic.channels.values(), options),
    }


def _latency(channels: Iterable[Channel], options: NsqdOptions) -> dict[str, object]:
    measured = [channel.latencies for channel in channels if channel.latencies is not None]
    return percentiles_of(measured, options.e2e_processing_latency_percentiles) if measured else NOT_MEASURED


def _channel(channel: Channel, include_clients: bool, options: NsqdOptions) -> dict[str, object]:
    clients = [consumer.client for consumer in channel.consumers]
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.queue.backend_depth,
        "in_flight_count": len(channel.in_flight),
        "deferred_count": len(channel.deferred),
        "message_count": channel.message_count,
        **{name: count for name, count in zip(_TAKEN_COUNTS, channel.taken_counts, strict=True) if count},
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(clients),
        "clients": [_client(c) for c in clients if isinstance(c, NsqdClient)] if include_clients else None,
        "paused": channel.paused,
        "e2e_processing_latency": _latency([channel], options),
    }


def _client(client: NsqdClient, publish_topic: str | None = None) -> dict[str, object]:
    settings, consumer = client.settings, client.consumer
    tls, codec = (client.layers.tls, client.layers.codec) if client.layers is not None else (None, None)
    found: dict[str, object] = {
        "client_id": settings.client_id,
        "hostname": settings.hostname,
        "version": "V2",
        "remote_address": client.address,
        "state": client.state,
        "ready_count": consumer.ready_count if consumer else 0,
        "in_flight_count": consumer.in_flight_count if consumer else 0,
        "message_count": consumer.message_count if consumer else 0,
        "finish_count": consumer.finish_count if consumer else 0,
        "requeue_count": consumer.requeue_count if consumer else 0,
        "connect_ts": client.connected_at,
        "sample_rate": settings.sample_rate,
        "deflate": isinstance(codec, Deflate),
        "snappy": isinstance(codec, Snappy),
        "user_agent": settings.user_agent,
    }
    if client.access is not None:
        found |= _access(client.access)
    found |= {"topology_zone": settings.topology_zone, "topology_region": settings.topology_region}
    counts = client.publish_counts
    if counts:
        # nsqd shows only one topic; here it is the one asked for, or all.
        names = [publish_topic] if publish_topic else list(counts)
        found["pub_counts"] = [{"topic": name, "count": counts[name]} for name in names if name in counts]
    return found | {
        "tls": tls is not None,
        "tls_cipher_suite": cipher_name(tls.cipher) if tls else "",
        "tls_version": version_name(tls.version) if tls else "",
        "tls_negotiated_protocol": "",
        # True for every TLS connection in Go.
        "tls_negotiated_protocol_is_mutual": tls is not None,
    }


def _access(access: Access) -> dict[str, object]:
    """The fields of AUTH, without empty ones."""
    identity = {"auth_identity": access.identity, "auth_identity_url": access.identity_url}
    authed = {"authed": True} if access.authorizations else {}
    return authed | {name: text for name, text in identity.items() if text}


def _producers(clients: Iterable[NsqdClient], topic: str) -> list[dict[str, object]]:
    return [
        _client(client, topic)
        for client in clients
        if client.publish_counts and (not topic or topic in client.publish_counts)
    ]


def as_text(figures: dict[str, Any], started: float) -> str:
    """The same figures as text.

    :param started: when the daemon started, by the wall clock
    """
    now = time.time()
    lines = [
        version_line("nsqd"),
        f"start_time {datetime.fromtimestamp(started, UTC):%Y-%m-%dT%H:%M:%SZ}",
        f"uptime {format_duration(now - started)}",
        "",
        f"Health: {figures['health']}",
        "",
    ]
    topics = figures["topics"] or []
    if not topics:
        lines += ["Topics: None", ""]
    else:
        lines.append("Topics:")
        for topic in topics:
            lines += [*_topic_lines(topic, now), ""]
    producers = figures["producers"] or []
    lines.append("Producers:" if producers else "Producers: None")
    lines += ["   " + _client_text(producer, now) for producer in producers]
    return "\n".join(lines) + "\n"


def _topic_lines(topic: dict[str, Any], now: float) -> list[str]:
    mark = "*P " if topic["paused"] else "   "
    lines = [
        f"{mark}[{topic['topic_name']:<15}] depth: {topic['depth']:<5} be-depth: {topic['backend_depth']:<5} "
        f"msgs: {topic['message_count']:<8} e2e%: {_latency_text(topic)}"
    ]
    for channel in topic["channels"]:
        mark = "   *P " if channel["paused"] else "      "
        lines.append(
            f"{mark}[{channel['channel_name']:<25}] depth: {channel['depth']:<5} "
            f"be-depth: {channel['backend_depth']:<5} inflt: {channel['in_flight_count']:<4} "
            f"def: {channel['deferred_count']:<4} re-q: {channel['requeue_count']:<5} "
            f"timeout: {channel['timeout_count']:<5} msgs: {channel['message_count']:<8} "
            f"e2e%: {_latency_text(channel)}"
        )
        lines += ["        " + _client_text(client, now) for client in channel["clients"] or []]
    return lines


def _latency_text(figures: dict[str, Any]) -> str:
    percentiles = figures["e2e_processing_latency"]["percentiles"] or []
    return ", ".join(gotext.nanoseconds(each["value"]) for each in percentiles)


def _client_text(client: dict[str, Any], now: float) -> str:
    """A line for a client: one that published is shown as a producer, even among the consumers."""
    port = client["remote_address"].rpartition(":")[2]
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    counts = client.get("pub_counts")
    if counts:
        topics = ",".join(f"{entry['topic']}={entry['count']}" for entry in counts)
        did = f"msgs: {sum(entry['count'] for entry in counts):<8} topics: {topics}"
    else:
        did = (
            f"state: {client['state']} inflt: {client['in_flight_count']:<4} rdy: {client['ready_count']:<4} "
            f"fin: {client['finish_count']:<8} re-q: {client['requeue_count']:<8} msgs: {client['message_count']:<8}"
        )
    return f"[V2 {name:<21}] {did} connected: {format_duration(int(now) - client['connect_ts'])}"
