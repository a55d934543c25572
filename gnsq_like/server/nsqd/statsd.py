"""Pushes nsqd's figures to a statsd by UDP (docs/internals 3.6): counts since the last push, and levels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import gevent
from gevent import socket

from gnsq_like.addresses import parse_address
from gnsq_like.server.options import NsqdOptions
from gnsq_like.wire.names import is_ephemeral

log = logging.getLogger("gnsq_like.nsqd")

_TOPIC_LEVELS = ("depth", "backend_depth")
_TOPIC_COUNTS = ("message_count", "message_bytes")
_CHANNEL_LEVELS = {
    "depth": "depth",
    "backend_depth": "backend_depth",
    "in_flight_count": "in_flight_count",
    "deferred_count": "deferred_count",
    "client_count": "clients",
}
_CHANNEL_COUNTS = ("message_count", "requeue_count", "timeout_count")
#: Seconds of each interval without packets, so that the next one begins in time.
_SPARE = 1.0


class Statsd:
    """Pushes the figures of an nsqd; :meth:`run` is a greenlet.

    :param nsqd_address: of the nsqd, for the prefix
    :param figures: returns the content of /stats, without clients
    """

    def __init__(self, options: NsqdOptions, nsqd_address: str, figures: Callable[[], dict[str, object]]) -> None:
        self._options = options
        self._address = parse_address(options.statsd_address)
        prefix = options.statsd_prefix.replace("%s", nsqd_address.replace(".", "_").replace(":", "_"))
        #: The beginning of each name.
        self._prefix = f"{prefix}." if prefix and not prefix.endswith(".") else prefix
        self._figures = figures

    def run(self) -> None:
        """Push until killed. Switches."""
        options = self._options
        before: dict[str, object] = {}
        while True:
            gevent.sleep(options.statsd_interval)
            now = self._figures()
            lines = [self._prefix + line for line in stat_lines(now, before, options.statsd_exclude_ephemeral)]
            before = now
            try:
                self._send(list(packets(lines, options.statsd_udp_packet_size)))
            except OSError as exc:
                log.error("STATSD(%s): %s", self._address, exc)

    def _send(self, sent: list[bytes]) -> None:
        """Send packets spread evenly over the interval, less the spare time."""
        pause = max(0.0, self._options.statsd_interval - _SPARE) / max(1, len(sent))
        host, port = self._address.host, self._address.port
        (family, kind, protocol, _, target), *_ = socket.getaddrinfo(host, port, 0, socket.SOCK_DGRAM)
        with closing(socket.socket(family, kind, protocol)) as sock:
            for packet in sent:
                sock.sendto(packet, target)
                gevent.sleep(pause)


def stat_lines(now: dict[str, Any], before: dict[str, Any], exclude_ephemeral: bool) -> Iterator[str]:
    """The lines of one push.

    :param now: the figures
    :param before: those of the last push; empty at the first
    """
    earlier = _by_name(before.get("topics"), "topic_name")
    for topic in now["topics"] or []:
        if exclude_ephemeral and is_ephemeral(topic["topic_name"]):
            continue
        name = f"topic.{topic['topic_name']}."
        last = earlier.get(topic["topic_name"], {})
        yield from _counts(name, topic, last, _TOPIC_COUNTS)
        yield from (f"{name}{key}:{topic[key]}|g" for key in _TOPIC_LEVELS)
        yield from _latencies(name, topic)
        last_channels = _by_name(last.get("channels"), "channel_name")
        for channel in topic["channels"]:
            if exclude_ephemeral and is_ephemeral(channel["channel_name"]):
                continue
            below = f"{name}channel.{channel['channel_name']}."
            yield from _counts(below, channel, last_channels.get(channel["channel_name"], {}), _CHANNEL_COUNTS)
            yield from (f"{below}{stat}:{channel[key]}|g" for key, stat in _CHANNEL_LEVELS.items())
            yield from _latencies(below, channel)
    if "memory" in now:
        memory = dict(now["memory"])
        runs = memory.pop("gc_total_runs")
        yield from (f"mem.{key}:{value}|g" for key, value in memory.items())
        yield f"mem.gc_runs:{runs - before.get('memory', {}).get('gc_total_runs', 0)}|c"


def _by_name(found: list[dict[str, Any]] | None, key: str) -> dict[str, dict[str, Any]]:
    return {each[key]: each for each in found or []}


def _counts(prefix: str, now: dict[str, Any], before: dict[str, object], keys: Iterable[str]) -> Iterator[str]:
    for key in keys:
        yield f"{prefix}{key}:{now[key] - before.get(key, 0)}|c"


def _latencies(prefix: str, found: dict[str, Any]) -> Iterator[str]:
    for each in found["e2e_processing_latency"]["percentiles"] or []:
        yield f"{prefix}e2e_processing_latency_{each['quantile'] * 100:.0f}:{int(each['value'])}|g"


def packets(lines: Iterable[str], size: int) -> Iterator[bytes]:
    """Pack lines into packets of at most ``size`` bytes; a longer line has a packet of its own."""
    packet = b""
    for line in lines:
        data = line.encode() + b"\n"
        if packet and len(packet) + len(data) > size:
            yield packet
            packet = b""
        packet += data
    if packet:
        yield packet
