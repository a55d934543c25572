"""spark.read.format("nsq"): it leaves the messages, and errors are plain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gnsq_like.http.nsqd import ChannelStats
from tests.support.daemons import Running, running_nsqd, running_nsqlookupd, wait_for
from tests.support.patient import LookupdClient, NsqdHTTPClient
from tests.support.spark_engine import PATIENT

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, PythonException

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

KINDS = ["process", pytest.param("real", marks=[pytest.mark.real_nsqd, pytest.mark.spark_long])]


@pytest.fixture(scope="module", params=KINDS)
def nsqd(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running_nsqd(request.param) as running:
        yield running


def fill(nsqd: Running, topic: str, count: int, first: int = 0) -> NsqdHTTPClient:
    client = NsqdHTTPClient(nsqd.http_address)
    client.create_topic(topic)
    client.create_channel(topic, "c")
    client.multi_publish(topic, [b"%d" % number for number in range(first, first + count)])
    return client


def read(spark: SparkSession, topic: str, *nsqds: Running, **options: Any) -> DataFrame:
    given = {
        "topic": topic,
        "channel": "c",
        "nsqd_tcp_addresses": ",".join(each.tcp_address for each in nsqds),
        "nsqd_http_addresses": ",".join(each.http_address for each in nsqds),
        **PATIENT,
    }
    return spark.read.format("nsq").options(**given, **options).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.body) for row in frame.select("body").collect())


def left(client: NsqdHTTPClient, topic: str) -> list[int]:
    """The depth and the messages in flight, once the connections are gone."""

    def channel() -> ChannelStats:
        found = client.stats(topic)["topics"][0]["channels"][0]
        return found

    wait_for(lambda: not channel()["client_count"], "the connections are gone")
    return [channel()["depth"], channel()["in_flight_count"]]


def test_peek_leaves_everything(spark: SparkSession, nsqd: Running) -> None:
    client = fill(nsqd, "peeked", 100)
    frame = read(spark, "peeked", nsqd)
    assert numbers(frame) == list(range(100))
    assert left(client, "peeked") == [100, 0]
    assert numbers(frame) == list(range(100))  # a second action peeks again
    rows = frame.limit(1).collect()
    assert left(client, "peeked") == [100, 0]
    [row] = rows
    assert (row.attempts, row.topic, row.channel, row.nsqd_address) == (3, "peeked", "c", nsqd.tcp_address)
    assert len(row.id) == 16
    assert row.timestamp.year >= 2024


def test_peek_shows_the_first_2500_and_fewer_on_request(spark: SparkSession, nsqd: Running) -> None:
    client = fill(nsqd, "many", 3000)
    assert read(spark, "many", nsqd, min_partitions=4).count() == 2500
    assert read(spark, "many", nsqd, max_messages=10).count() == 10
    assert left(client, "many") == [3000, 0]


def test_several_nsqds_and_chosen_columns(spark: SparkSession, nsqd: Running) -> None:
    with running_nsqd("process") as other:
        fill(nsqd, "several", 30)
        fill(other, "several", 20, first=30)
        frame = read(spark, "several", nsqd, other, columns="nsqd_address, body, timestamp_ns")
        assert frame.columns == ["nsqd_address", "body", "timestamp_ns"]
        rows = frame.collect()
    assert sorted((row.nsqd_address, int(row.body)) for row in rows) == sorted(
        [(nsqd.tcp_address, number) for number in range(30)] + [(other.tcp_address, number) for number in range(30, 50)]
    )
    assert all(row.timestamp_ns > 1_600_000_000_000_000_000 for row in rows)


def test_nsqds_are_found_by_nsqlookupd(spark: SparkSession) -> None:
    with (
        running_nsqlookupd("process") as lookupd,
        running_nsqd("process", lookupd_tcp_addresses=[lookupd.tcp_address]) as one,
    ):
        fill(one, "found", 10)
        lookup = LookupdClient(lookupd.http_address)
        wait_for(lambda: lookup.lookup("found", missing_ok=True).producers, "nsqlookupd lists the topic")
        options = {"topic": "found", "channel": "c", "lookupd_http_addresses": lookupd.http_address, **PATIENT}
        assert numbers(spark.read.format("nsq").options(**options).load()) == list(range(10))


def test_sql(spark: SparkSession, nsqd: Running) -> None:
    fill(nsqd, "sql", 10)
    patient = ", ".join(f"{name} '{value}'" for name, value in PATIENT.items())
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW nsq_sql USING nsq OPTIONS (topic 'sql', channel 'c', {patient}, "
        f"nsqd_tcp_addresses '{nsqd.tcp_address}', nsqd_http_addresses '{nsqd.http_address}')"
    )
    [row] = spark.sql("SELECT count(*) AS n, min(attempts) AS least FROM nsq_sql").collect()
    assert (row.n, row.least) == (10, 1)


# -- errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dedupe": "window"}, "dedupe_within replaces it"),
        ({"startingOffsets": "earliest"}, "NSQ has no offsets"),
    ],
)
def test_wrong_options_are_said_at_load(spark: SparkSession, nsqd: Running, options: dict[str, str], said: str) -> None:
    with pytest.raises(AnalysisException, match=said) as caught:
        read(spark, "wrong", nsqd, **options)
    assert "Traceback" not in str(caught.value)


def test_a_schema_that_is_not_the_source_s(spark: SparkSession, nsqd: Running) -> None:
    options = {"nsqd_tcp_addresses": nsqd.tcp_address, "nsqd_http_addresses": nsqd.http_address}
    frame = spark.read.format("nsq").options(topic="t", channel="c", **options).schema("id STRING, body STRING").load()
    with pytest.raises(AnalysisException, match="choose columns with columns") as caught:
        frame.collect()
    assert "Traceback" not in str(caught.value)


def test_an_nsqd_that_is_away(spark: SparkSession) -> None:
    with running_nsqd("process") as nsqd:
        nsqd.stop()
        with pytest.raises(AnalysisException, match=f"{nsqd.http_address}.*: Connection refused") as caught:
            read(spark, "t", nsqd).collect()
    assert "Traceback" not in str(caught.value)


def test_a_tcp_port_without_an_nsqd(spark: SparkSession, nsqd: Running) -> None:
    fill(nsqd, "tcp", 10)
    with running_nsqd("process") as other:
        other.stop()
        options = {"nsqd_tcp_addresses": other.tcp_address, "nsqd_http_addresses": nsqd.http_address}
        frame = spark.read.format("nsq").options(topic="tcp", channel="c", **options).load()
        with pytest.raises(PythonException, match=f"no connection to {other.tcp_address}") as caught:
            frame.collect()
    assert "Traceback" not in str(caught.value)
