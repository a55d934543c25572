"""Transformations: what they do to messages, and those that are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StructType

from gnsq_like.errors import InvalidOption
from gnsq_like.spark.format_options import ddl_of
from gnsq_like.spark.pipeline import Pipeline, PipelineFailed, run_pipeline
from gnsq_like.spark.pipeline.selecting import plan_for, selected, type_made
from gnsq_like.spark.pipeline.transform import applied, check_given, load_function, made_column
from tests.support.daemons import Running, running_nsqd
from tests.support.ddl import schema_of
from tests.support.patient import NsqdHTTPClient
from tests.support.pipeline_tables import read_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

SCHEMA = "n INT NOT NULL, user STRING, tags ARRAY<STRING>"
SOURCE = {"topic": "t", "channel": "c", "lookupd_http_addresses": "127.0.0.1:1"}


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Running]:
    with running_nsqd("process") as running:
        yield running


# -- functions that the tests name ------------------------------------------------------------------------


def evens(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Those of even numbers, each twice."""
    body = batch.column("body")
    names = pc.utf8_upper(pc.struct_field(body, "user"))
    made = pa.StructArray.from_arrays([pc.struct_field(body, "n"), names], names=["n", "name"])
    out = batch.set_column(batch.schema.names.index("body"), "body", made)
    places = [at for at, each in enumerate(body.to_pylist()) if each["n"] % 2 == 0]
    return out.take(pa.array([at for at in places for _ in range(2)], pa.int64()))


def without_body(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["id"])


def nothing(batch: pa.RecordBatch) -> None:
    return None


def failing(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise KeyError("no such thing")


def failing_later(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.num_rows:
        raise ZeroDivisionError("by zero")
    return batch


HERE = __name__


# -- without Spark ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"selec": "n"}, "transform.selec='n': there is no such key; did you mean select?"),
        ({"sql": "SELECT 1"}, "there is no such key; there are select, where, function"),
        ({"select": " "}, "it must be a list of expressions"),
        ({"select": []}, "it must be a list of expressions"),
        ({"select": ["n", 5]}, "it must be a list of expressions"),
        ({"where": ["n"]}, "it must be text"),
        ({"function": "module"}, 'it must be "module:name"'),
    ],
)
def test_wrong_tables_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        check_given(given, "transform")
    assert said in str(raised.value)


def test_all_three_may_be_given() -> None:
    check_given({"select": ["body.n AS n"], "where": "body.n > 1", "function": "a.b:c"}, "transform")
    check_given({"select": "body.n"}, "transform")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no_such_module:f", "it cannot be imported: ModuleNotFoundError"),
        (f"{HERE}:no_such", "it cannot be imported: AttributeError"),
        (f"{HERE}:HERE", "it is no function, but str"),
    ],
)
def test_functions_that_cannot_be_had(target: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        load_function({"function": target}, "transform")
    assert load_function({"function": f"{HERE}:evens"}, "transform") is evens


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (nothing, "must return a RecordBatch with the columns that it was given, .* it returned NoneType"),
        (without_body, "of which body may have another type; it returned id"),
        (failing, "function failed: KeyError: 'no such thing'"),
    ],
)
def test_a_function_is_called_without_rows_to_see_the_type_that_it_makes(function: Any, said: str) -> None:
    with pytest.raises(InvalidOption, match=said) as raised:
        type_made({"function": f"{HERE}:{function.__name__}"}, "transform", schema_of(SCHEMA))
    assert "\n" not in str(raised.value)
    made = type_made({"function": f"{HERE}:evens"}, "transform", schema_of(SCHEMA))
    assert made.simpleString() == "struct<n:int,name:string>"
    assert type_made({}, "transform", BinaryType()) == BinaryType()


def test_a_function_that_fails_for_a_row_says_so() -> None:
    with pytest.raises(PipelineFailed, match="function failed: ZeroDivisionError: by zero"):
        applied(failing_later, pa.RecordBatch.from_pydict({"body": [1]}))


# -- with Spark -------------------------------------------------------------------------------------------


def made_by(spark: SparkSession, schema: str = SCHEMA, **transform: Any) -> Any:
    """The type of the bodies that a transformation makes."""
    pipeline = Pipeline(location="/out", source=SOURCE, schema=schema, transform=transform)
    kind: Any = StructType.fromDDL(ddl_of(pipeline.parsed_options))
    rows: Any = spark.createDataFrame([], kind)
    return selected(rows, pipeline).schema[made_column(0)].dataType


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        ({"select": ["count(*) AS c"]}, r"transform.select=.* add up in a query of the table"),
        ({"select": ["explode(body.tags) AS tag"]}, "Several rows of one message are made by a function"),
        ({"select": ["body.nn"]}, "No such struct field `nn`"),
        ({"select": ["nn"]}, "`nn` cannot be resolved"),
        ({"select": ["body.n +"]}, "Syntax error"),
        ({"select": ["body.n", "body.n + 1 AS N"]}, "there are 2 fields n"),
        ({"select": ["NULL AS x"]}, "field x cannot be VOID"),
        ({"where": "body.n"}, "transform.where='body.n': "),
        ({"where": "max(body.n) > 1"}, "transform.where=.* add up in a query of the table"),
    ],
)
def test_what_would_not_mean_each_message_alone_is_refused(
    spark: SparkSession, transform: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidOption, match=said) as raised:
        made_by(spark, **transform)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("select", "kind"),
    [
        (["body.n"], "struct<n:int>"),
        (["body.*"], "struct<n:int,user:string,tags:array<string>>"),
        (["body.n * 2 AS k", "id", "date(seen_at) AS day"], "struct<k:int,id:string,day:date>"),
        ("transform(body.tags, t -> upper(t)) AS tags", "struct<tags:array<string>>"),
    ],
)
def test_the_expressions_are_the_fields_of_the_body(spark: SparkSession, select: Any, kind: str) -> None:
    assert made_by(spark, select=select).simpleString() == kind


