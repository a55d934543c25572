"""Tables with atomic commits in a pipeline: what is refused before Spark runs, and whole runs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from pyspark.sql.types import BinaryType

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.pipeline import Pipeline, PipelineFailed, run_pipeline
from gnsq_like.spark.pipeline.batches import BatchWriter
from gnsq_like.spark.pipeline.destinations import check_table, table_of
from gnsq_like.spark.pipeline.metrics import MinuteMetrics
from gnsq_like.spark.pipeline.selecting import plan_for
from gnsq_like.spark.tables.iceberg import IcebergTable
from tests.support.committed_tables import (
    APPLICATION,
    KINDS,
    Kind,
    add,
    columns,
    duckdb_rows,
    open_at,
    read,
    rows_of,
    write,
)
from tests.support.daemons import running_nsqd
from tests.support.ddl import schema_of
from tests.support.patient import NsqdHTTPClient
from tests.support.pipeline_tables import read_metrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

each_kind = pytest.mark.parametrize("kind", KINDS)


def pipeline_at(directory: Path, kind: str, **fields: Any) -> Pipeline:
    source = {"topic": "clicks", "channel": "table", "lookupd_http_addresses": "127.0.0.1:1"}
    return Pipeline(**{"location": str(directory), "format": kind, "source": source, **fields})


@each_kind
def test_a_change_that_readers_cannot_bear_is_refused(kind: Kind, tmp_path: Path) -> None:
    table = open_at(kind, tmp_path)
    pipeline = pipeline_at(tmp_path, kind, schema="number INT")
    check_table(pipeline, schema_of("number INT"))
    table.prepare(columns("number BIGINT, m MAP<STRING, STRUCT<a: INT>>"))
    check_table(pipeline, schema_of("number BIGINT, more INT, m MAP<STRING, STRUCT<a: INT>>"))
    with pytest.raises(InvalidOption, match="field number is BIGINT in the table, and would be INT"):
        check_table(pipeline, schema_of("number INT, m MAP<STRING, STRUCT<a: INT>>"))
    with pytest.raises(InvalidOption, match="bodies were rows of fields in the table, and would be bytes"):
        check_table(pipeline, BinaryType())
    wider = schema_of("number BIGINT, m MAP<STRING, STRUCT<a: INT, b: INT>>")
    if kind == "delta":
        with pytest.raises(InvalidOption, match="a field is added to the values of the MAP m, and readers"):
            check_table(pipeline, wider)
    else:
        check_table(pipeline, wider)


@each_kind
def test_a_field_may_become_wider_where_the_format_can(kind: Kind, tmp_path: Path) -> None:
    table = open_at(kind, tmp_path)
    narrow, wide = columns("number INT, x FLOAT"), columns("number BIGINT, x DOUBLE")
    pipeline = pipeline_at(tmp_path, kind, schema="number BIGINT, x DOUBLE")
    table.prepare(narrow)
    assert table.commit(APPLICATION, 0, write(table, rows_of([1]), narrow))
    with pytest.raises(InvalidOption, match="field number is INT in the table, and would be SMALLINT"):
        check_table(pipeline, schema_of("number SMALLINT, x FLOAT"))
    if kind == "delta":
        with pytest.raises(InvalidOption, match="field number is INT in the table, and would be BIGINT"):
            check_table(pipeline, schema_of("number BIGINT, x DOUBLE"))
        return
    check_table(pipeline, schema_of("number BIGINT, x DOUBLE"))
    again = open_at(kind, tmp_path)
    again.prepare(wide)
    assert again.columns() == wide
    assert again.commit(APPLICATION, 1, write(again, rows_of([1 << 40]), wide))
    assert sorted(row["body"]["number"] for row in read(kind, tmp_path)) == [1, 1 << 40]
    query = "SELECT body.number FROM {table} ORDER BY 1"
    assert duckdb_rows(kind, tmp_path, query) == [(1,), (1 << 40,)]


@each_kind
def test_a_place_has_one_format(kind: Kind, tmp_path: Path) -> None:
    table = open_at(kind, tmp_path)
    table.prepare(columns())
    add(table, 0, [1])
    check_table(pipeline_at(tmp_path, kind), schema_of("number BIGINT"))
    other = "iceberg" if kind == "delta" else "delta"
    for wrong in ("parquet", other):
        with pytest.raises(InvalidOption, match=f"holds a table of the format {kind}: give data another place"):
            check_table(pipeline_at(tmp_path, wrong), BinaryType())
    plain = tmp_path / "plain" / "data" / "date=2026-11-21" / "hour=13" / "batch=0-000001"
    plain.mkdir(parents=True)
    check_table(pipeline_at(tmp_path / "plain", "parquet"), BinaryType())
    with pytest.raises(InvalidOption, match="holds a table of the format parquet: give data another place"):
        check_table(pipeline_at(tmp_path / "plain", kind), BinaryType())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"data": "s3://bucket/data", "location": "s3://bucket"},
            "table.options.uri=None: it must be given: the catalog",
        ),
        ({"table": {"options.identifier": "clicks"}}, "it must be a namespace and a name, such as nsq.clicks"),
        ({"data": "/tmp/100%"}, "its place cannot have the characters # \\? %"),
    ],
)
def test_a_wrong_catalog_is_refused(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        table_of(pipeline_at(tmp_path, "iceberg", **fields))


def test_each_topic_has_a_table_of_its_own_in_the_catalog(tmp_path: Path) -> None:
    topics: dict[str, dict[str, Any]] = {name: {} for name in ("a.b", "a-b", "a_b")}
    source = {"channel": "table", "lookupd_http_addresses": "127.0.0.1:1"}
    for options, first in (({}, "nsq.all_a_x2eb"), ({"options.identifier": "web.all"}, "web.all_a_x2eb")):
        pipeline = pipeline_at(tmp_path, "iceberg", source=source, topics=topics, name="all", table=options)
        tables = [table_of(pipeline.for_topic(topic)) for topic in topics]
        names = [each.identifier for each in tables if isinstance(each, IcebergTable)]
        assert (names[0], len(set(names))) == (first, 3)
        assert len({each.url for each in tables if each is not None}) == 3


def clicks(numbers: range) -> list[bytes]:
    return [json.dumps({"number": number, "user": f"u{number}"}).encode() for number in numbers]


@each_kind
def test_runs_write_each_message_once_and_later_fields(spark: SparkSession, kind: Kind, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with running_nsqd("process") as nsqd:
        client = NsqdHTTPClient(nsqd.http_address)
        client.create_topic("clicks")
        client.create_channel("clicks", "table")
        source = {
            "topic": "clicks",
            "channel": "table",
            "nsqd_tcp_addresses": nsqd.tcp_address,
            "nsqd_http_addresses": nsqd.http_address,
            "max_messages": "200",
        }
        client.multi_publish("clicks", [*clicks(range(250)), b"nope"])
        pipeline = pipeline_at(out, kind, source=source, schema="number SMALLINT")
        last = run_pipeline(pipeline, spark=spark, available_now=True)
        assert (last.messages, last.rejected) == (251, 1)
        client.multi_publish("clicks", clicks(range(250, 300)))
        wider = pipeline_at(out, kind, source=source, schema="number SMALLINT NOT NULL, user STRING")
        assert run_pipeline(wider, spark=spark, available_now=True).messages == 50
    rows = read(kind, out)
    assert Counter(row["body"]["number"] for row in rows) == Counter(range(300))
    assert {row["body"]["user"] for row in rows} == {None, *(f"u{number}" for number in range(250, 300))}
    assert {(row["topic"], row["channel"], row["attempts"] >= 1) for row in rows} == {("clicks", "table", True)}
    assert len({row["id"] for row in rows}) == 300
    # All columns are there for those who filter by them.
    query = "SELECT count(*), min(epoch_us(timestamp)) < max(epoch_us(seen_at)) FROM {table} WHERE body.number >= 250"
    assert duckdb_rows(kind, out, query) == [(50, True)]
    assert sum(each.messages for each in read_metrics(wider)) == 301


@each_kind
def test_a_batch_that_is_repeated_is_not_added_again(spark: SparkSession, kind: Kind, tmp_path: Path) -> None:
    pipeline = pipeline_at(tmp_path, kind, schema="number BIGINT NOT NULL")
    ddl = "id STRING, body BINARY, timestamp TIMESTAMP, attempts INT, topic STRING, channel STRING, nsqd_address STRING"
    made = spark.range(300).selectExpr(
        "lpad(id, 16, '0') AS id",
        "encode(concat('{\"number\": ', id, '}'), 'UTF-8') AS body",
        "timestamp '2026-11-21 13:59:50Z' AS timestamp",
        "1 AS attempts",
        "'t' AS topic",
        "'c' AS channel",
        "'n' AS nsqd_address",
        "timestamp '2026-11-21 13:59:59.999999Z' AS seen_at",
    )
    assert [field.name for field in made.schema][:-1] == [each.split()[0] for each in ddl.split(", ")]
    written: list[list[MinuteMetrics]] = []
    for number in (3, 3, 4):
        # A new one each time, as after a kill.
        writer = BatchWriter(pipeline, plan_for(pipeline), lambda: None, written.append)
        writer.belongs_to("01234567-89ab")
        writer(made, number)
    assert Counter(row["body"]["number"] for row in read(kind, tmp_path)) == Counter(dict.fromkeys(range(300), 2))
    assert [sum(row.messages for row in rows) for rows in written] == [300] * 3
    assert not list((tmp_path / "rejected").rglob("*.parquet"))
    # An older copy of the checkpoint was put back.
    writer = BatchWriter(pipeline, plan_for(pipeline), lambda: None, written.append)
    writer.belongs_to("01234567-89ab")
    with pytest.raises(PipelineFailed, match="has batch 4 of this query, and batch 3 was to be written"):
        writer(made, 3)
