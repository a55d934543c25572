"""Graphite, as nsqadmin uses it; by a scripted one."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gnsq_like.admin import AdminOptions
from gnsq_like.admin.upstream.graphite import key
from tests.support.admins import client_of, site
from tests.support.scripted_http import always, response, scripted

pytestmark = pytest.mark.commands

RATE = "/api/graphite?metric=rate&target=stats.x"


def ask(answer: bytes, path: str, **options: Any) -> tuple[Any, list[str]]:
    """The admin's response for a path, and what Graphite was asked for."""
    with scripted(always(answer)) as graphite:
        url = f"http://{graphite.address}/g"
        with site(nsqd_http_addresses=("127.0.0.1:1",), graphite_url=url, history=False, **options) as made:
            return client_of(made).get(path), [asked.line.split()[1] for asked in graphite.asked]


@pytest.mark.parametrize(("value", "rate"), [(120, "2.00"), (7.5, "0.12"), (0, "0.00"), (-1, "N/A"), (None, "N/A")])
def test_the_rate_of_the_last_whole_interval(value: object, rate: str) -> None:
    found = json.dumps([{"target": "x", "datapoints": [[value, 1]]}])
    answer, [asked] = ask(response(found), RATE)
    assert answer.get_json() == {"rate": rate}
    parts = urlsplit(asked)
    assert parts.path == "/g/render"
    assert parse_qs(parts.query) == {
        **{"from": ["-120sec"], "until": ["-60sec"], "format": ["json"], "target": ["stats.x"]},
    }


@pytest.mark.parametrize("body", ["[]"])
def test_no_value(body: str) -> None:
    assert ask(response(body), RATE)[0].get_json() == {"rate": "N/A"}


@pytest.mark.parametrize(
    "answer", [response("}{"), response('[{"target": 1}]'), response("x", "500 Oops"), b"no HTTP\r\n\r\n"]
)
def test_a_graphite_that_fails(answer: bytes) -> None:
    found, _ = ask(answer, RATE)
    assert (found.status_code, found.get_json()) == (500, {"message": "INTERNAL_ERROR"})


def test_graphs_are_handed_on_if_they_are_pictures() -> None:
    picture = response(b"\x89PNG", "200 OK", "Content-Type: image/png")
    answer, asked = ask(picture, "/render?target=a&width=5", proxy_graphite=True)
    assert (answer.status_code, answer.data, answer.content_type) == (200, b"\x89PNG", "image/png")
    assert asked == ["/g/render?target=a&width=5"]
    page = response("<script>alert(1)</script>", "200 OK", "Content-Type: text/html")
    assert ask(page, "/render?target=a", proxy_graphite=True)[0].status_code == 502
    assert ask(picture, "/render?target=a")[0].status_code == 404


def test_names_are_those_that_nsqd_pushes() -> None:
    options = AdminOptions(nsqd_http_addresses=("h:1",))
    assert key(options, "gauge", "topic.t.depth", "10.0.0.1:4151") == "stats.gauges.nsq.10_0_0_1_4151.topic.t.depth"
    assert key(options, "counter", "topic.t.message_count") == "stats.counters.nsq.*.topic.t.message_count.count"
    plain = AdminOptions(nsqd_http_addresses=("h:1",), statsd_gauge_format="")
    assert key(plain, "gauge", "topic.t.depth") == "nsq.*.topic.t.depth"
