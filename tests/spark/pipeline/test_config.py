"""A pipeline's configuration: what a file may contain, and the errors of a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnsq_like.errors import InvalidOption, UsageError
from gnsq_like.spark.pipeline.config import BadPipelineFile, Pipeline, load_pipeline

SOURCE = {"topic": "clicks", "channel": "table", "lookupd_http_addresses": "127.0.0.1:4161"}
MINIMAL = """
location = "out"
[source]
topic = "clicks"
channel = "table"
lookupd_http_addresses = ["127.0.0.1:4161", "127.0.0.1:4163"]
"""


def load(directory: Path, text: str) -> Pipeline:
    path = directory / "pipeline.toml"
    path.write_text(text)
    return load_pipeline(path)


def test_a_minimal_file(tmp_path: Path) -> None:
    pipeline = load(tmp_path, MINIMAL)
    assert pipeline.source_options.lookupd_http_addresses == ("127.0.0.1:4161", "127.0.0.1:4163")
    assert pipeline.place("data") == f"file://{tmp_path}/out/data"
    assert pipeline.source_options.staging_location == f"{tmp_path}/out/stage"
    assert (pipeline.schema, pipeline.format, pipeline.sink_options, pipeline.title) == ("", "parquet", None, "clicks")


def test_a_file_that_says_everything(tmp_path: Path) -> None:
    pipeline = load(
        tmp_path,
        """
