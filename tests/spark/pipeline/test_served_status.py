"""Runs that are watched: what they say to those who ask, and in the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from gnsq_like.spark.pipeline import NotBegun, Pipeline, PipelineFailed, Snapshot, run_pipeline
from gnsq_like.spark.pipeline.served_status import newest_batch, watched
from tests.support import raw
from tests.support.daemons import Running, running_nsqd
from tests.support.patient import NsqdHTTPClient
from tests.support.pipeline_tables import batch, written
from tests.support.spark_engine import PATIENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Nothing listens there.
AWAY = "127.0.0.1:1"


def pipeline_for(nsqd: Running, directory: Path, bodies: list[bytes], **fields: Any) -> Pipeline:
    client = NsqdHTTPClient(nsqd.http_address)
    client.create_topic("clicks")
    client.create_channel("clicks", "table")
    if bodies:
        client.multi_publish("clicks", bodies)
    source = {
        "topic": "clicks",
        "channel": "table",
        "nsqd_tcp_addresses": f"{nsqd.tcp_address},{AWAY}",
        "nsqd_http_addresses": f"{nsqd.http_address},{AWAY}",
        **PATIENT,
    }
    return Pipeline(location=str(directory / "out"), source=source, schema="number INT", **fields)


def bodies(good: int, bad: int = 0) -> list[bytes]:
    return [json.dumps({"number": number}).encode() for number in range(good)] + [b"nope"] * bad


def test_a_run_serves_its_status_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    first: list[Snapshot] = []
    address = ""

    def watch(snapshot: Snapshot) -> None:
        nonlocal address
        first.append(snapshot)
        address = snapshot.http_address
        seen.append(raw.get(address, "/status").json())
        if seen[-1]["messages"] == 50:
            assert (
                b'nsq_pipeline_messages_total{pipeline="clicks",topic="clicks"} 50.0'
                in raw.get(address, "/metrics").body
            )
            assert raw.get(address, "/healthz").status == 200

    def stop() -> bool:
        return bool(seen) and seen[-1]["messages"] == 50

    with running_nsqd("process") as nsqd:
        pipeline = pipeline_for(nsqd, tmp_path, bodies(50), http_address="127.0.0.1:0")
        run_pipeline(pipeline, spark=spark, watch=watch, stop=stop)
        assert (first[0].seconds, seen[0]["state"], seen[0]["status"]) == (0, "starting", "starting")
        running = [each for each in seen if each["state"] == "running"][-1]
        assert (running["status"], running["messages"], running["rejected"]) == ("ok", 50, 0)
        assert seen[-1]["state"] == "ended"
        [topic] = running["topics"]
        by_address = {each["address"]: each for each in topic["nsqds"]}
        assert by_address[nsqd.tcp_address]["away_since"] is None
        assert by_address[AWAY]["away_since"] is not None
    with pytest.raises(ConnectionRefusedError):
        raw.get(address, "/ping")


def test_a_limit_that_is_passed_is_in_the_result(spark: SparkSession, tmp_path: Path) -> None:
    with running_nsqd("process") as nsqd:
        pipeline = pipeline_for(nsqd, tmp_path, bodies(90, bad=10), limits={"rejected": "0.05"})
        last = run_pipeline(pipeline, spark=spark, available_now=True)
        assert last.problems == ("10.0% of the messages are rejected, more than 5.0%",)
        # The next run has none of these messages.
        NsqdHTTPClient(nsqd.http_address).multi_publish("clicks", bodies(10))
        assert run_pipeline(pipeline, spark=spark, available_now=True).problems == ()


def test_an_address_that_is_taken_ends_the_run_before_spark(tmp_path: Path) -> None:
    with running_nsqd() as nsqd:
        pipeline = pipeline_for(nsqd, tmp_path, [], http_address=nsqd.http_address)
        with pytest.raises(NotBegun, match="cannot serve the pipeline's status"):
            run_pipeline(pipeline)


def test_silence_counts_from_the_last_batch_in_the_table(tmp_path: Path) -> None:
    made = written(tmp_path, batch(0), batch(1))
    pipeline = Pipeline(location=made.location, source=made.source, limits={"nothing_for": "1h"})
    with watched(pipeline) as (status, address):
        status.end()
    assert address == ""
    # Batch 1 began years before this test runs, or after it: either way not now.
    assert status.current["last_came_at"] == batch(1)[0].seen_at.timestamp()


def test_the_last_batch_is_one_that_was_finished(tmp_path: Path) -> None:
    pipeline = written(tmp_path, *[batch(number) for number in (-4000, 0, 1)])
    metrics = Path(pipeline.place("metrics").removeprefix("file://"))
    for unfinished in ("_writing", "date=2026-11-22/hour=1"):
        (metrics / unfinished).mkdir(parents=True)
    (metrics / "_writing" / "0").write_bytes(b"PAR1")
    assert newest_batch(pipeline.place("metrics")) == batch(1)[0].seen_at
    assert newest_batch(f"file://{tmp_path}/none") is None
    for part in metrics.rglob("*.parquet"):
        part.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(PipelineFailed, match="cannot be read"):
        newest_batch(pipeline.place("metrics"))
