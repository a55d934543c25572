"""The status of a run over HTTP: what it says, and to whom."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow")

from gnsq_like.spark.watch.status_pages import STALE, status_app
from tests.support.pipeline_tables import BEGAN, Run

#: Seconds after the beginning of the run.
NOW = 25


def client(run: Run, *, now: float = NOW, is_local: bool = True) -> Any:
    return status_app(lambda: run.status.current, is_local=is_local, clock=lambda: BEGAN + now).test_client()


@pytest.fixture
def run() -> Run:
    run = Run(depth=10, rejected=0.5)
    run.wrote(0, messages=1000, rejected=20, latency=9.0)
    run.wrote(1, messages=1000, latency=0.25)
    run.look(NOW - 2, {"127.0.0.1:4150": 5})
    run.look(NOW, {"127.0.0.1:4150": 5, "127.0.0.1:4152": None})
    return run


def test_health(run: Run) -> None:
    answer = client(run).get("/healthz")
    assert (answer.status_code, answer.json["status"], answer.json["depth"]) == (200, "ok", 5)
    run.look(NOW, {"127.0.0.1:4150": 11})
    answer = client(run).get("/healthz")
    assert (answer.status_code, answer.json["status"]) == (503, "failing")
    assert answer.json["problems"][0]["text"] == "11 messages wait, more than 10"


def test_a_run_that_hangs_is_not_healthy(run: Run) -> None:
    assert client(run, now=NOW + STALE).get("/healthz").status_code == 200
    answer = client(run, now=NOW + STALE + 1)
    assert answer.get("/healthz").status_code == 503
    assert answer.get("/healthz").json["problems"][0]["name"] == "stale"
    assert "the run has not looked at anything for 61 s" in answer.get("/healthz").json["problems"][0]["text"]


def test_status_and_metrics(run: Run) -> None:
    status = client(run).get("/status").json
    assert status["topics"][0]["nsqds"][1]["away_since"] == BEGAN + NOW
    assert "latencies" not in status
    answer = client(run).get("/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "nsq_pipeline_messages_total" in answer.text
    assert client(run).get("/ping").text == "OK"
    assert client(run).post("/healthz").status_code == 405


def test_a_local_server_answers_to_local_names_only(run: Run) -> None:
    for host, status in (("127.0.0.1:9160", 200), ("localhost", 200), ("[::1]:1", 200), ("evil.example", 421)):
        assert client(run).get("/status", headers={"Host": host}).status_code == status
    assert client(run, is_local=False).get("/metrics", headers={"Host": "pipeline.svc"}).status_code == 200
