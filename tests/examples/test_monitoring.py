"""examples/deploy: the dashboard and the alerts name metrics and labels that exist; promtool accepts the rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gnsq_like import Producer, Reader
from gnsq_like.admin.history.alerts import down
from gnsq_like.admin.web.metrics import ClusterCollector
from gnsq_like.contrib.prometheus import Metrics
from gnsq_like.contrib.shared.outbox.relay import Relay
from gnsq_like.workers.pages import Pages
from tests.support.admins import site
from tests.support.daemons import running_nsqd, running_nsqlookupd, wait_for
from tests.support.outboxes import Memory
from tests.support.raw import Client, post

DEPLOY = Path(__file__).resolve().parents[2] / "examples" / "deploy"
RULES: dict[str, Any] = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())
TESTS: dict[str, Any] = yaml.safe_load((DEPLOY / "alerts_test.yaml").read_text())
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana.json").read_text())

STATUS = {
    "wanted": 1,
    "restarts": {},
    "workers": [{"number": 1, "state": "running", "memory_bytes": 1, "started_at": 1.0, "heartbeat_age": 0.1}],
}
VARIABLES = {"datasource", "job", "topic", "cluster"}
#: Labels that Prometheus adds, and that its configuration gives to the admin of each cluster.
ADDED = {"job", "instance", "le", "cluster"}


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each sample that there is."""
    metrics = Metrics(registry := CollectorRegistry())
    reader = Reader("t", "c", metrics.timed(print), nsqd_tcp_addresses="127.0.0.1:1")
    producer = Producer("127.0.0.1:1")
    metrics.watch_reader(reader)
    metrics.watch_producer(producer)
    relay = Relay(Memory(), producer, poll_interval=1.0)
    metrics.watch_relay(relay)
    pages = Pages("127.0.0.1:0", str(tmp_path_factory.mktemp("metrics")))
    pages.status = STATUS
    page = pages.metrics().decode()
    pages.close()
    families = [*registry.collect(), *text_string_to_metric_families(page), *cluster()]
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def cluster() -> list[Metric]:
    """What the admin has of a cluster with everything."""
    place: dict[str, Any] = {"topology_zone": "eu-1", "topology_region": "eu"}
    with running_nsqlookupd() as lookupd:
        options: dict[str, Any] = {
            "lookupd_tcp_addresses": [lookupd.tcp_address],
            "e2e_processing_latency_percentiles": [0.99],
        }
        with running_nsqd(**options, **place) as nsqd, Client(nsqd.tcp_address) as client:
            post(nsqd.http_address, "/topic/create?topic=t")
            client.subscribe("t", rdy=1)
            post(nsqd.http_address, "/pub?topic=t", b"x")
            client.send(b"FIN %s\n" % client.message().id)
            with site(lookupd_http_addresses=(lookupd.http_address,), history=False) as made:

                def samples() -> list[Metric]:
                    made.core.run(made.core.clusters[""].shared.forget)
                    overview = made.core.run(made.core.clusters[""].overview)
                    found = [*ClusterCollector(overview, [down("127.0.0.1:4151")]).collect()]
                    return found if all(family.samples for family in found) else []

                return wait_for(samples, "the nsqd to be registered, and its latencies")


def expressions() -> Iterator[tuple[str, str]]:
    """The name of each panel and rule, with an expression."""
    for group in RULES["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("name", "expression"), list(expressions()))
def test_it_names_only_metrics_and_labels_that_exist(name: str, expression: str, labels: dict[str, set[str]]) -> None:
    used = set(re.findall(r"\b(nsq_\w+)", expression))
    assert used
    assert used <= set(labels)
    have = ADDED.union(*(labels[each] for each in used))
    by = {label.strip() for group in re.findall(r"by \((.*?)\)", expression) for label in group.split(",")}
    selected = set(re.findall(r"(\w+)(?:=~|!=|=)\"", expression))
    assert by | selected <= have


@pytest.mark.parametrize(
    "rule", [rule for group in RULES["groups"] for rule in group["rules"]], ids=lambda r: r["alert"]
)
def test_the_text_of_a_rule_names_only_labels_that_it_has(rule: dict[str, Any]) -> None:
    used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    by = {label.strip() for group in re.findall(r"by \((.*?)\)", rule["expr"]) for label in group.split(",")}
    assert used <= (by - {"le"} or ADDED)


def test_legends_name_only_labels_that_are_left() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            by = {label.strip() for group in re.findall(r"by \((.*?)\)", target["expr"]) for label in group.split(",")}
            assert used <= (by or {"instance", "worker"}), panel["title"]


def test_every_metric_is_in_the_dashboard(labels: dict[str, set[str]]) -> None:
    shown = {used for _, expression in expressions() for used in re.findall(r"\b(nsq_\w+)", expression)}
    counted = {name for name in labels if not name.endswith(("_created", "_sum", "_count"))}
    assert counted <= shown


def test_the_dashboard_is_one_that_grafana_can_import() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = [tuple(panel["gridPos"].values()) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == VARIABLES
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__rate_interval", "__all"} == VARIABLES


def test_every_alert_is_shown_to_fire_and_not_to_fire() -> None:
    fire: set[str] = set()
    silent: set[str] = set()
    for each in TESTS["tests"]:
        shown = [
            re.findall(r'alertname="(\w+)"', json.dumps(look["exp_samples"]).replace("\\", ""))
            for look in each["promql_expr_test"]
        ]
        fire.update(*shown)
        if any(not names for names in shown):
            silent.update(*shown)
    alerts = {rule["alert"] for group in RULES["groups"] for rule in group["rules"]}
    assert fire == alerts
    assert silent == alerts


def test_the_tests_of_the_alerts_are_made_of_series_that_exist(labels: dict[str, set[str]]) -> None:
    series = [made["series"] for each in TESTS["tests"] for made in each["input_series"]]
    for name, text in (re.fullmatch(r"(\w+)\{(.*)\}", each).groups() for each in series):  # type: ignore[union-attr]
        given = set(re.findall(r"(\w+)=\"", text))
        assert given - ADDED == labels[name] - ADDED, name


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool, of Debian's package prometheus, is not installed"
)
@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")])
def test_promtool_accepts_the_rules_and_their_tests(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=DEPLOY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
