"""A pipeline of several topics on Spark: their tables, and what they share."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.pipeline import Pipeline, PipelineFailed, run_pipeline
from gnsq_like.spark.pipeline.config import place_of
from gnsq_like.spark.pipeline.selecting import plan_for
from tests.support.daemons import Running, running_nsqd
from tests.support.patient import NsqdHTTPClient
from tests.support.pipeline_tables import read_metrics
from tests.support.spark_engine import PATIENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Running]:
    with running_nsqd("process") as running:
        yield running


def pipeline_for(nsqd: Running, directory: Path, source: dict[str, str], **fields: Any) -> Pipeline:
    nsqds = {"nsqd_tcp_addresses": nsqd.tcp_address, "nsqd_http_addresses": nsqd.http_address, "channel": "table"}
    return Pipeline(location=str(directory / "out"), source={**nsqds, **PATIENT, **source}, **fields)


def publish(nsqd: Running, topic: str, bodies: list[bytes], channel: str = "table") -> None:
    client = NsqdHTTPClient(nsqd.http_address)
    client.create_topic(topic)
    client.create_channel(topic, channel)
    client.multi_publish(topic, bodies)


def numbers(name: str, found: range) -> list[bytes]:
    return [json.dumps({name: number}).encode() for number in found]


def test_a_table_for_each_topic_needs_no_settings_of_topics() -> None:
    given = {"channel": "table", "lookupd_http_addresses": "127.0.0.1:1", "topics_pattern": "x.*"}
    plan = plan_for(Pipeline(location="/out", source=given, table_by_topic=True))
    assert plan.pipeline.for_topic("x.y").place("data") == "file:///out/data/x.y"
    assert plan.bodies_of("x.y") == plan.bodies[None]


@pytest.mark.parametrize("topic", [".", ".."])
def test_no_table_is_in_another_directory(topic: str) -> None:
    assert place_of("/out/data", "a.b#ephemeral") == "/out/data/a.b%23ephemeral"
    with pytest.raises(InvalidOption, match="another directory"):
        place_of("/out/data", topic)


def table(spark: SparkSession, pipeline: Pipeline, topic: str) -> list[Any]:
    return spark.read.parquet(pipeline.for_topic(topic).place("data")).collect()


def test_each_topic_has_its_schema_and_its_table(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "each.a", [*numbers("n", range(50)), b"nope"])
    publish(nsqd, "each.b", [*numbers("m", range(100, 130)), b'{"n": 5}'], "other")
    publish(nsqd, "each.c", [b"any", b"bytes"])
    pipeline = pipeline_for(
        nsqd,
        tmp_path,
        {"topics_pattern": r"each\..*", "max_messages": "70"},
        topics={"each.a": {"schema": "n INT NOT NULL"}, "each.b": {"schema": "m BIGINT NOT NULL", "channel": "other"}},
    )
    last = run_pipeline(pipeline, spark=spark, available_now=True)
    assert (last.messages, last.rejected) == (84, 2)
    assert Counter(row.body.n for row in table(spark, pipeline, "each.a")) == Counter(range(50))
    assert Counter(row.body.m for row in table(spark, pipeline, "each.b")) == Counter(range(100, 130))
    assert {bytes(row.body) for row in table(spark, pipeline, "each.c")} == {b"any", b"bytes"}
    assert {(row.topic, row.channel) for row in table(spark, pipeline, "each.b")} == {("each.b", "other")}
    rejected = spark.read.parquet(pipeline.place("rejected")).collect()
    assert {(row.topic, row.reason) for row in rejected} == {
        ("each.a", "it is not JSON: expecting value"),
        ("each.b", "field m is missing"),
    }
    counted: Counter[str] = Counter()
    for row in read_metrics(pipeline):
        counted[row.topic] += row.messages - row.rejected
    assert counted == {"each.a": 50, "each.b": 30, "each.c": 2}
    # A topic that comes later, in the same checkpoint.
    publish(nsqd, "each.d", [b"new"])
    assert run_pipeline(pipeline, spark=spark, available_now=True).messages == 1
    assert [bytes(row.body) for row in table(spark, pipeline, "each.d")] == [b"new"]


def test_one_table_for_all(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "all.a", numbers("n", range(20)))
    publish(nsqd, "all.b", numbers("n", range(20, 50)))
    pipeline = pipeline_for(nsqd, tmp_path, {"topics": "all.a,all.b"}, schema="n INT NOT NULL")
    assert run_pipeline(pipeline, spark=spark, available_now=True).messages == 50
    rows = spark.read.parquet(pipeline.place("data")).collect()
    assert {row.body.n: row.topic for row in rows} == {n: "all.a" if n < 20 else "all.b" for n in range(50)}


def test_topics_with_select_and_where_of_their_own(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "sql.a", [*numbers("n", range(20)), b"nope"])
    publish(nsqd, "sql.b", numbers("n", range(100, 110)))
    publish(nsqd, "sql.c", [b"any", b"bytes"])
    publish(nsqd, "sql.d", numbers("n", range(3)))
    topics: dict[str, Any] = {
        "sql.a": {"transform": {"select": ["body.n + 1 AS more", "topic AS origin"], "where": "body.n < 5"}},
        "sql.b": {"schema": "n STRING"},
        "sql.c": {"schema": "", "transform": {"select": "length(body) AS size"}},
    }
    pipeline = pipeline_for(nsqd, tmp_path, {"topics": "sql.d"}, topics=topics, schema="n INT NOT NULL")
    last = run_pipeline(pipeline, spark=spark, available_now=True)
    assert (last.messages, last.rejected) == (36, 1)
    assert sorted((row.body.more, row.body.origin) for row in table(spark, pipeline, "sql.a")) == [
        (n + 1, "sql.a") for n in range(5)
    ]
    assert sorted(row.body.n for row in table(spark, pipeline, "sql.b")) == [str(n) for n in range(100, 110)]
    assert sorted(row.body.size for row in table(spark, pipeline, "sql.c")) == [3, 5]
    assert sorted(row.body.n for row in table(spark, pipeline, "sql.d")) == [0, 1, 2]


def test_a_schema_that_does_not_fit_one_topic_ends_the_run_before_any_write(
    spark: SparkSession, nsqd: Running, tmp_path: Path
) -> None:
    publish(nsqd, "wrong.a", numbers("n", range(300)))
    publish(nsqd, "wrong.b", numbers("n", range(100)))
    topics = {"wrong.a": {"schema": "n INT"}, "wrong.b": {"schema": "n INT, m INT NOT NULL"}}
    pipeline = pipeline_for(nsqd, tmp_path, {}, topics=topics)
    with pytest.raises(
        PipelineFailed, match=r"100 of 100 messages of topic wrong\.b in a batch .* correct topics\.wrong\.b\.schema"
    ):
        run_pipeline(pipeline, spark=spark, available_now=True)
    # Not even hidden files are left.
    assert not [each for each in (tmp_path / "out" / "data").rglob("*") if each.is_file()]
    topics["wrong.b"] = {"schema": "n INT"}
    right = pipeline_for(nsqd, tmp_path, {}, topics=topics)
    assert run_pipeline(right, spark=spark, available_now=True).messages == 400
    assert [len(table(spark, right, topic)) for topic in topics] == [300, 100]
    topics["wrong.a"] = {"schema": "n BIGINT"}
    with pytest.raises(InvalidOption, match="field n is INT in the table, and would be BIGINT"):
        run_pipeline(pipeline_for(nsqd, tmp_path, {}, topics=topics), spark=spark, available_now=True)


def test_a_batch_that_failed_between_two_tables_is_in_each_of_them_once(
    spark: SparkSession, nsqd: Running, tmp_path: Path
) -> None:
    publish(nsqd, "half.a", numbers("n", range(50)))
    publish(nsqd, "half.b", numbers("n", range(30)))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "_schema").symlink_to(tmp_path / "nowhere" / "at all")  # no directory can be made there
    topics = {"half.a": {"schema": "n INT"}, "half.b": {"schema": "n INT", "data": str(tmp_path / "b")}}
    pipeline = pipeline_for(nsqd, tmp_path, {}, topics=topics)
    with pytest.raises(PipelineFailed, match="Nothing is lost"):
        run_pipeline(pipeline, spark=spark, available_now=True)
    assert len(table(spark, pipeline, "half.a")) == 50
    assert read_metrics(pipeline) == []
    (tmp_path / "b" / "_schema").unlink()
    assert run_pipeline(pipeline, spark=spark, available_now=True).messages == 80
    assert Counter(row.body.n for row in table(spark, pipeline, "half.a")) == Counter(range(50))
    assert Counter(row.body.n for row in table(spark, pipeline, "half.b")) == Counter(range(30))
