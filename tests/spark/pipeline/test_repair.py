"""A damaged checkpoint or stage: it is named, and after the repair each message is in the table once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from gnsq_like.spark.pipeline import Pipeline, run_pipeline
from gnsq_like.spark.pipeline.faults import NotBegun
from gnsq_like.spark.pipeline.repair import find_problems
from tests.support.daemons import Running, running_nsqd
from tests.support.patient import NsqdHTTPClient
from tests.support.spark_engine import PATIENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 100
MOST = 40


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Running]:
    with running_nsqd("process") as running:
        yield running


def pipeline_for(nsqd: Running, directory: Path, topic: str, **source: str) -> Pipeline:
    client = NsqdHTTPClient(nsqd.http_address)
    client.create_topic(topic)
    client.create_channel(topic, "table")
    return Pipeline(
        location=str(directory / "out"),
        source={
            "topic": topic,
            "channel": "table",
            "nsqd_tcp_addresses": nsqd.tcp_address,
            "nsqd_http_addresses": nsqd.http_address,
            "max_messages": str(MOST),
            **PATIENT,
            **source,
        },
        schema="number INT NOT NULL",
    )


def publish(nsqd: Running, topic: str, numbers: range) -> None:
    bodies = [json.dumps({"number": number}).encode() for number in numbers]
    NsqdHTTPClient(nsqd.http_address).multi_publish(topic, bodies)


def numbers(spark: SparkSession, pipeline: Pipeline) -> Counter[int]:
    return Counter(row.body.number for row in spark.read.parquet(pipeline.place("data")).collect())


def remove(path: Path) -> None:
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def damage(path: Path, how: str) -> None:
    """As a crash of the machine leaves a file, with its checksum if it has one."""
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(b"" if how == "empty" else data[: len(data) // 2])


#: The files of the checkpoint that are damaged, those that are removed before, and the repair's words. Batch 2 is the
#: last one.
CASES = [
    (["offsets/2"], [], "written anew from the stage. Nothing is lost, and nothing comes again"),
    (["offsets/2"], ["commits/2"], "the batch planned again with the same messages. Nothing is lost"),
    (["offsets/2", "commits/2"], [], "the batch planned again with the same messages. Nothing is lost"),
    (["offsets/1"], ["commits/2"], "written anew, from the one after it. Nothing is lost"),
    (["commits/2"], [], "the batch is repeated. Nothing is lost, and nothing is twice in a table"),
    (["commits/1"], ["commits/2"], "it is written anew. Nothing is lost"),
    (["offsets/2"], ["offsets/2"], "written anew from the stage. Nothing is lost, and nothing comes again"),
    (["offsets/1"], ["offsets/1"], "written anew, from the one after it. Nothing is lost"),
    (["metadata"], [], "as the table knows it. Nothing is lost"),
    (["metadata", "offsets/2"], ["commits/2"], "as the table knows it. Nothing is lost"),
]


@pytest.mark.parametrize("how", ["empty", "cut"])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_damaged_checkpoint(spark: SparkSession, nsqd: Running, tmp_path: Path, case: int, how: str) -> None:
    damaged, removed, said = CASES[case]
    topic = f"repair-{case}-{how}"
    pipeline = pipeline_for(nsqd, tmp_path, topic)
    publish(nsqd, topic, range(COUNT))
    run_pipeline(pipeline, spark=spark, available_now=True)
    checkpoint = tmp_path / "out" / "checkpoint"
    assert sorted(path.name for path in (checkpoint / "offsets").glob("[0-9]*")) == ["0", "1", "2"]
    for name in removed:
        remove(checkpoint / name)
    for name in set(damaged) - set(removed):
        damage(checkpoint / name, how)
    publish(nsqd, topic, range(COUNT, COUNT + 20))
    with pytest.raises(NotBegun, match=rf"{damaged[0]} is (damaged|gone).*; gnsq-like pipeline repair"):
        run_pipeline(pipeline, spark=spark, available_now=True)
    problems = find_problems(pipeline)
    assert said in problems[0].text
    repair(pipeline)
    run_pipeline(pipeline, spark=spark, available_now=True)
    assert numbers(spark, pipeline) == Counter(range(COUNT + 20))


def repair(pipeline: Pipeline) -> None:
    for problem in find_problems(pipeline):
        assert problem.mend is not None
        problem.mend()
    assert find_problems(pipeline) == []


@pytest.mark.parametrize("what", ["segment", "END", "plan.json", "batch"])
def test_a_damaged_stage(spark: SparkSession, nsqd: Running, tmp_path: Path, what: str) -> None:
    topic = f"stage-{what}"
    pipeline = pipeline_for(nsqd, tmp_path, topic)
    publish(nsqd, topic, range(COUNT))
    run_pipeline(pipeline, spark=spark, available_now=True)
    # The last batch, of 20, is staged and not known to be written.
    remove(tmp_path / "out" / "checkpoint" / "commits" / "2")
    for path in (tmp_path / "out" / "data").rglob("batch=*-000002/*"):
        path.unlink()
    [batch] = (tmp_path / "out" / "stage").glob("*/*/log-*/batch-000000000003")
    lost = 20 if what in {"segment", "batch"} else 0
    if what == "batch":
        batch.rename(tmp_path / "batch")
    elif what == "plan.json":
        damage(batch / what, "empty")
    else:
        [path] = batch.rglob("000000" if what == "segment" else "000001")
        damage(path, "cut")
    [problem] = find_problems(pipeline)
    said = {"segment": "20 of its messages are lost", "END": "0 of its", "batch": "up to 20 messages are lost"}
    assert said.get(what, "Nothing is lost") in problem.text
    repair(pipeline)
    publish(nsqd, topic, range(COUNT, COUNT + 10))
    run_pipeline(pipeline, spark=spark, available_now=True)
    found = numbers(spark, pipeline)
    assert (max(found.values()), sum(found.values())) == (1, COUNT + 10 - lost)


def test_what_cannot_be_repaired_is_said_so(nsqd: Running, tmp_path: Path) -> None:
    pipeline = pipeline_for(nsqd, tmp_path, "hopeless")
    checkpoint = tmp_path / "out" / "checkpoint"
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
        for number in range(2):
            (checkpoint / name / str(number)).write_text("")
    texts: list[Any] = [problem for problem in find_problems(pipeline) if problem.mend is None]
    assert [problem.text.partition(" ")[0] for problem in texts] == [f"{checkpoint}/metadata"]
    assert "Give the pipeline another checkpoint" in texts[0].text
    with pytest.raises(NotBegun, match="not in a directory of this machine"):
        find_problems(Pipeline(location="s3a://bucket/x", source={**pipeline.source, "staging_location": "/tmp/x"}))
