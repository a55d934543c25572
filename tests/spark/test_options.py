"""The options: reading their text, and the errors if it is wrong."""

from __future__ import annotations

import pickle
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.errors import InvalidName, InvalidOption, UsageError
from gnsq_like.spark.options import COLUMNS, DEFAULT_COLUMNS, SourceOptions, parse_options, size

LEAST = {
    "topic": "clicks",
    "channel": "spark",
    "nsqdTcpAddresses": "127.0.0.1:4150",
    "nsqdHttpAddresses": "127.0.0.1:4151",
}


def parse(**more: str) -> SourceOptions:
    return parse_options(SourceOptions, LEAST | more)


def test_the_least() -> None:
    options = parse()
    assert options.nsqd_tcp_addresses == ("127.0.0.1:4150",)
    assert options.columns == DEFAULT_COLUMNS
    assert options.max_messages is None
    assert options.msg_timeout == 15.0


@given(st.data())
def test_names_are_read_in_any_case(data: st.DataObject) -> None:
    given_options = {**LEAST, "maxMessagesPerTrigger": "7", "nsq.client_id": "me"}
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
            "lookupdHttpAddresses": "127.0.0.1:4161, http://lookup:4161",
            "stagingLocation": "/stage",
            "maxMessagesPerTrigger": "1000",
            "maxBytesPerTrigger": "64m",
            "minMessagesPerTrigger": "10",
            "maxTriggerDelay": "15m",
            "minPartitions": "4",
            "segmentMessages": "500",
            "segmentBytes": "1g",
            "fetchMaxWaitMs": "500",
            "fetchIdleMs": "50",
            "msgTimeoutMs": "5000",
            "pollIntervalMs": "100",
            "httpTimeoutMs": "1000",
            "dedupe": "Window",
            "dedupeRetention": "7d",
            "dedupeWindow": "90s",
            "failOnDataLoss": "FALSE",
            "unfinishedLog": "adopt",
            "createTopicAndChannel": "false",
            "availableNowWaitInFlight": "true",
            "includeColumns": "body, timestamp_ns",
            "batchMode": "drain",
            "nsq.sample_rate": "5",
            "nsq.heartbeat_interval": "2.5",
            "storage.key": "k",
        },
    )
    assert options.lookupd_http_addresses == ("127.0.0.1:4161", "http://lookup:4161")
    assert (options.max_bytes, options.segment_bytes) == (64 << 20, 1 << 30)
    assert (options.max_trigger_delay, options.dedupe_retention, options.dedupe_window) == (900.0, 604_800.0, 90.0)
    assert (options.fetch_max_wait, options.fetch_idle, options.msg_timeout) == (0.5, 0.05, 5.0)
    assert (options.dedupe, options.fail_on_data_loss, options.unfinished_log) == ("window", False, "adopt")
    assert options.columns == ("body", "timestamp_ns")
    assert options.storage == {"key": "k"}
    connection = options.connection_options()
    assert (connection.sample_rate, connection.heartbeat_interval, connection.msg_timeout) == (5, 2.5, 5.0)
    assert pickle.loads(pickle.dumps(options)) == options


def several(**more: str) -> SourceOptions:
    return parse_options(SourceOptions, {name: value for name, value in LEAST.items() if name != "topic"} | more)


