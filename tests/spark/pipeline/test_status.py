"""The figures of a run: lag, rate, and the metrics that Prometheus reads, also while a pipeline runs."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow")

from prometheus_client.parser import text_string_to_metric_families

from gnsq_like.spark.pipeline import NotBegun, Pipeline, Snapshot, run_pipeline
from gnsq_like.spark.pipeline.status import RunStatus, served
from gnsq_like.spark.source.plan import Depth, Queue
from gnsq_like.spark.staging.offsets import TopicChannel
from tests.support import raw
from tests.support.daemons import running_nsqd
from tests.support.patient import NsqdHTTPClient
from tests.support.pipeline_tables import START, batch
from tests.support.spark_engine import PATIENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST, SECOND = "127.0.0.1:4150", "127.0.0.1:4152"
#: Nothing listens there.
AWAY = "127.0.0.1:1"


class Run:
    """A run that is told what it sees. Batch 0 begins with it, the others every 10 seconds."""

    def __init__(self) -> None:
        self.now = START.timestamp()
        self.status = RunStatus("clicks <b>", clock=lambda: self.now)

    def wrote(self, number: int, messages: int = 100, latency: float = 0.5, rejected: int = 0) -> None:
        rows = batch(number, messages=messages, latency=latency, rejected=rejected)
        self.status.wrote([replace(row, topic="clicks") for row in rows])

    def lag(self, seconds: float, depths: dict[str, int | None]) -> float | None:
        """The lag at a look, so many seconds after the beginning; the depth is None for an nsqd that is away."""
        of = TopicChannel("clicks", "table")
        self.now = START.timestamp() + seconds
        found = {Queue(of, address): Depth(depth, 1) for address, depth in depths.items() if depth is not None}
        self.status.look(found, [address for address, depth in depths.items() if depth is None])
        return self.status.lag


def samples(text: bytes) -> dict[str, dict[tuple[str, ...], float]]:
    """All samples, by name and by the values of the labels besides that of the pipeline."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in ("topic", "channel", "nsqd") if name in sample.labels)
            assert set(sample.labels) <= {"pipeline", "topic", "channel", "nsqd"}
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_the_lag_is_the_age_of_the_newest_message_while_others_wait() -> None:
    run = Run()
    assert run.status.lag is None and run.status.depth is None
    assert run.lag(3, {FIRST: 10}) == 3
    run.wrote(1, latency=8.0)
    assert run.lag(12, {FIRST: 10}) == pytest.approx(10)
    assert run.lag(13, {FIRST: 0}) == 0
    # After an hour without messages, the table is not an hour late.
    assert run.lag(3600, {FIRST: 0}) == 0
    assert run.lag(3602, {FIRST: 1}) == pytest.approx(2)
    assert run.lag(3603, {FIRST: None}) is None


def test_the_rate_is_that_of_the_last_minute() -> None:
    run = Run()
    run.wrote(0, messages=600)
    rates = []
    for seconds in (10, 60, 70, 130):
        run.lag(seconds, {FIRST: 0})
        rates.append(run.status.rate())
    assert rates == [60, 10, 0, 0]


def test_the_metrics() -> None:
    run = Run()
    with served(run.status, "127.0.0.1:0") as address:
        first = samples(raw.get(address, "/metrics").body)
        assert first["nsq_pipeline_batches_total"] == {(): 0}
        assert "nsq_pipeline_lag_seconds" not in first
        run.wrote(0, messages=100, rejected=7)
        run.wrote(1, messages=40)
        run.lag(25, {FIRST: 30, SECOND: None})
        found = samples(raw.get(address, "/metrics").body)
    assert found == {
        "nsq_pipeline_messages_total": {("clicks",): 140},
        "nsq_pipeline_rejected_messages_total": {("clicks",): 7},
        "nsq_pipeline_body_bytes_total": {(): 200 * 140 + 7},
        "nsq_pipeline_batches_total": {(): 2},
        "nsq_pipeline_lag_seconds": {(): pytest.approx(15.5)},
        "nsq_pipeline_depth_messages": {("clicks", "table", FIRST): 30},
        "nsq_pipeline_in_flight_messages": {("clicks", "table", FIRST): 1},
        "nsq_pipeline_nsqd_up": {(FIRST,): 1, (SECOND,): 0},
        "nsq_pipeline_last_batch_timestamp_seconds": {(): START.timestamp() + 11},
    }
    with pytest.raises(ConnectionRefusedError):
        raw.get(address, "/metrics")


def test_an_address_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = f"cannot serve the pipeline's metrics at {address}"
        with pytest.raises(NotBegun, match=said), served(Run().status, address):
            pytest.fail("it is taken")


def test_a_run_serves_its_metrics_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[Snapshot] = []
    bodies = [json.dumps({"number": number}).encode() for number in range(50)] + [b"nope"] * 3

    def stop() -> bool:
        return bool(seen) and seen[-1].messages == 53

    with running_nsqd("process") as nsqd:
        client = NsqdHTTPClient(nsqd.http_address)
        client.create_topic("clicks")
        client.create_channel("clicks", "table")
        client.multi_publish("clicks", bodies)
        source = {
            "topic": "clicks",
            "channel": "table",
            "nsqd_tcp_addresses": f"{nsqd.tcp_address},{AWAY}",
            "nsqd_http_addresses": f"{nsqd.http_address},{AWAY}",
            **PATIENT,
        }
        pipeline = Pipeline(
            location=str(tmp_path / "out"), source=source, schema="number INT", http_address="127.0.0.1:0"
        )
        metrics = []

        def watch(snapshot: Snapshot) -> None:
            seen.append(snapshot)
            metrics.append(samples(raw.get(snapshot.http_address, "/metrics").body))

        last = run_pipeline(pipeline, spark=spark, watch=watch, stop=stop)
    assert (seen[0].seconds, seen[0].messages) == (0, 0)
    assert (last.messages, last.rejected, last.depth) == (53, 3, 0)
    assert metrics[-1]["nsq_pipeline_messages_total"] == {("clicks",): 53}
    assert metrics[-1]["nsq_pipeline_rejected_messages_total"] == {("clicks",): 3}
    assert metrics[-1]["nsq_pipeline_nsqd_up"] == {(nsqd.tcp_address,): 1, (AWAY,): 0}
    with pytest.raises(ConnectionRefusedError):
        raw.get(last.http_address, "/metrics")
