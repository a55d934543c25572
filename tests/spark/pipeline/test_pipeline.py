"""The pipeline on Spark, in the session that all tests share."""

from __future__ import annotations

import json
import shutil
import struct
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from gnsq_like import Connection
from gnsq_like.cluster.rounds import Unreachable
from gnsq_like.deadletter import open_envelope
from gnsq_like.errors import InvalidOption
from gnsq_like.options import ConnectionOptions
from gnsq_like.spark.pipeline import Pipeline, PipelineFailed, Snapshot, run_pipeline
from gnsq_like.spark.pipeline.batches import BatchWriter
from gnsq_like.spark.pipeline.destinations import check_table
from gnsq_like.spark.pipeline.faults import NotBegun
from gnsq_like.spark.pipeline.metrics import MinuteMetrics
from gnsq_like.spark.pipeline.owners import claimed
from gnsq_like.spark.pipeline.selecting import plan_for
from tests.support.daemons import Kind, Running, running_nsqd, wait_for
from tests.support.patient import NsqdHTTPClient
from tests.support.pipeline_tables import read_metrics
from tests.support.spark_engine import PATIENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "number INT NOT NULL, user STRING, at TIMESTAMP, tags ARRAY<STRING>, inner STRUCT<a: INT NOT NULL>"


def struct_type(ddl: str) -> StructType:
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Running]:
    with running_nsqd("process") as running:
        yield running


def pipeline_for(nsqd: Running, directory: Path, topic: str, **fields: Any) -> Pipeline:
    client = NsqdHTTPClient(nsqd.http_address)
    client.create_topic(topic)
    client.create_channel(topic, "table")
    source = {
        "topic": topic,
        "channel": "table",
        "nsqd_tcp_addresses": nsqd.tcp_address,
        "nsqd_http_addresses": nsqd.http_address,
        **PATIENT,
        **fields.pop("source", {}),
    }
    return Pipeline(**{"location": str(directory / "out"), "source": source, "schema": SCHEMA, **fields})


def publish(nsqd: Running, topic: str, bodies: list[bytes]) -> None:
    NsqdHTTPClient(nsqd.http_address).multi_publish(topic, bodies)


def good(numbers: range) -> list[bytes]:
    return [json.dumps({"number": number, "user": f"u{number}"}).encode() for number in numbers]


def table(spark: SparkSession, pipeline: Pipeline, name: str = "data") -> list[Any]:
    return spark.read.parquet(pipeline.place(name)).collect()


def parts(pipeline: Pipeline, name: str) -> list[str]:
    root = Path(pipeline.place(name).removeprefix("file://"))
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.parquet"))


def letters(nsqd: Running, topic: str, wanted: int) -> list[bytes]:
    """The messages of a dead-letter topic."""
    client = NsqdHTTPClient(nsqd.http_address)
    client.create_channel(topic, "test")
    found: list[bytes] = []
    connection = Connection(
        nsqd.tcp_address,
        ConnectionOptions(),
        on_messages=lambda _, messages: found.extend(each[3] for each in messages),
    )
    connection.connect()
    try:
        connection.subscribe(topic, "test")
        connection.set_rdy(wanted + 10)
        wait_for(lambda: len(found) >= wanted, f"{wanted} dead letters")
    finally:
        connection.close()
    return found