def test_several_topics() -> None:
    options = several(topics="clicks, views/other,clicks", topicsPattern=r"orders\.[a-z]+")
    assert options.only is None
    assert options.named == (("clicks", "spark"), ("views", "other"))
    topics = ("clicks", "views", "orders.new", "orders.new.dead", "orders.")
    assert [options.channel_of(topic) for topic in topics] == ["spark", "other", "spark", None, None]
    assert pickle.loads(pickle.dumps(options)) == options
    one = parse()
    assert (one.only, one.named) == (("clicks", "spark"), (("clicks", "spark"),))


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        ({}, "topic=None: it must be given, or topics, or topicsPattern"),
        ({"topics": "a/b,a/c"}, "topic a is there twice"),
        ({"topics": "a b"}, "topics='a b'"),
        ({"topicsPattern": "v("}, "it is no regular expression"),
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
        ({"topicsPattern": "v.*"}, "give either it or topicsPattern"),
        ({"maxMessagePerTrigger": "5"}, "did you mean maxMessagesPerTrigger"),
        ({"startingOffsets": "earliest"}, "NSQ has no offsets"),
        ({"nsq.snapy": "true"}, "no such option"),
        ({"nsq.msg_timeout": "5"}, "msgTimeoutMs"),
        ({"nsq.sample_rate": "150"}, "sample_rate"),
        ({"maxMessagesPerTrigger": "many"}, "whole number"),
        ({"maxMessagesPerTrigger": "0"}, "it must be at least 1"),
        ({"maxBytesPerTrigger": "5 parsecs"}, "size"),
        ({"maxTriggerDelay": "soon"}, "duration"),
        ({"failOnDataLoss": "perhaps"}, "true or false"),
        ({"dedupe": "all"}, "unconfirmed, window, none"),
        ({"includeColumns": "key"}, "there is no column key"),
        ({"nsqdTcpAddresses": "localhost"}, "host:port"),
        ({"nsqdHttpAddresses": "one:1,two:2"}, "in the same order"),
        ({"lookupdHttpAddresses": "127.0.0.1:4161"}, "either lookupdHttpAddresses"),
        ({"fetchMaxWaitMs": "10000"}, "a quarter of msgTimeoutMs"),
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
    assert parse(includeColumns="all").columns == tuple(COLUMNS)


def test_a_bare_number_is_seconds() -> None:
    assert parse(maxTriggerDelay="90").max_trigger_delay == parse(maxTriggerDelay="1.5 min").max_trigger_delay == 90


@pytest.mark.parametrize(("timeout", "wait"), [("1000", 0.25), ("4000", 1.0), ("8000", 2.0), ("60000", 2.0)])
def test_a_segment_waits_for_a_quarter_of_a_short_time_out(timeout: str, wait: float) -> None:
    assert parse(msgTimeoutMs=timeout).fetch_max_wait == wait


@given(st.integers(1, 10**6), st.sampled_from([("", 1), ("b", 1), ("k", 1024), ("KB", 1024), ("m", 1 << 20)]))
def test_sizes(amount: int, unit: tuple[str, int]) -> None:
    assert size()(f"{amount}{unit[0]}") == amount * unit[1]


def test_the_documented_options_and_their_defaults() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.rst").read_text()
    table = page.partition("Reading a stream")[2].partition("Option  ")[2].partition("The stage")[0]
    rows = dict(re.findall(r"^``(\w+)``\s{1,31}(\S*)", table, re.MULTILINE))
    named = {each.metadata["name"]: each.default for each in fields(SourceOptions) if "name" in each.metadata}
    named["fetchMaxWaitMs"] = parse().fetch_max_wait
    assert set(rows) == set(named) - {"batchMode"}
    readers = {
        each.metadata["name"]: each.metadata["read"] for each in fields(SourceOptions) if "name" in each.metadata
    }
    for line in table.splitlines():
        found = re.match(r"``(\w+)``", line)
        if found:
            written = line[34:45].strip()
            default = named[found[1]]
            expected = None if default in (MISSING, (), "", None, DEFAULT_COLUMNS) else default
            assert (readers[found[1]](written) if written else None) == expected, found[1]


def test_the_documented_columns() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.rst").read_text()
    table = page.partition("Column            Type")[2].partition("includeColumns=id")[0]
    assert dict(re.findall(r"^``(\w+)``\s+([A-Z]+)", table, re.MULTILINE)) == {
        name: kind for name, (kind, _) in COLUMNS.items()
    }
