"""20 nsqds' HTTP APIs, with 500 topics of 4 channels each, that always say the same; and an admin of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from gevent.pywsgi import WSGIServer

from tests.support import raw
from tests.support.web import Server, running

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
    """The HTTP API of one nsqd."""

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
        #: How often /stats was asked for.
        self.asked = 0

    def _answer(self, environ: dict[str, str], start_response: Callable[..., object]) -> list[bytes]:
        body = self._info if environ["PATH_INFO"] == "/info" else self._stats
        self.asked += environ["PATH_INFO"] == "/stats"
        start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]

    def stop(self) -> None:
        self._server.stop()


@contextmanager
def stub_nsqds() -> Iterator[list[Stub]]:
    """All nodes of the cluster, in this process."""
    with ExitStack() as stack:
        found = [Stub(node) for node in range(NODES)]
        for stub in found:
            stack.callback(stub.stop)
        yield found


def admin_of(stubs: Iterable[Stub], directory: Path) -> AbstractContextManager[Server]:
    """Context manager: an admin of these nsqds as a process, patient with them."""
    # One that seems to be silent would be asked again, and change the page.
    patient = ["--http-client-connect-timeout=60s", "--http-client-request-timeout=60s"]
    flags = [*patient, *(f"--nsqd-http-address={stub.address}" for stub in stubs)]
    command = ["-m", "gnsq_like", "admin", "--http-address=127.0.0.1:0", *flags]
    return running(command, directory, r"HTTP: listening on 127\.0\.0\.1:(\d+)")


def topics_page(server: Server, etag: str = "") -> raw.Answer:
    """An admin's page of topics, for a viewer who has the one with this ETag."""
    address = f"127.0.0.1:{server.port}"
    return raw.http(address, "GET", "/topics", Accept_Encoding="gzip", If_None_Match=etag or '"none"')
