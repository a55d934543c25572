"""The pages of a run: what they say, and to whom."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from gnsq_like.spark.watch.live_page import STALE, live_app
from tests.support.pipeline_tables import BEGAN, Run

#: Seconds after the beginning of the run.
NOW = 25


def client(run: Run, *, now: float = NOW, is_local: bool = True) -> Any:
    return live_app(lambda: run.status.current, is_local=is_local, clock=lambda: BEGAN + now).test_client()


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


@pytest.fixture
def run() -> Run:
    run = Run(depth=10, rejected=0.5)
    run.wrote(0, messages=1000, rejected=20, latency=9.0)
    run.wrote(1, messages=1000, latency=0.25)
    run.look(NOW - 2, {"127.0.0.1:4150": 5})
    run.look(NOW, {"127.0.0.1:4150": 5, "127.0.0.1:4152": None})
    return run


def test_the_page_has_a_tile_for_each_figure(run: Run) -> None:
    answer = client(run).get("/")
    assert answer.status_code == 200
    said = text_of(answer.text)
    for part in ("Lag 15 s", "Waiting in nsqd 5", "Rejected, last 5.0 min 1.00%", "Latency, half below 2", "2,000"):
        assert part in said, said
    assert "127.0.0.1:4152 – – away since" in said
    assert "clicks <b>" in said and "<b>clicks" not in answer.text and "clicks <b>" not in answer.text


def test_a_page_before_anything_happened() -> None:
    said = text_of(client(Run()).get("/").text)
    assert "No nsqd was asked yet." in said and "Lag –" in said


def test_nothing_but_this_server_is_asked_or_run(run: Run) -> None:
    answer = client(run).get("/")
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert re.findall(r'(?:src|href)="(?!/)[^"]*"', answer.text) == []
    assert "style=" not in answer.text and "onclick" not in answer.text
    for path in re.findall(r'(?:src|href)="(/static/[^"]*)"', answer.text):
        with client(run).get(path) as file:
            assert file.status_code == 200
    assert client(run).get("/static/../live_page.py").status_code == 404


def test_health(run: Run) -> None:
    answer = client(run).get("/healthz")
    assert (answer.status_code, answer.json["status"], answer.json["depth"]) == (200, "ok", 5)
    run.look(NOW, {"127.0.0.1:4150": 11}, times=2)
    answer = client(run).get("/healthz")
    assert (answer.status_code, answer.json["status"]) == (503, "failing")
    assert answer.json["problems"][0]["text"] == "11 messages wait, more than 10"
    assert "11 messages wait, more than 10" in text_of(client(run).get("/").text)


def test_a_run_that_hangs_is_not_healthy(run: Run) -> None:
    assert client(run, now=NOW + STALE).get("/healthz").status_code == 200
    answer = client(run, now=NOW + STALE + 1)
    assert answer.get("/healthz").status_code == 503
    assert answer.get("/healthz").json["problems"][0]["name"] == "stale"
    assert "the run has not looked at anything for 61 s" in text_of(answer.get("/").text)


def test_status_and_metrics(run: Run) -> None:
    status = client(run).get("/status").json
    assert status["topics"][0]["nsqds"][1]["away_since"] == BEGAN + NOW
    assert "history" not in status and "latencies" not in status
    answer = client(run).get("/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "nsq_pipeline_messages_total" in answer.text
    assert client(run).get("/ping").text == "OK"
    assert client(run).post("/healthz").status_code == 405


def test_a_local_server_answers_to_local_names_only(run: Run) -> None:
    for host, status in (("127.0.0.1:9160", 200), ("localhost", 200), ("[::1]:1", 200), ("evil.example", 421)):
        assert client(run).get("/status", headers={"Host": host}).status_code == status
    assert client(run, is_local=False).get("/metrics", headers={"Host": "pipeline.svc"}).status_code == 200
