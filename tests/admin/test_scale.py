"""500 topics with 4 channels each: what polls cost, and memory over a day."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

import gevent
import pytest
from gevent.pywsgi import WSGIServer

from gnsq_like.admin.history.columns import COARSE_COUNT, Columns
from gnsq_like.admin.history.trend import figures_of
from gnsq_like.admin.upstream.cluster import MOST_CPU, Cluster
from gnsq_like.admin.upstream.overview import NodeStats, NodeTotal, Overview, add_node, read_stats
from gnsq_like.cluster.daemons import Daemons
from gnsq_like.cluster.nodes import Node
from gnsq_like.http.nsqd import checked_stats

pytestmark = pytest.mark.commands

TOPICS, CHANNELS = 500, 4


def stats(node: int) -> bytes:
    """A /stats without clients, as an nsqd sends it."""
    latency = {"count": 0, "percentiles": None}
    topics = [
        {
            **{"topic_name": f"topic-{topic:03}", "depth": node, "backend_depth": 0, "message_count": 10_000 + topic},
            **{"message_bytes": 1_000_000, "paused": False, "e2e_processing_latency": latency},
            "channels": [
                {
                    **{"channel_name": f"channel-{channel}", "depth": topic, "backend_depth": 0, "in_flight_count": 3},
                    **{"deferred_count": 0, "message_count": 10_000 + topic, "requeue_count": 7, "timeout_count": 1},
                    **{"client_count": 2, "clients": None, "paused": False, "e2e_processing_latency": latency},
                }
                for channel in range(CHANNELS)
            ],
        }
        for topic in range(TOPICS)
    ]
    found = {"version": "1.3.0", "health": "OK", "start_time": 1_800_000_000, "topics": topics, "producers": None}
    return json.dumps(found, separators=(",", ":")).encode()


@contextmanager
def nsqd() -> Iterator[str]:
    """The address of the HTTP API of one nsqd, in this process."""

    def answer(environ: dict[str, str], start_response: Callable[..., object]) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(info).encode() if environ["PATH_INFO"] == "/info" else counts]

    counts = stats(0)
    server = WSGIServer(("127.0.0.1", 0), answer, log=None)
    server.start()
    info = {"version": "1.3.0", "broadcast_address": "127.0.0.1", "hostname": "node-00", "tcp_port": 4150}
    info["http_port"] = server.server_port
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.stop()


def test_polls_take_a_bounded_part_of_a_core() -> None:
    """A poll is not repeated before its CPU time is that part of what has passed."""
    with nsqd() as address, closing(Cluster("", Daemons([address], options={"timeout": 60}))) as cluster:
        first = second = cluster.overview(0)
        while second is first:
            gevent.sleep(0.005)  # only lets go of the processor: a new one ends this, however long it takes
            second = cluster.overview(0)
    assert not first.warnings
    assert len(first.topics) == TOPICS
    assert first.cost > 0
    assert second.taken - first.taken >= first.cost / MOST_CPU


def test_memory_is_bounded_over_a_day() -> None:
    """Every column of a day with all series, by a clock of its own; the numbers are counted, not weighed."""
    nodes = [read_stats(checked_stats(json.loads(stats(0))))]
    old = overview_of(0, nodes)
    figures = figures_of(old, overview_of(10, nodes))
    assert len(figures) == TOPICS * (CHANNELS + 1) + 1
    columns = Columns(5000)
    # A tenth of the series, and two columns a minute: enough to fill the day's, at a fraction of the time.
    figures = dict(list(figures.items())[:250])
    for minute in range(COARSE_COUNT + 20):
        for second in (0, 30):
            columns.add(1_800_000_000.0 + 60 * minute + second, figures)
    assert len(columns.series(("topic-001",), "depth", day=True)) == COARSE_COUNT
    bytes_per_series = columns.size_bytes / len(figures)
    print(f"{bytes_per_series / 1000:.0f} KB for each series, {bytes_per_series * 2501 / 1e6:.0f} MB for the cluster")
    assert bytes_per_series <= (COARSE_COUNT + 360 + 6) * 5 * 4


def overview_of(seconds: float, nodes: Sequence[NodeStats]) -> Overview:
    found = Overview(1_800_000_000.0 + seconds, seconds)
    for each in nodes:
        add_node(found, NodeTotal(Node("h", "h", 1, 2)), each)
    return found