def test_rows_rejected_ones_dead_letters_and_metrics(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    pipeline = pipeline_for(nsqd, tmp_path, "all", dead_letters={"topic": "all.dead"})
    bad = [b"nope", b'{"user": "a"}', b'{"number": 1} {"number": 2}', b"\xff" * 20]
    publish(nsqd, "all", good(range(300)) + bad)
    seen: list[Snapshot] = []
    last = run_pipeline(pipeline, spark=spark, available_now=True, watch=seen.append)
    assert (last.messages, last.rejected, last.batches, last.is_over) == (304, 4, 1, True)
    assert (seen[-1], last.depth) == (last, 0)
    rows = table(spark, pipeline)
    assert Counter(row.body.number for row in rows) == Counter(range(300))
    row = next(row for row in rows if row.body.number == 7)
    assert (row.body.user, row.topic, row.channel, row.attempts) == ("u7", "all", "table", 1)
    assert (row.nsqd_address, len(row.id)) == (nsqd.tcp_address, 16)
    assert (row.hour, str(row.date)) == (row.seen_at.hour, f"{row.seen_at:%Y-%m-%d}")
    rejected = table(spark, pipeline, "rejected")
    why = {bytes(row.body): row.reason for row in rejected}
    assert why == {
        b"nope": "it is not JSON: expecting value",
        b'{"user": "a"}': "field number is missing",
        b'{"number": 1} {"number": 2}': "it is not JSON: extra data",
        b"\xff" * 20: "it is not UTF-8",
    }
    opened = [open_envelope(body) for body in letters(nsqd, "all.dead", 4)]
    assert {letter.body: letter.reason for letter in opened} == why
    assert {letter.id for letter in opened} == {row.id for row in rejected}
    metrics = read_metrics(pipeline)
    assert sum(each.messages for each in metrics) == 304
    assert sum(each.rejected for each in metrics) == 4
    assert sum(each.bytes for each in metrics) == sum(map(len, good(range(300)) + bad))


def test_later_messages_are_added_in_a_directory_of_their_own(
    spark: SparkSession, nsqd: Running, tmp_path: Path
) -> None:
    pipeline = pipeline_for(nsqd, tmp_path, "later")
    for numbers in (range(300), range(300, 310)):
        publish(nsqd, "later", good(numbers))
        assert run_pipeline(pipeline, spark=spark, available_now=True).messages == len(numbers)
    assert Counter(row.body.number for row in table(spark, pipeline)) == Counter(range(310))
    assert len({Path(part).parent for part in parts(pipeline, "data")}) == 2


def test_a_schema_that_does_not_fit_ends_the_run_and_loses_nothing(
    spark: SparkSession, nsqd: Running, tmp_path: Path
) -> None:
    wrong = pipeline_for(nsqd, tmp_path, "wrong", schema="number STRING, user INT NOT NULL")
    publish(nsqd, "wrong", good(range(200)))
    with pytest.raises(
        PipelineFailed, match=r"200 of 200 messages .* mostly because field user is not a valid INT"
    ) as raised:
        run_pipeline(wrong, spark=spark, available_now=True)
    assert "Nothing is lost" in str(raised.value)
    assert not list(Path(wrong.place("rejected").removeprefix("file://")).rglob("*.parquet"))
    right = pipeline_for(nsqd, tmp_path, "wrong")
    assert run_pipeline(right, spark=spark, available_now=True).messages == 200
    assert Counter(row.body.number for row in table(spark, right)) == Counter(range(200))


def kept(timestamp_ns: int, attempts: int, number: int, body: bytes) -> bytes:
    """A message as nsqd stores it on disk."""
    return struct.pack(">qH16s", timestamp_ns, attempts, b"%016d" % number) + body


def write_disk_queue(directory: Path, messages: list[bytes]) -> None:
    """Write the files of a stopped nsqd with the topic "old" and its channel "table" (docs/internals 2.9)."""
    directory.mkdir()
    records = b"".join(struct.pack(">i", len(message)) + message for message in messages)
    (directory / "old:table.diskqueue.000000.dat").write_bytes(records)
    (directory / "old:table.diskqueue.meta.dat").write_text(f"{len(messages)}\n0,0\n0,{len(records)}\n")
    channel = {"name": "table", "paused": False}
    topics = [{"name": "old", "paused": False, "channels": [channel]}]
    (directory / "nsqd.dat").write_text(json.dumps({"topics": topics, "version": "1.3.0"}))


@pytest.mark.parametrize("kind", ["process", pytest.param("real", marks=pytest.mark.real_nsqd)])
def test_what_was_deferred_or_requeued_for_long_is_written_and_counted(
    spark: SparkSession, tmp_path: Path, kind: Kind
) -> None:
    now = time.time_ns()
    ages = {"new": 1, "deferred": 30 * 60, "requeued": 65 * 60, "ancient": 3 * 86400}
    attempts = {"requeued": 7, "ancient": 30}
    messages = [
        kept(now - age * 10**9, attempts.get(name, 0), number, b'{"number": %d, "user": "x"}' % number)
        for number, (name, age) in enumerate(ages.items())
    ]
    write_disk_queue(tmp_path / "data", messages)
    with running_nsqd(kind, data_path=str(tmp_path / "data")) as nsqd:
        pipeline = pipeline_for(nsqd, tmp_path, "old")
        # The first batch sets a watermark. By their publish, all messages are far behind it; one more comes after it.
        assert run_pipeline(pipeline, spark=spark, available_now=True).messages == 4
        publish(nsqd, "old", good(range(4, 5)))
        assert run_pipeline(pipeline, spark=spark, available_now=True).messages == 1
    rows = {row.body.number: row for row in table(spark, pipeline)}
    assert set(rows) == set(range(5))
    assert [rows[number].attempts for number in range(4)] == [1, 1, 8, 31]
    metrics = read_metrics(pipeline)
    by_minute = Counter({row.minute: 0 for row in metrics})
    for row in metrics:
        by_minute[row.minute] += row.messages
    for age in ages.values():
        minute = datetime.fromtimestamp((now // 10**9 - age) // 60 * 60, UTC)
        assert by_minute[minute] >= 1
    assert by_minute.total() == 5
    oldest = max(metrics, key=lambda row: row.latency_max)
    assert oldest.latency_max == pytest.approx(oldest.seen_at.timestamp() - now / 1e9 + ages["ancient"], abs=0.01)


def batch_of(spark: SparkSession, bodies: list[bytes], latencies_us: list[int] | None = None) -> Any:
    seen_us = 1_795_000_000_000_000
    latencies = latencies_us or [1_000_000] * len(bodies)
    rows = [
        (f"{number:016d}", bytearray(body), (seen_us - latency), 1, "t", "c", "127.0.0.1:4150", seen_us)
        for number, (body, latency) in enumerate(zip(bodies, latencies, strict=True))
    ]
    columns = "id STRING, body BINARY, ts BIGINT, attempts INT, topic STRING, channel STRING, nsqd_address STRING"
    frame = spark.createDataFrame(rows, f"{columns}, seen BIGINT")
    return frame.selectExpr(
        "id", "body", "timestamp_micros(ts) AS timestamp", "attempts", "topic", "channel", "nsqd_address",
        "timestamp_micros(seen) AS seen_at",
    )  # fmt: skip


def writer_of(pipeline: Pipeline, ddl: str, said: list[list[MinuteMetrics]]) -> BatchWriter:
    changed = replace(pipeline, schema=ddl)
    writer = BatchWriter(changed, plan_for(changed), lambda: None, said.append)
    writer.belongs_to("01234567-89ab-cdef")
    return writer


def _counts(rows: list[MinuteMetrics]) -> tuple[int, int]:
    return sum(row.messages for row in rows), sum(row.rejected for row in rows)


def test_a_batch_that_is_repeated_replaces_itself(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    pipeline = pipeline_for(nsqd, tmp_path, "repeated", dead_letters={"topic": "repeated.dead"})
    batch = batch_of(spark, [*good(range(20)), b"nope"])
    said: list[list[MinuteMetrics]] = []
    writer_of(pipeline, SCHEMA, said)(batch, 5)
    first = {name: table(spark, pipeline, name) for name in ("data", "rejected")}
    writer_of(pipeline, SCHEMA, said)(batch, 5)
    assert {name: Counter(table(spark, pipeline, name)) for name in first} == {
        name: Counter(rows) for name, rows in first.items()
    }
    assert [len(parts(pipeline, name)) > 0 for name in ("data", "rejected", "metrics")] == [True] * 3
    assert [(rows[0].batch_number, *_counts(rows)) for rows in said] == [(5, 21, 1)] * 2
    assert sum(row.messages for row in read_metrics(pipeline)) == 21
    # With a schema that no message fits, as if it had been changed between a crash and the restart.
    writer_of(pipeline, "user INT NOT NULL", said)(batch, 5)
    assert parts(pipeline, "data") == []
    assert len(table(spark, pipeline, "rejected")) == 21
    writer_of(pipeline, SCHEMA, said)(batch_of(spark, good(range(20))), 5)
    assert (parts(pipeline, "rejected"), len(table(spark, pipeline))) == ([], 20)
    # Each repetition published them again: a topic takes nothing back.
    assert len(letters(nsqd, "repeated.dead", 23)) == 23


def test_raw_bodies_are_kept_as_they_are(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    pipeline = pipeline_for(nsqd, tmp_path, "raw", schema="")
    bodies = [bytes([number]) * 3 for number in range(256)]
    publish(nsqd, "raw", bodies)
    assert run_pipeline(pipeline, spark=spark, available_now=True).rejected == 0
    assert {bytes(row.body) for row in table(spark, pipeline)} == set(bodies)


def test_a_type_that_readers_could_not_read_beside_the_old_one_is_refused(
    spark: SparkSession, nsqd: Running, tmp_path: Path
) -> None:
    pipeline = pipeline_for(nsqd, tmp_path, "evolved", schema="n INT, at TIMESTAMP")
    body = b'{"n": 1, "price": 1.50, "at": "2026-01-02T03:04:05Z"}'
    writer_of(pipeline, pipeline.schema, [])(batch_of(spark, [body]), 0)
    table = Path(pipeline.place("data").removeprefix("file://"))
    for ddl, said in (
        ("n BIGINT, at TIMESTAMP", "field n is INT in the table, and would be BIGINT"),
        ("m INT, at TIMESTAMP", "field n is missing, which the table has"),
        ("", "bodies were rows of fields in the table, and would be bytes"),
    ):
        with pytest.raises(InvalidOption, match=said):
            run_pipeline(pipeline_for(nsqd, tmp_path, "evolved", schema=ddl), spark=spark, available_now=True)
    more = "price DECIMAL(5, 2), n INT, at TIMESTAMP"
    check_table(pipeline, struct_type(more))
    for number in (1, 2):
        writer_of(pipeline, more, [])(batch_of(spark, [body]), number)
    assert {path.name for path in (table / "_schema").glob("*.json")} == {"000001.json", "000002.json"}
    (table / "_schema" / "000003.json").write_text('{"format": 1, "sch')  # of a process that was killed
    with pytest.raises(InvalidOption, match="field price is missing"):
        check_table(pipeline, struct_type(pipeline.schema))
    rows = spark.read.option("mergeSchema", "true").parquet(pipeline.place("data")).collect()
    assert [row.body.price for row in sorted(rows, key=lambda row: row.batch)] == [None, *[Decimal("1.50")] * 2]
    # Times are those of Parquet, in UTC.
    from pyarrow import parquet

    for part in parts(pipeline, "data"):
        columns = parquet.ParquetFile(table / part).schema_arrow
        times = [columns.field("timestamp"), columns.field("seen_at"), columns.field("body").type.field("at")]
        assert {str(each.type) for each in times} == {"timestamp[us, tz=UTC]"}


def test_what_cannot_begin_says_so(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    away = {"nsqd_tcp_addresses": "127.0.0.1:1", "nsqd_http_addresses": "127.0.0.1:1"}
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        run_pipeline(pipeline_for(nsqd, tmp_path, "begin", source=away), spark=spark)
    (tmp_path / "file").write_text("")
    nowhere = pipeline_for(nsqd, tmp_path, "begin", checkpoint=str(tmp_path / "file" / "checkpoint"))
    with pytest.raises(NotBegun, match=r"cannot write to .*/file: (Not a directory|File exists)"):
        run_pipeline(nowhere, spark=spark, available_now=True)
    pipeline = pipeline_for(nsqd, tmp_path, "begin")
    with claimed(pipeline.place("checkpoint")), pytest.raises(NotBegun, match="another run uses the checkpoint"):
        run_pipeline(pipeline, spark=spark, available_now=True)


def test_a_checkpoint_with_spark_s_state_is_refused_until_that_is_removed(
    spark: SparkSession, nsqd: Running, tmp_path: Path
) -> None:
    """A pipeline has made it that dropped copies by Spark; its last batch is staged, and not written."""
    pipeline = pipeline_for(nsqd, tmp_path, "older", source={"max_messages": "40"})
    publish(nsqd, "older", good(range(100)))
    rows = spark.readStream.format("nsq").options(**pipeline.source_given).load()
    rows = rows.withColumn("seen_at", F.current_timestamp()).withWatermark("seen_at", "10 minutes")
    rows = rows.dropDuplicatesWithinWatermark(["nsqd_address", "topic", "id"])
    written: list[int] = []

    def write(batch: DataFrame, number: int) -> None:
        found = [json.loads(bytes(row.body))["number"] for row in batch.collect()]
        if number:
            raise RuntimeError("killed")
        written.extend(found)

    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", pipeline.place("checkpoint"))
    with pytest.raises(StreamingQueryException, match="killed"):
        query.trigger(availableNow=True).start().awaitTermination()
    state = tmp_path / "out" / "checkpoint" / "state"
    for _ in range(2):
        with pytest.raises(NotBegun, match=rf"older gnsq_like.* remove \S+{state}"):
            run_pipeline(pipeline, spark=spark, available_now=True)
    shutil.rmtree(state)
    run_pipeline(pipeline, spark=spark, available_now=True)
    found = [row.body.number for row in table(spark, pipeline)]
    assert Counter(written + found) == Counter(range(100))
    assert len(written) == 40


def test_a_run_that_is_stopped_goes_on_where_it_was(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    pipeline = pipeline_for(nsqd, tmp_path, "stopped", trigger=0)
    publish(nsqd, "stopped", good(range(50)))
    seen: list[Snapshot] = []
    last = run_pipeline(pipeline, spark=spark, watch=seen.append, stop=lambda: bool(seen) and seen[-1].messages == 50)
    assert (last.messages, last.is_over) == (50, True)
    publish(nsqd, "stopped", good(range(50, 60)))
    assert run_pipeline(pipeline, spark=spark, available_now=True).messages == 10
    assert Counter(row.body.number for row in table(spark, pipeline)) == Counter(range(60))
