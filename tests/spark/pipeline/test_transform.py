"""Transformations: what they do to messages, and those that are refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions

from gnsq_like import NsqdHTTPClient
from gnsq_like.errors import InvalidOption
from gnsq_like.spark.pipeline import Pipeline, PipelineFailed, run_pipeline
from gnsq_like.spark.pipeline.batches import KEPT
from gnsq_like.spark.pipeline.ddl import schema_of
from gnsq_like.spark.pipeline.report import read_metrics
from gnsq_like.spark.pipeline.transform import MOST_REFUSED, Transform, check_given, load_function
from tests.support.daemons import Running, running_nsqd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "n INT NOT NULL, user STRING, tags ARRAY<STRING>"


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Running]:
    with running_nsqd("process") as running:
        yield running


# -- functions that the tests name ------------------------------------------------------------------------


def evens(messages: DataFrame) -> DataFrame:
    return messages.where("n % 2 = 0").selectExpr("n", "upper(user) AS name", "nsq.topic AS origin")


def counted(messages: DataFrame) -> DataFrame:
    return messages.groupBy("user").count()


def of_something_else(messages: DataFrame) -> DataFrame:
    return messages.sparkSession.range(5).toDF("n")


def nothing(messages: DataFrame) -> None:
    return None


def failing(messages: DataFrame) -> DataFrame:
    raise KeyError("no such thing")


HERE = __name__


# -- without Spark ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sq": "SELECT 1"}, "transform.sq='SELECT 1': there is no such key; did you mean sql?"),
        ({"sql": " "}, "it must be text"),
        ({"sql": "SELECT 1", "function": "a:b"}, "give sql or function, not both"),
        ({"sql": "INSERT INTO t SELECT n FROM messages"}, "it must begin with SELECT"),
        ({"sql": "DROP TABLE t"}, "it must begin with SELECT"),
        ({"function": "module"}, 'it must be "module:name"'),
    ],
)
def test_wrong_tables_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        check_given(given, "transform")
    assert said in str(raised.value)


def test_comments_before_select_are_fine() -> None:
    check_given({"sql": "-- what we keep\n /* and\nmore */ select n FROM messages"}, "transform")


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


# -- with Spark -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("SELECT count(*) AS c FROM messages", "it aggregates, which would mean: within each batch alone"),
        ("SELECT user FROM messages GROUP BY user", "it aggregates"),
        ("SELECT a.n FROM messages a JOIN messages b ON a.n = b.n", "it joins"),
        ("SELECT n FROM messages LIMIT 5", "it has a LIMIT"),
        ("SELECT DISTINCT n FROM messages", "it drops duplicates"),
        ("SELECT row_number() OVER (ORDER BY n) AS r FROM messages", "it has a window function"),
        ("SELECT n FROM messages ORDER BY n", "it sorts"),
        ("SELECT n FROM messages UNION ALL SELECT n FROM messages", "it reads the messages more than once"),
        ("SELECT n FROM messages TABLESAMPLE (5 PERCENT)", "it takes a sample"),
        ("SELECT n FROM messages WHERE n IN (SELECT n FROM messages)", "it has a query within an expression"),
        ("SELECT now() AS t FROM messages", r"it calls now\(\), so a repeated batch would give other rows: take nsq"),
        ("SELECT unix_timestamp() AS t FROM messages", r"it calls current_timestamp\(\)"),
        ("SELECT n FROM messages WHERE at_noon = current_date()", "cannot be resolved"),
        ("SELECT n FROM messages WHERE rand() < 0.5", r"it calls rand\(\)"),
        ("SELECT uuid() AS u FROM messages", r"it calls uuid\(\)"),
        ("SELECT monotonically_increasing_id() AS i FROM messages", r"it calls monotonically_increasing_id\(\)"),
        ("SELECT 1 AS one", "it must read the messages, and nothing else"),
        ("SELECT n, n + 1 AS N FROM messages", "it has 2 columns n"),
        ("SELECT n AS nsq FROM messages", "a column is called nsq"),
        ("SELECT NULL AS x FROM messages", "column x is VOID"),
        ("SELECT nn FROM messages", "`nn` cannot be resolved"),
        ("SELECT n FRM messages", "Syntax error"),
        (counted, "it aggregates"),
        (of_something_else, "it must read the messages, and nothing else"),
        (nothing, "it must return a DataFrame, not NoneType"),
        (failing, "it failed: KeyError: 'no such thing'"),
    ],
)
def test_what_would_not_mean_each_message_alone_is_refused(spark: SparkSession, given: Any, said: str) -> None:
    key, text = ("sql", given) if isinstance(given, str) else ("function", f"{HERE}:{given.__name__}")
    with pytest.raises(InvalidOption, match=said) as raised:
        Transform({key: text}).check(spark, schema_of(SCHEMA), KEPT)
    assert str(raised.value).startswith(f"invalid option transform.{key}=")
    assert "\n" not in str(raised.value).replace(text, "")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("SELECT n FROM messages", "struct<n:int>"),
        ("SELECT * FROM messages", "struct<n:int,user:string,tags:array<string>>"),
        ("SELECT m + 1 AS k FROM (SELECT n * 2 AS m FROM messages WHERE n > 1) WHERE m < 9", "struct<k:int>"),
        ("SELECT t, nsq.id FROM messages LATERAL VIEW OUTER explode(tags) x AS t", "struct<t:string,id:string>"),
        ("SELECT transform(tags, t -> upper(t)) AS tags FROM messages", "struct<tags:array<string>>"),
        (evens, "struct<n:int,name:string,origin:string>"),
    ],
)
def test_the_columns_are_the_fields_of_the_body(spark: SparkSession, given: Any, kind: str) -> None:
    key, text = ("sql", given) if isinstance(given, str) else ("function", f"{HERE}:{given.__name__}")
    assert Transform({key: text}).check(spark, schema_of(SCHEMA), KEPT).simpleString() == kind


def test_a_field_with_the_name_of_the_message_s_column_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidOption, match="the field nsq of the schema"):
        Transform({"sql": "SELECT nsq FROM messages"}).check(spark, schema_of("NSQ INT"), KEPT)


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


def test_messages_are_written_rejected_or_filtered(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    tags: dict[int, list[str]] = {number: [f"{number}-{part}" for part in range(number % 4)] for number in range(60)}
    bodies = [json.dumps({"n": number, "user": "u", "tags": each}).encode() for number, each in tags.items()]
    sql = "SELECT n, upper(user) AS name, explode(tags) AS tag FROM messages WHERE n >= 10"
    pipeline = pipeline_for(nsqd, tmp_path, "exploded", [*bodies, b"nope", b"{}"], transform={"sql": sql})
    last = run_pipeline(pipeline, spark=spark, available_now=True)
    without = sum(number < 10 or not each for number, each in tags.items())
    assert (last.messages, last.rejected, last.filtered) == (62, 2, without)
    assert sum(row.filtered for row in read_metrics(pipeline)) == without
    rows = spark.read.parquet(pipeline.place("data")).collect()
    expected = {(number, part): tag for number in range(10, 60) for part, tag in enumerate(tags[number])}
    assert {(row.body.n, row.part): row.body.tag for row in rows} == expected
    assert len(rows) == len(expected)
    assert {row.body.name for row in rows} == {"U"}
    by_message = Counter((row.nsqd_address, row.topic, row.id) for row in rows)
    assert len(by_message) == len({number for number, _ in expected})


def test_a_function_and_bodies_without_a_schema(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    bodies = [json.dumps({"n": number, "user": "u"}).encode() for number in range(20)]
    pipeline = pipeline_for(nsqd, tmp_path, "evens", bodies, transform={"function": f"{HERE}:evens"}, dedupe_within=0)
    last = run_pipeline(pipeline, spark=spark, available_now=True)
    assert (last.messages, last.filtered) == (20, 10)
    rows = spark.read.parquet(pipeline.place("data")).collect()
    assert {(row.body.n, row.body.name, row.body.origin, row.part) for row in rows} == {
        (number, "U", "evens", 0) for number in range(0, 20, 2)
    }
    sql = "SELECT length(body) AS size FROM messages WHERE body <> X'61'"
    raw = pipeline_for(
        nsqd, tmp_path / "raw", "bytes", [b"a", b"bcd"], schema="", transform={"sql": sql}, dedupe_within=0
    )
    assert run_pipeline(raw, spark=spark, available_now=True).filtered == 1
    assert [row.body.size for row in spark.read.parquet(raw.place("data")).collect()] == [3]


def broken(messages: DataFrame) -> DataFrame:
    return messages.select(functions.udf(lambda n: 1 // (n - 7), "int", useArrow=False)("n").alias("n"))


def test_a_message_for_which_it_fails_is_rejected(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    bodies = [json.dumps({"n": number, "user": "x" if number in (3, 40) else "1"}).encode() for number in range(60)]
    sql = "SELECT 1 / (n - 20) AS n, cast(user AS INT) AS user FROM messages WHERE n >= 2"
    pipeline = pipeline_for(nsqd, tmp_path, "poison", [*bodies, b"nope"], transform={"sql": sql}, dedupe_within=0)
    last = run_pipeline(pipeline, spark=spark, available_now=True)
    assert (last.messages, last.rejected, last.filtered) == (61, 4, 2)
    assert spark.read.parquet(pipeline.place("data")).count() == 55
    reasons = {json.loads(row.body)["n"]: row.reason for row in spark.read.parquet(pipeline.place("rejected")).collect()
               if row.body != b"nope"}  # fmt: skip
    assert reasons == {
        3: "transform.sql fails: cast invalid input",
        20: "transform.sql fails: divide by zero",
        40: "transform.sql fails: cast invalid input",
    }
    python = pipeline_for(
        nsqd, tmp_path / "f", "python", bodies[:20], transform={"function": f"{HERE}:broken"}, dedupe_within=0
    )
    assert run_pipeline(python, spark=spark, available_now=True).rejected == 1
    [row] = spark.read.parquet(python.place("rejected")).collect()
    assert row.reason == "transform.function fails: ZeroDivisionError"


def test_one_that_fails_for_many_messages_is_wrong(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    bodies = [json.dumps({"n": 0, "user": "x"}).encode() for _ in range(MOST_REFUSED + 10)]
    pipeline = pipeline_for(
        nsqd, tmp_path, "wrong", bodies, transform={"sql": "SELECT 1 / n AS n FROM messages"}, dedupe_within=0
    )
    with pytest.raises(PipelineFailed, match=r"sql must be wrong: it fails for more than 20 messages .*by zero"):
        run_pipeline(pipeline, spark=spark, available_now=True)


def test_it_is_checked_before_the_first_batch(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    pipeline = pipeline_for(nsqd, tmp_path, "refused", [b'{"n": 1}'], transform={"sql": "SELECT max(n) FROM messages"})
    with pytest.raises(InvalidOption, match=r"transform\.sql=.* it aggregates"):
        run_pipeline(pipeline, spark=spark, available_now=True)
    assert not (tmp_path / "out" / "checkpoint" / "offsets").exists()
