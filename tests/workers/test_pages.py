"""/healthz and /metrics of the master."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gnsq_like.errors import NSQError
from gnsq_like.workers.pages import Pages
from tests.support.scripts import run_script

WORKER = {
    "number": 3,
    "pid": 1,
    "state": "running",
    "memory_bytes": 5,
    "started_at": 1.5,
    "heartbeat_age": 0.5,
    "messages": 0,
    "readers": [],
}
STATUS: dict[str, Any] = {
    "status": "ok",
    "problems": [],
    "wanted": 2,
    "restarts": {"died": 4},
    "workers": [WORKER, {**WORKER, "number": 4, "state": "draining"}],
}


def get(pages: Pages, path: str) -> tuple[int, str, str]:
    """Status, type and body; in a thread of the server."""
    import gevent

    def ask() -> tuple[int, str, str]:
        try:
            with urllib.request.urlopen(f"http://{pages.address}{path}", timeout=30) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.headers["Content-Type"], exc.read().decode()

    found: tuple[int, str, str] = gevent.get_hub().threadpool.apply(ask)
    return found


def test_the_pages() -> None:
    pages = Pages("127.0.0.1:0")
    try:
        status, kind, body = get(pages, "/healthz")
        assert (status, kind, json.loads(body)["status"]) == (503, "application/json", "failing")
        pages.status = STATUS
        status, _, body = get(pages, "/healthz?x=1")
        assert (status, json.loads(body)) == (200, STATUS)
        status, kind, body = get(pages, "/metrics")
        assert status == 200
        assert kind.startswith("text/plain; version=0.0.4")
        lines = body.splitlines()
        assert {
            "nsq_workers 1.0",
            "nsq_workers_wanted 2.0",
            'nsq_worker_restarts_total{reason="died"} 4.0',
            'nsq_worker_restarts_total{reason="blocked"} 0.0',
            'nsq_worker_memory_bytes{worker="3"} 5.0',
            'nsq_worker_start_time_seconds{worker="4"} 1.5',
            'nsq_worker_heartbeat_age_seconds{worker="3"} 0.5',
        } <= set(lines)
        assert get(pages, "/")[0] == 404
    finally:
        pages.close()
    assert not Path(pages.directory).exists()


def test_without_prometheus_client_the_page_says_what_to_install() -> None:
    lines = run_script(
        """
        import sys
        import urllib.error, urllib.request
        sys.modules["prometheus_client"] = None
        from gnsq_like.workers.pages import Pages
        pages = Pages("[::1]:0")
        assert pages.address.startswith("[::1]:")
        try:
            urllib.request.urlopen(f"http://{pages.address}/metrics", timeout=30)
        except urllib.error.HTTPError as exc:
            print(exc.code, exc.read().decode())
        pages.forget(1)
        pages.close()
        """
    )
    assert lines[0].startswith("404 ")
    assert "install the extra [prometheus]" in lines[0]


def test_an_address_that_is_taken() -> None:
    pages = Pages("127.0.0.1:0")
    try:
        with pytest.raises(NSQError, match=f"cannot listen on {pages.address}: "):
            Pages(pages.address)
    finally:
        pages.close()


def test_the_master_loads_no_gevent() -> None:
    lines = run_script(
        """
        import sys
        from gnsq_like.cli import run
        from gnsq_like.workers import master, pages
        print(*sorted(set(sys.modules) & {"gevent", "greenlet", "requests"}))
        """
    )
    assert lines == [""]


def test_half_sent_requests_keep_nobody_out() -> None:
    pages = Pages("127.0.0.1:0")
    host, _, port = pages.address.rpartition(":")
    try:
        with ExitStack() as stack:
            halves = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(200)]
            for half in halves:
                half.sendall(b"GET /healthz HTT")
            assert get(pages, "/healthz")[0] == 503  # there is no worker
            # The oldest have been shut out.
            halves[0].settimeout(60)
            assert halves[0].recv(1) == b""
    finally:
        pages.close()
