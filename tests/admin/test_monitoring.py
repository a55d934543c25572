"""What programs watch a cluster by: /metrics, /healthz and /api/alerts."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gnsq_like.admin.history.alerts import Alert, down
from gnsq_like.admin.web.passwords import password_line
from gnsq_like.admin.web.site import Site
from tests.admin.conftest import Daemons
from tests.support import raw
from tests.support.admins import client_of, site
from tests.support.daemons import has_topology, wait_for
from tests.support.scripted_http import Asked, Peer, always, response, scripted

pytestmark = pytest.mark.commands

Labels = dict[str, str]


def samples_of(client: Any, path: str = "/metrics", **headers: str) -> dict[str, list[tuple[Labels, float]]]:
    """The samples of the metrics, by their names."""
    answer = client.get(path, headers=headers)
    assert (answer.status_code, answer.mimetype) == (200, "text/plain")
    found: dict[str, list[tuple[Labels, float]]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            # promtool's rule.
            assert family.type == "summary" or "quantile" not in sample.labels
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


@pytest.fixture
def made(daemons: Daemons) -> Iterator[Site]:
    """Two topics; clicks/archive has 2 of 5 messages waiting, one in flight, deferred, and finished."""
    first, second, _ = daemons.nsqds
    raw.post(first.http_address, "/topic/create?topic=clicks")
    raw.post(first.http_address, "/channel/create?topic=clicks&channel=archive")
    for _ in range(5):
        raw.post(first.http_address, "/pub?topic=clicks", b"x")
    raw.post(second.http_address, "/pub?topic=alone", b"x")
    raw.post(second.http_address, "/topic/pause?topic=alone")
    daemons.wait_until_known("clicks", 1, channels=1)
    daemons.wait_until_known("alone", 1)
    with raw.Client(first.tcp_address) as client:
        client.identify(**({"topology_zone": "eu-1"} if has_topology(daemons.kind) else {}))
        client.subscribe("clicks", "archive", rdy=1)
        client.send(b"FIN %s\n" % client.message().id)
        client.send(b"REQ %s 60000\n" % client.message().id)
        client.message()
        wanted = {"depth": 2, "in_flight_count": 1, "deferred_count": 1}
        wait_for(lambda: wanted.items() <= raw.channel_stats(first.http_address, "clicks", "archive").items())
        with site(lookupd_http_addresses=daemons.lookupd_addresses, history=False) as made:
            yield made


def test_metrics(made: Site, daemons: Daemons) -> None:
    found = samples_of(client_of(made))
    first, second, third = daemons.nsqd_addresses
    channel = {"topic": "clicks", "channel": "archive", "node": first}
    assert found["nsq_channel_depth_messages"] == [
        ({**channel, "storage": "memory"}, 2),
        ({**channel, "storage": "disk"}, 0),
    ]
    for name, value in {
        **{"messages_total": 5, "in_flight_messages": 1, "deferred_messages": 1, "requeued_messages_total": 1},
        **{"timed_out_messages_total": 0, "clients": 1, "paused": 0},
    }.items():
        assert found[f"nsq_channel_{name}"] == [(channel, value)], name
    latencies = {labels["quantile"]: seconds for labels, seconds in found["nsq_channel_e2e_latency_seconds"]}
    assert {*latencies} == {"0.99", "0.5"} and 0 < latencies["0.5"] < 100
    topics = {labels["topic"]: (labels["node"], value) for labels, value in found["nsq_topic_messages_total"]}
    assert topics == {"clicks": (first, 5), "alone": (second, 1)}
    assert [value for labels, value in found["nsq_topic_paused"] if labels["topic"] == "alone"] == [1]
    assert {labels["node"]: up for labels, up in found["nsq_nsqd_up"]} == dict.fromkeys((first, second, third), 1)
    assert {labels["nsqlookupd"] for labels, up in found["nsq_nsqlookupd_up"] if up} == {*daemons.lookupd_addresses}
    if has_topology(daemons.kind):
        taken = {labels["place"]: value for labels, value in found["nsq_channel_taken_messages_total"]}
        assert taken == {"zone": 3, "region": 0, "elsewhere": 0}
        assert {labels["zone"] for labels, _ in found["nsq_nsqd_info"]} == {"eu-1", "eu-2", "eu-3"}


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool, of Debian's package prometheus, is not installed"
)
def test_promtool_finds_nothing_to_improve(made: Site) -> None:
    answer = client_of(made).get("/metrics")
    assert "quantile=" in answer.text
    checked = ["promtool", "check", "metrics"]
    done = subprocess.run(checked, input=answer.text, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_daemon_that_does_not_answer(made: Site, daemons: Daemons) -> None:
    client = client_of(made)
    healthy = client.get("/healthz")
    assert (healthy.status_code, healthy.get_json()["problems"]) == (200, [])
    gone, lookupd = daemons.nsqds[0], daemons.lookupds[0]
    gone.kill()
    lookupd.stop()
    made.core.run(made.core.clusters[""].shared.forget)
    answer = client.get("/healthz")
    assert answer.status_code == 503
    problems = {(each["alert"], each["node"]) for each in answer.get_json()["problems"]}
    assert problems == {("node_down", gone.http_address), ("nsqlookupd_down", lookupd.http_address)}
    found = samples_of(client)
    assert {labels["node"]: up for labels, up in found["nsq_nsqd_up"]}[gone.http_address] == 0
    # No old figures, and no sum that fell.
    assert "nsq_channel_messages_total" not in found
    assert {labels["nsqlookupd"] for labels, up in found["nsq_nsqlookupd_up"] if not up} == {lookupd.http_address}


def nsqd(asked: Asked) -> bytes:
    """An nsqd with an odd topic."""
    if "/info" in asked.line:
        port = int(asked.headers["host"].rpartition(":")[2])
        info = {"version": "1.3.0", "hostname": "h", "http_port": port, "tcp_port": 1, "broadcast_address": "127.0.0.1"}
        return response(json.dumps(info))
    channels = [{"channel_name": "admin-peek-1#ephemeral"}, {"channel_name": 'a"b\n\\'}]
    return response(json.dumps({"health": "NOK - disk", "topics": [{"topic_name": "t", "channels": channels}]}))


def test_names_are_escaped_and_looks_at_messages_are_no_channels() -> None:
    with scripted(always(nsqd)) as peer, site(nsqd_http_addresses=(peer.address,), history=False) as made:
        found = samples_of(client_of(made))
    assert [labels["channel"] for labels, _ in found["nsq_channel_clients"]] == ['a"b\n\\']
    assert found["nsq_nsqd_healthy"] == [({"node": peer.address}, 0)]


def test_any_number_of_scrapers_cause_one_round_and_one_page() -> None:
    def script(peer: Peer) -> None:
        while (asked := peer.request()) is not None:
            gevent.sleep(0.05)  # the other scrapers come meanwhile, or later
            peer.send(nsqd(asked))

    with scripted(script) as peer, site(nsqd_http_addresses=(peer.address,), history=False) as made:
        scrapers = [gevent.spawn(samples_of, client_of(made)) for _ in range(20)]
        gevent.joinall(scrapers, raise_error=True)
        client_of(made).get("/healthz")
        client_of(made).get("/api/alerts")
        assert sorted(asked.line.split("?")[0] for asked in peer.asked) == ["GET /info HTTP/1.1", "GET /stats"]


def test_alerts() -> None:
    with site(nsqd_http_addresses=("127.0.0.1:1",), history=False) as made:
        client = client_of(made)
        assert client.get("/api/alerts").get_json()["alerts"] == []
        first = [down("n:1"), Alert("stuck", "t/c is stuck", "t", "c")]
        for at, alerts in ((1000.5, first), (2000.0, [*first, down("n:2")])):
            for _ in range(2):
                made.recorders[""].alerts.update(alerts, at)
        found = client.get("/api/alerts").get_json()
        assert found["alerts"] == [
            {
                **{"alert": "node_down", "text": "nsqd n:2 does not answer", "topic": "", "channel": ""},
                **{"node": "n:2", "since": 2000},
            },
            {
                **{"alert": "node_down", "text": "nsqd n:1 does not answer", "topic": "", "channel": ""},
                **{"node": "n:1", "since": 1000},
            },
            {"alert": "stuck", "text": "t/c is stuck", "topic": "t", "channel": "c", "node": "", "since": 1000},
        ]
        assert found["message"].startswith("WARNING: ")
        made.core.run(made.core.clusters[""].shared.forget)
        samples = samples_of(client)["nsq_admin_alert"]
        assert {(labels["alert"], labels["topic"], value) for labels, value in samples} == {
            *(("node_down", "", 1), ("stuck", "t", 1)),
        }


def test_a_scraper_logs_in_with_its_password_and_may_change_nothing(tmp_path: Path) -> None:
    (file := tmp_path / "passwords").write_text(password_line("prometheus", "pw") + "\n")
    options: dict[str, Any] = {"password_file": str(file), "admin_users": ("alice",), "history": False}
    header = {"Authorization": f"Basic {base64.b64encode(b'prometheus:pw').decode()}"}
    with site(nsqd_http_addresses=("127.0.0.1:1",), **options) as made:
        for path in ("/metrics", "/healthz", "/api/alerts"):
            assert client_of(made).get(path).status_code == 401
        assert samples_of(client_of(made), **header)["nsq_nsqd_up"] == [({"node": "127.0.0.1:1"}, 0)]
        assert client_of(made).post("/api/topics", json={"topic": "t"}, headers=header).status_code == 403


def test_each_cluster_has_its_own() -> None:
    with site(nsqd_http_addresses=("127.0.0.1:1",), clusters={"east": ("nsqd:127.0.0.1:2",)}, history=False) as made:
        client = client_of(made)
        nodes = [samples_of(client, f"{base}/metrics")["nsq_nsqd_up"] for base in ("", "/clusters/east")]
        assert nodes == [[({"node": "127.0.0.1:1"}, 0)], [({"node": "127.0.0.1:2"}, 0)]]
        problems = client.get("/clusters/east/healthz").get_json()["problems"]
        assert [each["node"] for each in problems] == ["127.0.0.1:2"]
