"""A channel's figures, from the nsqd's HTTP API."""

from __future__ import annotations

from typing import Any

from gnsq_like import NsqdHTTPClient
from tests.support.daemons import Running


def channel_stats(nsqd: Running, topic: str = "t", channel: str = "c") -> dict[str, Any]:
    """Empty while there is no such channel."""
    with NsqdHTTPClient(nsqd.http_address) as client:
        for found in client.stats(topic=topic)["topics"] or []:
            for each in found["channels"]:
                if each["channel_name"] == channel:
                    return dict(each)
    return {}


def finished(nsqd: Running, topic: str = "t", channel: str = "c") -> bool:
    """Whether the channel exists and holds nothing more."""
    stats = channel_stats(nsqd, topic, channel)
    return bool(stats) and stats["depth"] == stats["in_flight_count"] == stats["deferred_count"] == 0
