"""Spark pipelines in the admin: their tiles and page, and those that are away, hang, or answer garbage."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from gnsq_like.admin import AdminOptions
from gnsq_like.admin.upstream.pipelines import read_figures
from gnsq_like.admin.web.site import Site
from gnsq_like.errors import UsageError
from gnsq_like.http.decode import Malformed
from gnsq_like.spark.watch.live_server import LiveServer
from tests.support.admins import client_of, site
from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.pipeline_tables import BEGAN, Run
from tests.support.scripted_http import always, response, scripted


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Running]:
    with running_nsqd() as running:
        yield running


@pytest.fixture
def run() -> Run:
    run = Run(depth=10_000)
    run.wrote(0, messages=1000, latency=9.0)
    run.wrote(1, messages=1000, rejected=20, latency=0.25)
    run.look(20, {"127.0.0.1:4150": 5, "127.0.0.1:4152": None})
    return run


def served(run: Run, seconds: float = 21) -> LiveServer:
    return LiveServer(lambda: run.status.current, "127.0.0.1:0", clock=lambda: BEGAN + seconds)


def text_of(client: Any, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


def wait_until(made: Site, is_so: Callable[[Any], bool], name: str = "clicks") -> None:
    """Ask until the pipeline is so."""

    def asked() -> bool:
        made.run(made.pipelines.ask, time.time())
        return is_so(made.pipelines.present[name])

    wait_for(asked, "the pipeline")


def test_without_pipelines_nothing_is_said_of_them(nsqd: Running) -> None:
    with site(nsqd_http_addresses=(nsqd.http_address,)) as made:
        client = client_of(made)
        assert "Pipelines" not in text_of(client, "/topics")
        assert "No pipeline is watched." in text_of(client, "/pipelines")


def test_a_tile_and_a_page(nsqd: Running, run: Run) -> None:
    server = served(run)
    try:
        with site(nsqd_http_addresses=(nsqd.http_address,), pipelines={"clicks": server.address}) as made:
            client = client_of(made)
            wait_until(made, lambda found: found.is_well)
            front = text_of(client, "/topics")
            assert "clicks running lag 10s waiting 5 rate 100/s rejected 1.00%" in front
            page = text_of(client, "/pipelines")
            assert "Latency, half below 2" in page and "2,000 20 rejected" in page
            assert "127.0.0.1:4150 clicks / table 5 1 answers" in page
            assert "127.0.0.1:4152 clicks / table – – away since" in page
            # The page of all topics is kept for a while, but not longer than the figures.
            run.look(30, {"127.0.0.1:4150": 20_000})
            wait_until(made, lambda found: not found.is_well)
            assert "needs a look lag" in text_of(client, "/topics")
            assert "20,000 messages wait, more than 10,000" in text_of(client, "/pipelines")
    finally:
        server.close()


def test_one_that_hangs_is_named(nsqd: Running, run: Run) -> None:
    server = served(run, seconds=200)
    try:
        with site(nsqd_http_addresses=(nsqd.http_address,), pipelines={"clicks": server.address}) as made:
            wait_until(made, lambda found: found.figures is not None)
            assert "clicks needs a look" in text_of(client_of(made), "/topics")
            assert "the run has not looked at anything for" in text_of(client_of(made), "/pipelines")
    finally:
        server.close()


def test_one_that_is_away_keeps_its_figures_and_is_an_alert(nsqd: Running, run: Run) -> None:
    server = served(run)
    with site(nsqd_http_addresses=(nsqd.http_address,), pipelines={"clicks": server.address}) as made:
        client = client_of(made)
        wait_until(made, lambda found: found.is_well)
        server.close()
        wait_until(made, lambda found: bool(found.problem))
        made.run(made.pipelines.ask, time.time())
        assert "clicks no answer since" in text_of(client, "/topics")
        assert "lag 10s" in text_of(client, "/topics")
        page = text_of(client, "/pipelines")
        assert "The figures are those of" in page and server.address in page
        assert "pipeline down pipeline clicks does not answer" in text_of(client, "/activity")


def test_garbage_is_said_and_shown_as_text(nsqd: Running) -> None:
    evil = {"state": "<script>alert(1)</script>", "status": "ok", "problems": [], "topics": []}
    with scripted(always(response(b"[1]"))) as first, scripted(always(response(json.dumps(evil).encode()))) as second:
        pipelines = {"broken": first.address, "<i>evil": second.address}
        with site(nsqd_http_addresses=(nsqd.http_address,), pipelines=pipelines) as made:
            wait_until(made, lambda found: found.figures is not None, "<i>evil")
            client = client_of(made)
            assert "the answer is malformed: a JSON object was expected" in text_of(client, "/pipelines")
            for path in ("/topics", "/pipelines"):
                page = client.get(path).text
                assert "&lt;script&gt;" in page
                assert "<script>" not in page and "<i>evil" not in page


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": 1},
        {"problems": "no"},
        {"problems": [{}]},
        {"lag": "long"},
        {"depth": True},
        {"latency": 3},
        {"latency": {"p50": []}},
        {"topics": [{"topic": "t", "channel": "c", "nsqds": [{"address": 1}]}]},
    ],
)
def test_what_is_no_status_is_malformed(wrong: dict[str, Any]) -> None:
    right = {"state": "running", "status": "ok", "problems": [], "topics": []}
    assert read_figures({**right, "latency": None}).lag is None
    with pytest.raises(Malformed):
        read_figures({**right, **wrong})


def test_names_and_addresses_are_checked() -> None:
    for pipelines in ({"": "h:1"}, {" x": "h:1"}, {"x" * 65: "h:1"}, {"x": "nowhere at all"}):
        with pytest.raises(UsageError):
            AdminOptions(nsqd_http_addresses=("h:1",), pipelines=pipelines)
