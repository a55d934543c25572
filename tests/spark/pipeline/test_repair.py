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


#: The files of the checkpoint that are damaged, those that are removed before, and the repair's words. "last" is the
#: last batch, and "before" the one before it.
CASES = [
    (["offsets/last"], [], "written anew from the stage. Nothing is lost, and nothing comes again"),
    (["offsets/last"], ["commits/last"], "the batch planned again with the same messages. Nothing is lost"),
    (["offsets/last", "commits/last"], [], "the batch planned again with the same messages. Nothing is lost"),
    (["offsets/before"], ["commits/last"], "written anew, from the one after it. Nothing is lost"),
    (["commits/last"], [], "the batch is repeated. Nothing is lost, and nothing is twice in a table"),
    (["commits/before"], ["commits/last"], "it is written anew. Nothing is lost"),
    (["offsets/last"], ["offsets/last"], "written anew from the stage. Nothing is lost, and nothing comes again"),
    (["offsets/before"], ["offsets/before"], "written anew, from the one after it. Nothing is lost"),
    (["metadata"], [], "as the table knows it. Nothing is lost"),
    (["metadata", "offsets/last"], ["commits/last"], "as the table knows it. Nothing is lost"),
]


def test_a_checkpoint_that_is_damaged_again_and_again(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    pipeline = pipeline_for(nsqd, tmp_path, "repair")
    checkpoint = tmp_path / "out" / "checkpoint"
    publish(nsqd, "repair", range(COUNT))
    run_pipeline(pipeline, spark=spark, available_now=True)
    for number, (damaged, removed, said) in enumerate(CASES):
        last = max(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*"))
        assert last >= 2

        def place(name: str, last: int = last) -> Path:
            return checkpoint / name.replace("last", str(last)).replace("before", str(last - 1))

        for name in removed:
            remove(place(name))
        for name in set(damaged) - set(removed):
            damage(place(name), ("empty", "cut")[number % 2])
        count = COUNT + 20 * number
        publish(nsqd, "repair", range(count, count + 20))
        with pytest.raises(NotBegun, match=rf"{place(damaged[0])} is (damaged|gone).*; gnsq-like pipeline repair"):
            run_pipeline(pipeline, spark=spark, available_now=True)
        assert said in find_problems(pipeline)[0].text
        repair(pipeline)
        run_pipeline(pipeline, spark=spark, available_now=True)
        assert numbers(spark, pipeline) == Counter(range(count + 20)), (damaged, removed)


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