def test_a_body_without_a_schema_may_be_selected_from(spark: SparkSession) -> None:
    assert made_by(spark, "", select=["length(body) AS size"]).simpleString() == "struct<size:int>"
    assert made_by(spark, "", where="length(body) > 1") == BinaryType()


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("user STRANG", 'parse.schema=.* it must be columns such as "user STRING, .*STRANG'),
        ("user STRING,", "it must be columns .*Syntax error"),
        (" ", "it must be columns|it needs a field"),
        ("INT", "it must be columns"),
        ("STRUCT<>", "it needs a field"),
        ("user STRING, USER INT", "there are 2 fields user"),
        ("by MAP<INT, INT>", "field by has keys that are not STRING"),
        ("x DECIMAL(39, 2)", "it must be columns .*38"),
        ("a STRUCT<b: ARRAY<TIME>>", r"field a.b\[\] cannot be TIME"),
    ],
)
def test_a_schema_that_bodies_cannot_have_is_refused(spark: SparkSession, schema: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said) as raised:
        plan_for(Pipeline(location="/out", source=SOURCE, schema=schema))
    assert "\n" not in str(raised.value)
    topics = {"t": {"schema": schema, "channel": "c"}}
    source = {"lookupd_http_addresses": "127.0.0.1:1"}
    with pytest.raises(InvalidOption, match=r"topics\.t\.schema"):
        plan_for(Pipeline(location="/out", source=source, topics=topics))


def pipeline_for(nsqd: Running, directory: Path, topic: str, bodies: list[bytes], **fields: Any) -> Pipeline:
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
    return Pipeline(**{"location": str(directory / "out"), "source": source, "schema": SCHEMA, **fields})


def test_messages_are_written_rejected_or_left_out(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    bodies = [json.dumps({"n": number, "user": "u"}).encode() for number in range(60)]
    transform = {"select": ["body.n AS n", "upper(body.user) AS name"], "where": "body.n >= 10"}
    archive = str(tmp_path / "archive")
    pipeline = pipeline_for(nsqd, tmp_path, "left", [*bodies, b"nope", b"{}"], transform=transform, archive=archive)
    last = run_pipeline(pipeline, spark=spark, available_now=True)
    assert (last.messages, last.rejected) == (62, 2)
    metrics = read_metrics(pipeline)
    assert sum(row.messages for row in metrics) == 62
    assert sum(row.bytes for row in metrics) == sum(map(len, bodies)) + len(b"nope{}")
    rows = spark.read.parquet(pipeline.place("data")).collect()
    assert sorted((row.body.n, row.body.name) for row in rows) == [(number, "U") for number in range(10, 60)]
    assert len({row.id for row in rows}) == 50
    rejected = spark.read.parquet(pipeline.place("rejected")).collect()
    assert {bytes(row.body): row.reason for row in rejected} == {
        b"nope": "it is not JSON: expecting value",
        b"{}": "field n is missing",
    }
    archived = spark.read.parquet(archive).collect()
    assert sorted(bytes(row.body) for row in archived) == sorted([*bodies, b"nope", b"{}"])


@pytest.mark.parametrize("more", [{}, {"where": "body.n >= 0"}])
def test_a_function_makes_rows_in_both_places(
    spark: SparkSession, nsqd: Running, tmp_path: Path, more: dict[str, str]
) -> None:
    bodies = [json.dumps({"n": number, "user": "u"}).encode() for number in range(20)]
    function = {"function": f"{HERE}:evens", **more}
    pipeline = pipeline_for(nsqd, tmp_path, f"evens.{len(more)}", bodies, transform=function)
    assert run_pipeline(pipeline, spark=spark, available_now=True).messages == 20
    rows = spark.read.parquet(pipeline.place("data")).collect()
    wanted = [(number, "U") for number in range(0, 20, 2) for _ in range(2)]
    assert sorted((row.body.n, row.body.name) for row in rows) == wanted
    assert len({row.id for row in rows}) == 10


def test_an_expression_that_fails_ends_the_run_and_names_those_that_do_not(
    spark: SparkSession, nsqd: Running, tmp_path: Path
) -> None:
    bodies = [json.dumps({"n": number, "user": str(number)}).encode() for number in range(60)]
    transform: dict[str, Any] = {"select": ["1 / (body.n - 20) AS n"]}
    pipeline = pipeline_for(nsqd, tmp_path, "poison", bodies, transform=transform)
    with pytest.raises(PipelineFailed, match=r"select or where fails for a message: .* try_divide .*Nothing is lost"):
        run_pipeline(pipeline, spark=spark, available_now=True)
    assert not list((tmp_path / "out" / "data").rglob("*.parquet"))
    transform["select"] = ["try_divide(1, body.n - 20) AS n"]
    assert run_pipeline(pipeline, spark=spark, available_now=True).messages == 60
    assert spark.read.parquet(pipeline.place("data")).where("body.n IS NULL").count() == 1


def test_it_is_checked_before_the_first_batch(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    pipeline = pipeline_for(nsqd, tmp_path, "refused", [b'{"n": 1}'], transform={"select": ["max(body.n) AS m"]})
    with pytest.raises(InvalidOption, match=r"transform\.select=.*max"):
        run_pipeline(pipeline, spark=spark, available_now=True)
    window = replace(pipeline, transform={"select": ["row_number() OVER (ORDER BY body.n) AS r"]})
    with pytest.raises(PipelineFailed, match=r"[wW]indow"):
        run_pipeline(window, spark=spark, available_now=True)
    assert not (tmp_path / "out" / "checkpoint" / "offsets").exists()
