"""A table has one pipeline, and a pipeline misses a table that is gone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from gnsq_like.errors import NSQError
from gnsq_like.spark.pipeline import NotBegun, Pipeline, PipelineFailed, run_pipeline
from tests.support.daemons import Running, running_nsqd
from tests.support.spark_engine import publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Running]:
    with running_nsqd("process") as nsqd:
        yield nsqd


@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_it_is_said_before_anything_is_written(spark: SparkSession, nsqd: Running, tmp_path: Path, kind: str) -> None:
    source = {"channel": "spark", "nsqd_tcp_addresses": nsqd.tcp_address, "nsqd_http_addresses": nsqd.http_address}
    data = tmp_path / "one" / "data"
    one = Pipeline(
        location=str(tmp_path / "one"),
        source={**source, "topic": f"one-{kind}"},
        name="one",
        format=kind,
        dedupe_within=0,
    )
    other = replace(one, source={**source, "topic": f"other-{kind}"}, checkpoint=str(tmp_path / "other"))

    def run(pipeline: Pipeline, numbers: range, *, adopt: bool = False) -> int:
        publish(nsqd, pipeline.source["topic"], numbers)
        return run_pipeline(pipeline, spark=spark, available_now=True, adopt=adopt).messages

    def said(pipeline: Pipeline, error: type[NSQError], text: str) -> None:
        with pytest.raises(error, match=text) as raised:
            run_pipeline(pipeline, spark=spark, available_now=True)
        assert str(data) in str(raised.value)

    assert run(one, range(3)) == 3
    assert run(one, range(3)) == 3
    said(other, NotBegun, "is that of another pipeline, .* --adopt")
    assert run(other, range(2), adopt=True) == 2
    said(one, NotBegun, "is that of another pipeline")
    shutil.rmtree(data)
    (tmp_path / "one" / "catalog.db").unlink(missing_ok=True)
    said(other, NotBegun, "is gone, and their messages will not come again")
    assert not data.exists()
    assert run(other, range(2), adopt=True) == 2
    assert run(other, range(1)) == 1


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_table_that_is_deleted_under_a_run_ends_it(
    spark: SparkSession, nsqd: Running, tmp_path: Path, kind: str
) -> None:
    source = {"channel": "spark", "nsqd_tcp_addresses": nsqd.tcp_address, "nsqd_http_addresses": nsqd.http_address}
    pipeline = Pipeline(
        location=str(tmp_path), source={**source, "topic": f"deleted-{kind}"}, format=kind, dedupe_within=0, trigger=0
    )
    publish(nsqd, f"deleted-{kind}", range(2))

    def delete(batches: int) -> None:
        if batches and (tmp_path / "data").exists():
            shutil.rmtree(tmp_path / "data")
            publish(nsqd, f"deleted-{kind}", range(2))

    with pytest.raises(PipelineFailed, match=f"{tmp_path}/data is this pipeline's no longer: it was deleted"):
        run_pipeline(pipeline, spark=spark, watch=lambda snapshot: delete(snapshot.batches))