name = "all"
location = "s3a://bucket/clicks/"
data = "s3a://other/table"
checkpoint = "checkpoint"
format = "delta"
dedupe_within = "1h"
trigger = 2
available_now = true
[source]
topic = "clicks"
channel = "table"
nsqd_tcp_addresses = "127.0.0.1:4150"
nsqd_http_addresses = "127.0.0.1:4151"
staging_location = "s3://bucket/stage"
wait_in_flight = true
nsq.client_id = "pipeline"
[parse]
schema = "user STRING"
stop_above = 1
[dead_letters]
topic = "clicks.dead"
retries = 5
[table]
maintain_every = "1h"
[table.options]
AWS_REGION = "eu-central-1"
"some.thing" = true
[spark]
spark.executor.memory = "2g"
"spark.executor.cores" = 2
""",
    )
    assert (pipeline.dedupe_within, pipeline.trigger, pipeline.available_now) == (3600.0, 2.0, True)
    assert pipeline.place("data") == "s3a://other/table"
    assert pipeline.place("metrics") == "s3a://bucket/clicks/metrics"
    assert pipeline.place("checkpoint") == f"file://{tmp_path}/checkpoint"
    assert pipeline.source_options.wait_in_flight
    assert pipeline.source_options.nsq == {"client_id": "pipeline"}
    assert pipeline.sink_options is not None
    assert (pipeline.sink_options.nsqd_tcp_addresses, pipeline.sink_options.retries) == (("127.0.0.1:4150",), 5)
    assert pipeline.spark == {"spark.executor.memory": "2g", "spark.executor.cores": "2"}
    assert pipeline.format_options == {"AWS_REGION": "eu-central-1", "some.thing": "true"}
    assert pipeline.table_options.maintain_every == 3600
    assert pipeline.title == "all"
    assert pipeline.stop_above == 1.0


def test_dead_letters_go_to_the_source_s_nsqds_unless_others_are_named() -> None:
    same = Pipeline(location="/out", source={**SOURCE, "nsq.tls_v1": "true"}, dead_letters={"topic": "dead"})
    assert same.sink_options is not None
    assert same.sink_options.lookupd_http_addresses == ("127.0.0.1:4161",)
    assert same.sink_options.nsq == {"tls_v1": "true"}
    other = Pipeline(location="/out", source=SOURCE, dead_letters={"topic": "dead", "nsqd_tcp_addresses": "h:4150"})
    assert other.sink_options is not None
    assert (other.sink_options.nsqd_tcp_addresses, other.sink_options.nsq) == (("h:4150",), {})


SEVERAL = """
location = "out"
[source]
channel = "table"
lookupd_http_addresses = ["127.0.0.1:4161"]
[parse]
schema = "user STRING"
[topics.clicks]
[topics."orders.new"]
channel = "orders"
schema = "n INT"
timestamp_unit = "ms"
data = "elsewhere"
"""


def test_topics_with_their_own_schemas_and_tables(tmp_path: Path) -> None:
    pipeline = load(tmp_path, SEVERAL)
    assert [str(of) for of in pipeline.source_options.named] == ["clicks/table", "orders.new/orders"]
    assert (pipeline.is_by_topic, pipeline.title) == (True, "clicks, orders.new")
    clicks, orders = pipeline.for_topic("clicks"), pipeline.for_topic("orders.new")
    assert (clicks.schema, clicks.timestamp_unit, clicks.place("data")) == (
        "user STRING",
        "s",
        f"file://{tmp_path}/out/data/clicks",
    )
    assert (orders.schema, orders.timestamp_unit, orders.place("data")) == (
        "n INT",
        "ms",
        f"file://{tmp_path}/elsewhere",
    )
    assert orders.source_options.named == (("orders.new", "orders"),)
    for each in (clicks, orders):
        assert each.for_topic("any") is each
        assert {each.place(name) for name in ("rejected", "metrics", "checkpoint")} == {
            pipeline.place(name) for name in ("rejected", "metrics", "checkpoint")
        }


def test_topics_of_a_pattern_have_tables_of_their_own_if_told_so() -> None:
    source = {"topics_pattern": "orders.*", "channel": "table", "lookupd_http_addresses": "127.0.0.1:4161"}
    shared = Pipeline(location="/out", source=source)
    assert (shared.title, shared.for_topic("orders.a")) == ("orders.*", shared)
    each = Pipeline(location="/out", source=source, table_by_topic=True, topics={"orders.b": {"schema": "n INT"}})
    assert each.for_topic("orders.a#ephemeral").place("data") == "file:///out/data/orders.a%23ephemeral"
    assert (each.for_topic("orders.a").schema, each.for_topic("orders.b").schema) == ("", "n INT")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("[topics.clicks]\nshema = 'x'", "topics.clicks.shema='x': there is no such key; did you mean schema?"),
        ("[topics.orders.new]\nschema = 'x'", '[topics."orders.new"]'),
        ("[topics.'a b']", "topics='a b'"),
        ("[topics.clicks]\ntimestamp_unit = 5", "topics.clicks.timestamp_unit=5: it must be one of s, ms"),
        ("[topics.clicks]\ndata = 'same'\n[topics.views]\ndata = 'same'", "that is the table of topic clicks"),
        ("[topics.views]", "give source.topics, or only the tables [topics.NAME]"),
        ("[topics]\nclicks = 5", "it must be a table: [topics.clicks]"),
    ],
)
def test_wrong_topics_are_refused_in_a_sentence(tmp_path: Path, change: str, said: str) -> None:
    text = MINIMAL if "give source.topics" in said else MINIMAL.replace('topic = "clicks"', "")
    with pytest.raises(UsageError) as raised:
        load(tmp_path, text + change)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("locatoin = 'x'", "locatoin='x': there is no such key; did you mean location?"),
        ("format = 'csv'", "it must be one of parquet, delta, iceberg"),
        ("table.options.uri = 'x'", "table.options='uri': only the formats delta and iceberg have options"),
        ("table.compact_after = '1h'", "table.compact_after='1h': plain files are not compacted"),
        ("table.keep_data = '1h'", "table.keep_data='1h': it must be at least 1d"),
        ("table.keep_dat = '1d'", "table.keep_dat='1d': there is no such option; did you mean keep_data?"),
        ("format = 5", "format=5: it must be one of parquet, delta, iceberg"),
        ("data = 5", "it must be an absolute path"),
        ("trigger = 'often'", "trigger='often': it must be a duration such as"),
        ("trigger = -1", "trigger=-1: it must be a duration such as"),
        ("trigger = true", "trigger=True: it must be a duration such as"),
        ("parse.stop_above = 1.5", "parse.stop_above=1.5: it must be a number from 0 to 1"),
        ("available_now = 'perhaps'", "it must be true or false"),
        ("source = 5", "it must be a table: [source]"),
        ("parse.shema = 'x'", "parse.shema='x': there is no such key; did you mean schema?"),
        ("http_address = 'nowhere'", "http_address='nowhere'"),
        ("parse = 'x'", "it must be a table: [parse]"),
        ("dead_letters.retries = 1", "dead_letters.topic"),
        ("dead_letters.topic = 'clicks'", "dead letters would come back forever"),
        ("dead_letters.topic = 'a b'", "topic"),
        ("dead_letters.topik = 'a'", "did you mean topic?"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(tmp_path: Path, change: str, said: str) -> None:
    text = change if change.startswith("source") else change + MINIMAL
    text = "location = 'out'\n" + text if change.startswith("source") else text
    with pytest.raises(UsageError) as raised:
        load(tmp_path, text)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topic": None}, "source.topic=None: it must be given"),
        ({"topik": "x"}, "there is no such option; did you mean topic?"),
        ({"channel": "a b"}, "channel"),
        ({"max_messages": "many"}, "source.max_messages='many': it must be a whole number"),
        ({"staging_location": "hdfs://host/stage"}, "the stage must be reachable from Python"),
        ({"schema": "n INT"}, "give parse.schema, or the schema of [topics.NAME]"),
        ({"columns": "id,body"}, "the pipeline chooses the columns itself"),
    ],
)
def test_a_wrong_source_is_refused_with_its_option(change: dict[str, Any], said: str) -> None:
    given = {name: value for name, value in {**SOURCE, **change}.items() if value is not None}
    with pytest.raises(UsageError) as raised:
        Pipeline(location="/out", source=given)
    assert said in str(raised.value)


@pytest.mark.parametrize("place", ["location", "data", "checkpoint"])
def test_a_relative_place_is_refused_where_there_is_no_file(place: str) -> None:
    fields: dict[str, Any] = {"location": "/out", "source": SOURCE, place: "relative"}
    with pytest.raises(InvalidOption, match="absolute path"):
        Pipeline(**fields)


def test_a_stage_on_a_store_that_python_cannot_reach_has_to_be_named() -> None:
    with pytest.raises(InvalidOption, match=r"source\.staging_location"):
        Pipeline(location="hdfs://host/clicks", source=SOURCE)
    pipeline = Pipeline(location="hdfs://host/clicks", source={**SOURCE, "staging_location": "/mnt/stage"})
    assert pipeline.source_options.staging_location == "/mnt/stage"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("location = ", "is not TOML"),
        ("\udcff", "is not TOML"),
        ("[source]\n", "location is missing"),
        ("location = '/x'", "source is missing"),
    ],
)
def test_what_is_no_pipeline(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadPipelineFile, match=said):
        load_pipeline(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadPipelineFile, match=r"cannot read .*none\.toml: No such file"):
        load_pipeline(tmp_path / "none.toml")
