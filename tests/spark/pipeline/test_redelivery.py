"""Rejected messages after the schema was mended: each gets into the table once, however often and wherever it ends."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from gnsq_like import NsqdHTTPClient
from gnsq_like.deadletter import open_envelope
from gnsq_like.errors import InvalidOption
from gnsq_like.spark.pipeline import Pipeline, redeliver, run_pipeline
from gnsq_like.spark.pipeline.run import IDENTITY
from tests.support.daemons import Running, running_nsqd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Running]:
    with running_nsqd("process") as running:
        yield running


def pipeline_for(nsqd: Running, directory: Path, topic: str, bodies: list[bytes]) -> Pipeline:
    client = NsqdHTTPClient(nsqd.http_address)
    client.create_topic(topic)
    client.create_channel(topic, "table")
    client.multi_publish(topic, bodies)
    source = {
        "topic": topic,
        "channel": "table",
        "nsqd_tcp_addresses": nsqd.tcp_address,
        "nsqd_http_addresses": nsqd.http_address,
    }
    fields: dict[str, Any] = {"schema": "n INT NOT NULL, more STRING NOT NULL", "dedupe_within": 0}
    return Pipeline(location=str(directory / "out"), source=source, **fields)


def numbers(spark: SparkSession, pipeline: Pipeline) -> Counter[int]:
    return Counter(row.body.n for row in spark.read.parquet(pipeline.place("data")).collect())


def test_each_that_fits_now_is_written_once(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    bodies = [json.dumps({"n": n, **({"more": "x"} if n % 2 else {})}).encode() for n in range(20)]
    pipeline = pipeline_for(nsqd, tmp_path, "redelivered", [*bodies, b"nope"])
    assert run_pipeline(pipeline, spark=spark, available_now=True).rejected == 11
    # Nothing fits that did not fit before.
    found = redeliver(pipeline, spark=spark)
    assert (found.messages, found.rejected) == (11, 11)
    assert numbers(spark, pipeline) == Counter(range(1, 20, 2))
    mended = replace(pipeline, schema="n INT NOT NULL, more STRING")
    found = redeliver(mended, spark=spark)
    assert (found.messages, found.rejected) == (11, 1)
    assert numbers(spark, mended) == Counter(range(20))
    found = redeliver(mended, spark=spark)
    assert (found.messages, found.rejected) == (1, 1)
    assert numbers(spark, mended) == Counter(range(20))
    assert len(spark.read.parquet(pipeline.place("rejected")).collect()) == 11


def test_one_that_was_killed_is_completed_with_the_same_messages(
    spark: SparkSession, nsqd: Running, tmp_path: Path
) -> None:
    bodies = [json.dumps({"n": n}).encode() for n in range(20)]
    pipeline = pipeline_for(nsqd, tmp_path, "killed", bodies)
    assert run_pipeline(replace(pipeline, stop_above=1.0), spark=spark, available_now=True).rejected == 20
    mended = replace(pipeline, schema="n INT NOT NULL, more STRING")
    assert redeliver(mended, spark=spark).messages == 20
    # As if it had been killed after the table was written, and before it was noted.
    notes = tmp_path / "out" / "rejected-redelivered"
    (notes / "000001.done").unlink()
    shutil.rmtree(notes / "done")
    with pytest.raises(InvalidOption, match="a redelivery was ended half-way with another schema"):
        redeliver(replace(mended, schema="n BIGINT"), spark=spark)
    assert redeliver(mended, spark=spark).messages == 20
    assert numbers(spark, mended) == Counter(range(20))


def test_dead_letters_are_rows_of_rejected_and_stay_in_their_topic(
    spark: SparkSession, nsqd: Running, tmp_path: Path
) -> None:
    bodies = [json.dumps({"n": n, **({"more": "x"} if n % 2 else {})}).encode() for n in range(20)]
    pipeline = replace(
        pipeline_for(nsqd, tmp_path, "lettered", [*bodies, b"nope"]), dead_letters={"topic": "lettered.dead"}
    )
    client = NsqdHTTPClient(nsqd.http_address)
    client.create_topic("lettered.dead")
    client.create_channel("lettered.dead", "dead-letters")
    run_pipeline(pipeline, spark=spark, available_now=True)
    options = {"nsqd_tcp_addresses": nsqd.tcp_address, "nsqd_http_addresses": nsqd.http_address}
    topic = spark.read.format("nsq").options(**options, topic="lettered.dead", channel="dead-letters").load()
    letters = [open_envelope(bytes(row.body)) for row in topic.collect()]
    identities = {tuple(row) for row in spark.read.parquet(pipeline.place("rejected")).select(*IDENTITY).collect()}
    assert {(each.nsqd_address, each.topic, each.id) for each in letters if each} == identities
    assert len(letters) == len(identities) == 11
    mended = replace(pipeline, schema="n INT NOT NULL, more STRING")
    found = redeliver(mended, spark=spark)
    assert (found.messages, found.rejected) == (11, 1)
    assert numbers(spark, mended) == Counter(range(20))
    # None is taken, and none is published once more.
    [channel] = client.stats("lettered.dead")["topics"][0]["channels"]
    assert (channel["depth"], channel["message_count"]) == (11, 11)


def test_nothing_was_rejected(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    pipeline = pipeline_for(nsqd, tmp_path, "fine", [b'{"n": 1, "more": "x"}'])
    run_pipeline(pipeline, spark=spark, available_now=True)
    assert redeliver(pipeline, spark=spark).batches == 0
