"""500 topics with 4 channels each on 20 nsqds: the time of a page, the CPU of viewers, memory over a day.

The nsqds are stubs in this process; the admin is a process of its own, so that its CPU time is known.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import gevent
import pytest
from gevent.pywsgi import WSGIServer

from gnsq_like.admin.history.columns import COARSE_COUNT, Columns
from gnsq_like.admin.history.trend import figures_of
from gnsq_like.admin.upstream.nodes import Node
from gnsq_like.admin.upstream.overview import NodeStats, NodeTotal, Overview, add_node, read_stats
from tests.support import raw
from tests.support.daemons import wait_for
from tests.support.web import running

pytestmark = pytest.mark.commands

TOPICS, CHANNELS, NODES = 500, 4, 20


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


class Stub:
    """The HTTP API of an nsqd that always says the same."""

    def __init__(self, node: int) -> None:
        self._stats = stats(node)
        self._server = WSGIServer(("127.0.0.1", 0), self._answer, log=None)
        self._server.start()
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._info = json.dumps(
            {
                **{"version": "1.3.0", "broadcast_address": "127.0.0.1", "hostname": f"node-{node:02}"},
                **{"http_port": self._server.server_port, "tcp_port": 4150},
            }
        ).encode()
        self.asked = 0

    def _answer(self, environ: dict[str, str], start_response: Callable[..., object]) -> list[bytes]:
        body = self._info if environ["PATH_INFO"] == "/info" else self._stats
        self.asked += environ["PATH_INFO"] == "/stats"
        start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture(scope="module")
def stubs() -> Iterator[list[Stub]]:
    with ExitStack() as stack:
        found = [Stub(node) for node in range(NODES)]
        for stub in found:
            stack.callback(stub.stop)
        yield found


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="CPU time is read from /proc")
def test_viewers_of_a_large_cluster(stubs: list[Stub], tmp_path: Path) -> None:
    flags = [f"--nsqd-http-address={stub.address}" for stub in stubs]
    command = ["-m", "gnsq_like", "admin", "--http-address=127.0.0.1:0", *flags]
    with running(command, tmp_path, r"HTTP: listening on 127\.0\.0\.1:(\d+)") as server:
        address = f"127.0.0.1:{server.port}"

        def page(etag: str = "") -> raw.Answer:
            known = etag or '"none"'
            return raw.http(address, "GET", "/topics", Accept_Encoding="gzip", If_None_Match=known)

        wait_for(lambda: page().status == 200, "the first page", 60)
        used = cpu_seconds(server.process.pid)
        first = page()
        took = cpu_seconds(server.process.pid) - used
        # The time of a page that waits for nothing is CPU time, which a busy machine does not lengthen.
        assert first.status == 200 and took < 1.0

        polls = sum(stub.asked for stub in stubs)
        used, begun, etags = cpu_seconds(server.process.pid), time.monotonic(), [""] * 3
        rounds = 6
        for _ in range(rounds):
            for viewer in range(3):
                answer = page(etags[viewer])
                assert answer.status in (200, 304)
                etags[viewer] = answer.headers.get("etag", etags[viewer])
            gevent.sleep(5)
        share = (cpu_seconds(server.process.pid) - used) / (time.monotonic() - begun)
        polls = (sum(stub.asked for stub in stubs) - polls) // NODES
        print(f"{took * 1000:.0f} ms of CPU a page, three viewers {share:.1%} of a core, {polls} polls")
        # Three viewers cause no more polls than one, and polls are no more than the history needs.
        assert polls <= rounds + 1
        assert share < 0.05


def test_memory_is_bounded_over_a_day() -> None:
    """Every column of a day with all series, by a clock of its own; the numbers are counted, not weighed."""
    nodes = [read_stats({**json.loads(stats(0)), "producers": None})]
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
