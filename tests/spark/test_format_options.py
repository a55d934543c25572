"""The options: reading their text, and the errors if it is wrong."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.errors import InvalidName, InvalidOption, UsageError
from gnsq_like.spark.format_options import COLUMNS, PARSED, SourceOptions, ddl_of, parse_options, size

LEAST = {
    "topic": "clicks",
    "channel": "spark",
    "nsqd_tcp_addresses": "127.0.0.1:4150",
    "nsqd_http_addresses": "127.0.0.1:4151",
}


def parse(**more: str) -> SourceOptions:
    return parse_options(SourceOptions, LEAST | more)


def test_the_least() -> None:
    options = parse()
    assert options.nsqd_tcp_addresses == ("127.0.0.1:4150",)
    usual = ("id", "body", "timestamp", "attempts", "topic", "channel", "nsqd_address")
    assert options.plain_columns == tuple(options.column_types) == usual
    assert (options.max_messages, options.max_bytes) == (500_000, 256 << 20)
    assert options.msg_timeout == 15.0


@given(st.data())
def test_names_are_read_in_any_case(data: st.DataObject) -> None:
    given_options = {**LEAST, "max_messages": "7", "nsq.client_id": "me"}
    mixed = {
        "".join(data.draw(st.sampled_from([each.lower(), each.upper()])) for each in name): value
        for name, value in given_options.items()
    }
    assert parse_options(SourceOptions, mixed) == parse_options(SourceOptions, given_options)


def test_every_option_of_the_table_is_read() -> None:
    options = parse_options(
        SourceOptions,
        {
            "topic": "clicks",
            "channel": "spark#ephemeral",
            "lookupd_http_addresses": "127.0.0.1:4161, http://lookup:4161",
            "staging_location": "/stage",
            "max_messages": "1000",
            "max_bytes": "64m",
            "min_messages": "10",
            "min_partitions": "4",
            "msg_timeout": "5s",
            "dedupe_within": "90",
            "fail_on_data_loss": "FALSE",
            "unfinished_log": "adopt",
            "wait_in_flight": "true",
            "columns": "body, timestamp_ns",
            "nsq.sample_rate": "5",
            "nsq.heartbeat_interval": "2.5",
            "nsq.connect_timeout": "1500ms",
            "storage.key": "k",
        },
    )
    assert options.lookupd_http_addresses == ("127.0.0.1:4161", "http://lookup:4161")
    assert (options.max_bytes, options.dedupe_within, options.msg_timeout) == (64 << 20, 90.0, 5.0)
    assert (options.fail_on_data_loss, options.unfinished_log) == (False, "adopt")
    assert options.columns == ("body", "timestamp_ns")
    assert options.storage == {"key": "k"}
    connection = options.connection_options()
    assert (connection.sample_rate, connection.heartbeat_interval, connection.msg_timeout) == (5, 2.5, 5.0)
    assert connection.connect_timeout == 1.5
    assert pickle.loads(pickle.dumps(options)) == options


def several(**more: str) -> SourceOptions:
    return parse_options(SourceOptions, {name: value for name, value in LEAST.items() if name != "topic"} | more)


def test_several_topics() -> None:
    options = several(topics="clicks, views/other,clicks", topics_pattern=r"orders\.[a-z]+")
    assert options.named == (("clicks", "spark"), ("views", "other"))
    topics = ("clicks", "views", "orders.new", "orders.new.dead", "orders.")
    assert [options.channel_of(topic) for topic in topics] == ["spark", "other", "spark", None, None]
    assert pickle.loads(pickle.dumps(options)) == options
    one = parse()
    assert one.named == (("clicks", "spark"),)


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        ({}, "topic=None: it must be given, or topics, or topics_pattern"),
        ({"topics": "a/b,a/c"}, "topic a is there twice"),
        ({"topics": "a b"}, "topics='a b'"),
        ({"topics_pattern": "v("}, "it is no regular expression"),
    ],
)
def test_wrong_topics_are_refused(given_options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        several(**given_options)
    assert message in str(raised.value)


@pytest.mark.parametrize("topics", ["a,b", "a/x,b"])
def test_a_topic_without_a_channel_is_refused(topics: str) -> None:
    given_options = {name: value for name, value in LEAST.items() if name not in {"topic", "channel"}}
    with pytest.raises(InvalidOption, match="channel=None: it must be given"):
        parse_options(SourceOptions, {**given_options, "topics": topics})
    assert parse_options(SourceOptions, {**given_options, "topics": "a/x,b/y"}).channel == ""


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        ({"topics": "views"}, "give either it or topics"),
        ({"topics_pattern": "v.*"}, "give either it or topics_pattern"),
        ({"max_mesages": "5"}, "did you mean max_messages"),
        ({"maxMessages": "5"}, "it is called max_messages"),
        ({"stagingLocation": "/stage"}, "it is called staging_location"),
        ({"startingOffsets": "earliest"}, "NSQ has no offsets"),
        ({"subscribe": "clicks"}, "it is called topic, or topics for several"),
        ({"maxOffsetsPerTrigger": "5"}, "it is called max_messages"),
        ({"nsq.snapy": "true"}, "no such option"),
        ({"nsq.msg_timeout": "5"}, "msg_timeout"),
        ({"nsq.sample_rate": "150"}, "sample_rate"),
        ({"max_messages": "many"}, "whole number"),
        ({"max_messages": "0"}, "it must be at least 1"),
        ({"max_bytes": "5 parsecs"}, "size"),
        ({"dedupe_within": "soon"}, "duration"),
        ({"dedupe_window": "5m"}, "it is called dedupe_within"),
        ({"msg_timeout": "10ms"}, "it must be at least 1s"),
        ({"fail_on_data_loss": "perhaps"}, "true or false"),
        ({"dedupe": "window"}, "dedupe_within replaces it"),
        ({"columns": "key"}, "there is no column key"),
        ({"nsqd_tcp_addresses": "localhost"}, "host:port"),
        ({"nsqd_http_addresses": "one:1,two:2"}, "in the same order"),
        ({"lookupd_http_addresses": "127.0.0.1:4161"}, "either lookupd_http_addresses"),
    ],
)
def test_what_is_wrong_is_said(given_options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        parse(**given_options)


def test_what_is_missing_is_said() -> None:
    with pytest.raises(InvalidOption, match="topic"):
        parse_options(SourceOptions, {"channel": "spark"})
    with pytest.raises(InvalidName, match="channel"):
        parse(channel="no channel")


def test_all_columns() -> None:
    assert list(parse(columns="all").column_types) == list(COLUMNS)
    assert list(parse(columns="all", schema="a INT").column_types) == [*COLUMNS, *PARSED]


def test_a_schema_makes_a_struct_of_the_body() -> None:
    options = parse(schema="user STRING NOT NULL, at TIMESTAMP", columns="body, reason, size")
    assert ddl_of(options) == "body STRUCT<user STRING NOT NULL, at TIMESTAMP>, reason STRING, size INT"
    assert options.plain_columns == ("size", "body")
    assert ddl_of(parse(schema="struct<a: INT>", columns="body")) == "body struct<a: INT>"
    assert list(parse(schema="a INT").column_types)[-2:] == ["raw", "reason"]


def test_topics_have_schemas_and_units_of_their_own() -> None:
    given_options = {"topics": "Shop.Clicks, views", "schema": "a INT", "schema.Shop.Clicks": "b INT"}
    options = several(**given_options, **{"timestamp_unit.views": "ms", "timestamp_unit": "ns"})
    assert (options.body_of("Shop.Clicks"), options.body_of("views")) == ("body_shop_clicks", "body")
    assert (options.unit_of("Shop.Clicks"), options.unit_of("views")) == ("ns", "ms")
    types = options.column_types
    assert (types["body"], types["body_shop_clicks"]) == ("STRUCT<a INT>", "STRUCT<b INT>")
    assert several(topics="a,b", **{"schema.a": "x INT"}).column_types["body"] == "BINARY"


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        ({"topics": "a", "schema.b": "x INT"}, "schema.b='x INT': it must name one of the topics"),
        ({"topics": "a,A", "schema.a": "x INT"}, "no two that differ in case alone"),
        ({"topics": "a.b,a-b", "schema.a.b": "x INT", "schema.a-b": "x INT"}, "two topics have the column body_a_b"),
        ({"topics": "a", "timestamp_unit.a": "h"}, "timestamp_unit.a='h': it must be one of s, ms, us, ns"),
        ({"topics": "a,b", "schema.a": "x INT", "columns": "body,reason"}, "only there together with body, body_a"),
        ({"topics": "a", "columns": "reason"}, "there is no column reason"),
        ({"topics": "a", "schema": " "}, "it is empty"),
    ],
)
def test_wrong_schemas_are_refused(given_options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=re.escape(message)):
        several(**given_options)


@pytest.mark.parametrize(("timeout", "wait", "idle"), [("1", 0.125, 0.15), ("15s", 1.875, 0.15), ("10m", 75, 6)])
def test_the_longest_wait_and_pause_depend_on_the_time_out(timeout: str, wait: float, idle: float) -> None:
    options = parse(msg_timeout=timeout)
    assert (options.fetch_max_wait, options.fetch_idle) == (wait, idle)


@given(st.integers(1, 10**6), st.sampled_from([("", 1), ("b", 1), ("k", 1024), ("KB", 1024), ("m", 1 << 20)]))
def test_sizes(amount: int, unit: tuple[str, int]) -> None:
    assert size()(f"{amount}{unit[0]}") == amount * unit[1]


def test_the_documented_columns() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.rst").read_text()
    table = page.partition("Column            Type")[2].partition("columns=id")[0]
    assert dict(re.findall(r"^``(\w+)``\s+([A-Z]+)", table, re.MULTILINE)) == {
        **{name: kind for name, (kind, _) in COLUMNS.items()},
        **PARSED,
    }
