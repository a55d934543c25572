"""500 topics with 4 channels each on 20 nsqds: what viewers cause, and memory over a day."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import gevent
import pytest

from gnsq_like.admin.history.columns import COARSE_COUNT, Columns
from gnsq_like.admin.history.trend import figures_of
from gnsq_like.admin.upstream.cluster import MOST_CPU, Cluster
from gnsq_like.admin.upstream.overview import NodeStats, NodeTotal, Overview, add_node, read_stats
from gnsq_like.cluster.daemons import Daemons
from gnsq_like.cluster.nodes import Node
from gnsq_like.http.stats import checked_stats
from tests.support.large_cluster import CHANNELS, TOPICS, Stub, stats, stub_nsqds

pytestmark = pytest.mark.commands


@pytest.fixture(scope="module")
def stubs() -> Iterator[list[Stub]]:
    with stub_nsqds() as found:
        yield found


def test_polls_take_a_bounded_part_of_a_core(stubs: list[Stub]) -> None:
    """A poll is not repeated before its CPU time is that part of what has passed."""
    cluster = Cluster("", Daemons([stubs[0].address], options={"timeout": 60}))
    try:
        first = second = cluster.overview(0)
        while second is first:
            gevent.sleep(0.005)  # only lets go of the processor: a new one ends this, however long it takes
            second = cluster.overview(0)
    finally:
        cluster.close()
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
