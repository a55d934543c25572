"""Replays of the archive, and what cannot be replayed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.pipeline import Pipeline, PipelineFailed, replay
from gnsq_like.spark.pipeline.batches import BatchWriter
from gnsq_like.spark.pipeline.selecting import plan_for
from tests.support.daemons import running_nsqd, wait_for
from tests.support.patient import NsqdHTTPClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START, END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
#: When the batches of the archive began.
ARRIVED = [datetime(2026, 11, 21, 13, 59, tzinfo=UTC), datetime(2026, 11, 21, 14, 1, tzinfo=UTC)]


def pipeline_in(directory: Path, nsqd: str = "127.0.0.1:1", **fields: Any) -> Pipeline:
    source = {"topic": "t", "channel": "c", "nsqd_tcp_addresses": nsqd, "nsqd_http_addresses": nsqd}
    given = {"schema": "n INT NOT NULL", "archive": str(directory / "archive"), **fields}
    return Pipeline(location=str(directory / "out"), source=source, **given)


def write(spark: SparkSession, pipeline: Pipeline, *batches: list[bytes]) -> None:
    """Write batches of these bodies as a run does."""
    writer = BatchWriter(pipeline, plan_for(pipeline), lambda: None, lambda _: None)
    writer.belongs_to("01234567-89ab-cdef")
    for number, (bodies, arrived) in enumerate(zip(batches, ARRIVED, strict=False)):
        rows = [
            (f"{number:08d}{position:08d}", bytearray(body), arrived, 1, "t", "c", "127.0.0.1:4150", arrived)
            for position, body in enumerate(bodies)
        ]
        columns = "id STRING, body BINARY, timestamp TIMESTAMP, attempts INT, topic STRING, channel STRING"
        writer(spark.createDataFrame(rows, f"{columns}, nsqd_address STRING, seen_at TIMESTAMP"), number)


def bodies() -> list[bytes]:
    numbers = [json.dumps({"n": number, "more": f"m{number}"}).encode() for number in range(30)]
    return [*numbers, b'{"n": 1.5, "more": "x"}', b"nope"]


def test_what_came_is_archived_and_replayed_through_another_schema(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path)
    write(spark, pipeline, bodies()[:20], bodies()[20:])
    archived = spark.read.parquet(pipeline.place("archive")).collect()
    assert Counter(bytes(row.body) for row in archived) == Counter(bodies())
    mended = replace(pipeline, schema="n DOUBLE NOT NULL, more STRING")
    into = tmp_path / "again"
    for _ in range(2):  # a repetition replaces what is there
        found = replay(mended, start=START, end=END, into=str(into), spark=spark)
        assert (found.batches, found.messages, found.rejected) == (2, 32, 1)
        rows = spark.read.parquet(str(into)).collect()
        assert Counter((row.body.n, row.body.more) for row in rows) == Counter(
            [*((float(number), f"m{number}") for number in range(30)), (1.5, "x")]
        )
        assert {row.id for row in rows} < {row.id for row in archived}
        rejected = spark.read.parquet(f"{into}-rejected").collect()
        assert [row.reason for row in rejected] == ["it is not JSON: expecting value"]


def test_a_replay_is_repeated_into_a_table_with_commits(spark: SparkSession, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    pipeline = pipeline_in(tmp_path, format="delta")
    write(spark, pipeline, bodies()[:10], bodies()[10:20])
    into = tmp_path / "again"
    for _ in range(2):  # a repetition begins with a batch before the last one that the table has
        replay(pipeline, start=START, end=END, into=str(into), spark=spark)
        rows = deltalake.DeltaTable(str(into)).to_pyarrow_table()["body"].to_pylist()
        assert sorted(row["n"] for row in rows) == list(range(20))


def test_a_replay_is_another_table_in_a_catalog_too(spark: SparkSession, tmp_path: Path) -> None:
    catalogs = pytest.importorskip("pyiceberg.catalog")
    pipeline = pipeline_in(tmp_path, format="iceberg")
    write(spark, pipeline, bodies()[:20])
    replay(pipeline, start=START, end=END, into=f"{tmp_path}/again", spark=spark)
    uri = f"sqlite:///{tmp_path}/out/catalog.db?timeout=60"
    with catalogs.load_catalog("nsq", type="sql", uri=uri) as catalog:
        rows = {name: len(catalog.load_table(f"nsq.{name}").scan().to_arrow()) for name in ("t", "t_again")}
    assert rows == {"t": 20, "t_again": 20}


def test_some_of_them_by_time_and_by_a_condition(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, schema="")
    write(spark, pipeline, bodies()[:20], bodies()[20:])

    def replayed(**given: Any) -> tuple[int, int]:
        found = replay(
            pipeline, **{"start": START, "end": END, "into": str(tmp_path / "some"), "spark": spark, **given}
        )
        return found.batches, found.messages

    assert replayed() == (2, 32)
    assert replayed(start=ARRIVED[1]) == (1, 12)
    assert replayed(end=ARRIVED[1]) == (1, 20)
    # Both are in the hour, but only one of them arrived then.
    assert replayed(start=ARRIVED[0] + timedelta(seconds=1), end=ARRIVED[1] + timedelta(seconds=1)) == (1, 12)
    assert replayed(where="octet_length(body) > 4 AND topic = 't'") == (2, 31)
    assert replayed(start=END - timedelta(days=1)) == (0, 0)
    with pytest.raises(InvalidOption, match=r"where='nonsense': .*nonsense.* cannot be resolved"):
        replayed(where="nonsense")


def test_a_schema_that_does_not_fit_ends_it(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, schema="")
    write(spark, pipeline, [b"%d" % number for number in range(200)])
    with pytest.raises(PipelineFailed, match="the schema must be wrong: 200 of 200"):
        replay(replace(pipeline, schema="n INT"), start=START, end=END, into=str(tmp_path / "again"), spark=spark)
    assert not (tmp_path / "again").exists()


def test_rejected_messages_through_a_mended_schema(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, stop_above=1.0)
    write(spark, pipeline, bodies()[:20], [*bodies()[20:], *[b"nope"] * 150])
    mended = replace(pipeline, archive="", schema="n DOUBLE NOT NULL", stop_above=0.9)
    into = tmp_path / "mended"
    for _ in range(2):
        # However many of them do not fit this schema either.
        found = replay(mended, start=START, end=END, rejected=True, into=str(into), spark=spark)
        assert (found.batches, found.messages, found.rejected) == (1, 152, 151)
        [row] = spark.read.parquet(str(into)).collect()
        assert (row.body.n, row.seen_at.timestamp()) == (1.5, ARRIVED[1].timestamp())
    found = replay(
        mended, start=START, end=END, rejected=True, where="reason LIKE 'field n %'", into=f"{into}-some", spark=spark
    )
    assert (found.messages, found.rejected) == (1, 0)


def test_rejected_messages_do_not_take_the_place_of_the_archive_s(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, schema="n INT NOT NULL, more STRING NOT NULL")
    write(spark, pipeline, [*bodies(), b'{"n": 30}'])
    given: dict[str, Any] = {"start": START, "end": END, "into": str(tmp_path / "again"), "spark": spark}
    replay(pipeline, **given)
    replay(replace(pipeline, schema="n INT NOT NULL, more STRING"), rejected=True, **given)
    rows = spark.read.parquet(given["into"]).collect()
    assert sorted(row.body.n for row in rows) == list(range(31))


def test_select_and_where_of_today_are_applied_to_what_is_replayed(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path)
    write(spark, pipeline, bodies()[:20], bodies()[20:])
    into = tmp_path / "again"
    transform = {"select": ["body.n * 2 AS twice", "upper(body.more) AS more"], "where": "body.n % 2 = 1"}
    mended = replace(pipeline, schema="n INT NOT NULL, more STRING", transform=transform)
    found = replay(mended, start=START, end=END, into=str(into), spark=spark)
    assert (found.messages, found.rejected) == (32, 2)
    rows = spark.read.parquet(str(into)).collect()
    assert sorted((row.body.twice, row.body.more) for row in rows) == [(2 * n, f"M{n}") for n in range(1, 30, 2)]


def test_back_into_a_topic(spark: SparkSession, tmp_path: Path) -> None:
    with running_nsqd("process") as nsqd:
        pipeline = pipeline_in(tmp_path, nsqd.tcp_address, schema="")
        write(spark, pipeline, bodies())
        found = replay(pipeline, start=START, end=END, where="octet_length(body) > 4", topic="again", spark=spark)
        assert (found.batches, found.messages) == (1, 31)
        client = NsqdHTTPClient(nsqd.http_address)
        wait_for(lambda: client.stats("again")["topics"][0]["message_count"] == 31, "all are published")


@pytest.mark.parametrize(
    ("change", "given", "said"),
    [
        ({"archive": ""}, {"into": "/again"}, "the pipeline has no archive"),
        ({}, {}, "give either a table or a topic"),
        ({}, {"into": "/again", "topic": "t"}, "give either a table or a topic"),
        ({"data": "/data"}, {"into": "/data"}, "that is the pipeline's table"),
        ({}, {"topic": "a b"}, "topic"),
        ({}, {"into": "/again", "start": END, "end": START}, "it must be before 2020-01-01T00:00:00"),
        ({}, {"into": "/again", "start": datetime(2026, 1, 1)}, "both with a time zone"),
        ({"transform": {"function": "nowhere:f"}}, {"into": "/again"}, "it cannot be imported"),
    ],
)
def test_what_is_refused_before_spark_is_needed(
    tmp_path: Path, change: dict[str, Any], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidOption, match=said):
        replay(pipeline_in(tmp_path, **change), **{"start": START, "end": END, **given})
