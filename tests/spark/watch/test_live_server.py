"""The server of a run's status: a thread of its own, and clear refusals."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("pyarrow")

from gnsq_like.spark.watch.live_server import CannotServe, LiveServer
from tests.support import raw
from tests.support.pipeline_tables import Run


def test_it_serves_the_present_status() -> None:
    run = Run()
    server = LiveServer(lambda: run.status.current, "127.0.0.1:0")
    try:
        assert raw.get(server.address, "/ping").body == b"OK"
        assert raw.get(server.address, "/status").json()["messages"] == 0
        run.wrote(0, messages=12)
        run.look(2)
        assert raw.get(server.address, "/status").json()["messages"] == 12
    finally:
        server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        raw.get(server.address, "/ping")


def test_an_address_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CannotServe, match=f"cannot serve the pipeline's status: .*{address}"):
            LiveServer(dict, address)
