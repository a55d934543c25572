"""The sink without Spark: its options, its columns, and publishing Arrow batches in a task."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import gevent
import pytest

from gnsq_like.errors import InvalidBody, InvalidName, InvalidOption, UsageError
from tests.support.daemons import KINDS, Kind, Running, running_nsqd
from tests.support.patient import NsqdHTTPClient
from tests.support.peer import PATIENCE, scripted_nsqd

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")

from pyspark.sql.types import (  # noqa: E402
    BinaryType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from gnsq_like.spark.sink import (  # noqa: E402  # noqa: E402
    NotPublished,
    NsqStreamWriter,
    NsqWriter,
    WrongColumns,
    WrongMode,
    publish_batches,
    sink_options,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

#: No nsqd listens there; errors that come before anything runs need none.
NOWHERE = {"nsqd_tcp_addresses": "127.0.0.1:1"}


def publish(address: str, *batches: dict[str, list[Any]], **options: str) -> int:
    arrow = [pa.RecordBatch.from_pydict(batch) for batch in batches]
    return publish_batches(iter(arrow), sink_options({"nsqd_tcp_addresses": address, **options}))


@pytest.fixture(scope="module", params=KINDS)
def nsqd(request: pytest.FixtureRequest) -> Iterator[Running]:
    kind: Kind = request.param
    with running_nsqd(kind) as running:
        yield running


def message_counts(nsqd: Running) -> dict[str, int]:
    topics = NsqdHTTPClient(nsqd.http_address).stats()["topics"]
    return {topic["topic_name"]: topic["message_count"] for topic in topics}


# -- options and columns ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give either it or lookupd_http_addresses"),
        ({**NOWHERE, "lookupd_http_addresses": "127.0.0.1:4161"}, "give either it or lookupd_http_addresses"),
        ({"nsqd_tcp_addresses": "nowhere"}, "the host or the port is missing"),
        ({**NOWHERE, "topic": "no spaces"}, "invalid topic name 'no spaces'"),
        ({**NOWHERE, "nsqd_tcp_adresses": "x"}, "there is no such option; did you mean nsqd_tcp_addresses?"),
        ({**NOWHERE, "retries": "-1"}, "it must be at least 0"),
        ({**NOWHERE, "publish_timeout": "soon"}, "it must be a duration such as"),
        ({**NOWHERE, "max_batch_bytes": "1"}, "it must be at least 64 bytes"),
        ({**NOWHERE, "nsq.heartbeat": "1"}, "heartbeat_interval"),
        ({**NOWHERE, "nsq.heartbeat_interval": "0.5"}, "it must be at least 1"),
    ],
)
def test_wrong_options(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        sink_options(options)
    assert said in str(caught.value)


def test_what_spark_adds_to_a_stream_s_options_is_no_option_of_ours() -> None:
    given = {**NOWHERE, "topic": "t", "checkpointlocation": "/x", "path": "/y", "queryname": "q"}
    assert sink_options(given) == sink_options({**NOWHERE, "topic": "t"})


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"body": StringType()}, {}, "neither an option topic nor a column topic"),
        ({"text": StringType()}, {"topic": "t"}, "no column text: select body"),
        ({"body": LongType()}, {"topic": "t"}, "the column body is of type bigint: select body"),
        ({"topic": StringType()}, {}, "there is no column body"),
        ({"body": StringType(), "Body": StringType()}, {"topic": "t"}, "there is more than one column body"),
        ({"body": StringType(), "defer_ms": StringType()}, {"topic": "t"}, "the column defer_ms is of type string"),
        ({"body": StringType(), "topic": BinaryType()}, {}, "the column topic is of type binary"),
        ({"body": StringType(), "defer_ms": DateType()}, {"topic": "t"}, "the column defer_ms is of type date"),
    ],
)
@pytest.mark.parametrize("writer", [NsqWriter, NsqStreamWriter])
def test_wrong_columns(writer: Any, columns: dict[str, DataType], options: dict[str, str], said: str) -> None:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    with pytest.raises(WrongColumns) as caught:
        writer(schema, False, sink_options({**NOWHERE, **options}))
    assert said in str(caught.value)


@pytest.mark.parametrize("writer", [NsqWriter, NsqStreamWriter])
def test_columns_that_are_right(writer: Any) -> None:
    schema = StructType().add("Topic", StringType()).add("BODY", BinaryType()).add("defer_ms", IntegerType())
    assert writer(schema, False, sink_options(NOWHERE))


@pytest.mark.parametrize("writer", [NsqWriter, NsqStreamWriter])
def test_nothing_is_overwritten(writer: Any) -> None:
    with pytest.raises(WrongMode, match="append"):
        writer(StructType().add("body", StringType()), True, sink_options({**NOWHERE, "topic": "t"}))


# -- rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "options", "error", "said"),
    [
        ({"body": [b"a", None, b"b"]}, {}, InvalidBody, "body is null in 1 of 3 rows"),
        ({"body": ["a", "", ""]}, {}, InvalidBody, "body is empty in 2 of 3 rows"),
        (
            {"body": [b"x" * 9, b"x" * 10]},
            {"max_message_bytes": "9"},
            InvalidBody,
            "a body of 10 bytes is too big: the most is 9",
        ),
        (
            {"body": [b"x" * 57]},
            {"max_batch_bytes": "64"},
            InvalidBody,
            "a body of 57 bytes is too big: the most is 56",
        ),
        ({"body": ["a", "b"], "topic": ["wrong", "a b"]}, {}, InvalidName, "invalid topic name 'a b'"),
        ({"body": ["a", "b"], "topic": ["wrong", None]}, {"topic": ""}, UsageError, "topic is null in 1 of 2 rows"),
        ({"body": ["a", "b"], "defer_ms": [0, -1]}, {}, UsageError, "defer_ms is -1 in a row"),
        ({"body": ["a", "b"], "defer_ms": [0, 1 << 40]}, {}, UsageError, "defer_ms is 1099511627776 in a row"),
    ],
)
def test_a_wrong_row_stops_its_batch_before_anything_of_it_is_published(
    nsqd: Running, batch: dict[str, list[Any]], options: dict[str, str], error: type[Exception], said: str
) -> None:
    given = {name: value for name, value in {"topic": "wrong", **options}.items() if value}
    with pytest.raises(error) as caught:
        publish(nsqd.tcp_address, batch, **given)
    assert said in str(caught.value)
    assert "wrong" not in message_counts(nsqd)


def test_every_size_and_topic_arrives_once(nsqd: Running) -> None:
    sizes = [1, 2, 500, 1000, 1016, 3, 1016, 1016, 1, 7] * 30
    topics = [f"cut{number % 3}" for number in range(len(sizes))]
    batch: dict[str, list[Any]] = {"body": [b"x" * size for size in sizes], "topic": topics}
    assert publish(nsqd.tcp_address, batch, batch, max_batch_bytes="1k", max_batch_messages="7") == 2 * len(sizes)
    counts = message_counts(nsqd)
    assert {topic: counts[topic] for topic in set(topics)} == {
        topic: 2 * count for topic, count in Counter(topics).items()
    }


def test_the_largest_body_fits(nsqd: Running) -> None:
    assert publish(nsqd.tcp_address, {"body": [b"x" * (1 << 20)] * 6}, topic="largest") == 6
    assert message_counts(nsqd)["largest"] == 6


def test_batches_without_rows(nsqd: Running) -> None:
    empty = pa.RecordBatch.from_pydict({"body": pa.array([], pa.string()), "topic": pa.array([], pa.string())})
    assert publish_batches(iter([empty, empty]), sink_options({"nsqd_tcp_addresses": nsqd.tcp_address})) == 0


def test_large_arrow_types_are_taken_too(nsqd: Running) -> None:
    batch = pa.RecordBatch.from_pydict({"body": pa.array(["a"], pa.large_string())})
    assert publish_batches(iter([batch]), sink_options({"nsqd_tcp_addresses": nsqd.tcp_address, "topic": "large"})) == 1
    assert message_counts(nsqd)["large"] == 1


# -- when nsqd does not say OK ------------------------------------------------------------------------


def test_a_mute_nsqd_is_passed_over(nsqd: Running) -> None:
    with scripted_nsqd() as mute:  # takes the connection, and not even IDENTIFY is answered
        addresses = f"{mute.address},{nsqd.tcp_address}"
        batch = {"body": [b"%d" % number for number in range(100)]}
        assert publish(addresses, batch, topic="passed", max_batch_messages="10") == 100
    assert message_counts(nsqd)["passed"] == 100


def test_what_is_not_answered_is_published_to_another(nsqd: Running) -> None:
    with scripted_nsqd() as mute:
        script = gevent.spawn(lambda: mute.accept().identify())
        addresses = f"{mute.address},{nsqd.tcp_address}"
        batch = {"body": [b"%d" % number for number in range(10)]}
        published = publish(
            addresses, batch, batch, topic="around", max_batch_messages="1", publish_timeout="3000ms", retries="3"
        )
        script.get(timeout=PATIENCE)
    assert published == 20
    assert message_counts(nsqd)["around"] == 20


def test_without_retries_it_is_an_error() -> None:
    with scripted_nsqd() as mute:
        script = gevent.spawn(lambda: mute.accept().identify())
        with pytest.raises(NotPublished, match=r"1 messages for topic t were not published: .*not confirmed"):
            publish(mute.address, {"body": ["a"]}, topic="t", publish_timeout="3000ms", retries="0")
        script.get(timeout=PATIENCE)


def test_giving_up_says_how_far_it_came(nsqd: Running) -> None:
    with running_nsqd("ours") as other:

        def batches() -> Iterator[Any]:
            yield pa.RecordBatch.from_pydict({"body": ["a", "b"]})
            other.stop()
            yield pa.RecordBatch.from_pydict({"body": ["c", "d", "e"]})

        options = {"nsqd_tcp_addresses": other.tcp_address, "topic": "t", "publish_timeout": "2000ms", "retries": "1"}
        with pytest.raises(NotPublished, match=r"3 messages for topic t .*published 2 others before"):
            publish_batches(batches(), sink_options(options))


def test_an_nsqd_that_comes_back_is_published_to_again() -> None:
    with running_nsqd("ours") as nsqd:

        def batches() -> Iterator[Any]:
            yield pa.RecordBatch.from_pydict({"body": ["a", "b"]})
            nsqd.stop()
            nsqd.start()
            yield pa.RecordBatch.from_pydict({"body": ["c", "d", "e"]})

        assert publish_batches(batches(), sink_options({"nsqd_tcp_addresses": nsqd.tcp_address, "topic": "back"})) == 5
        assert message_counts(nsqd)["back"] == 3


@pytest.mark.parametrize("column", ["body", "defer_ms"])
def test_a_refusal_is_not_repeated(column: str) -> None:
    batch: dict[str, list[Any]] = {"body": [b"x" * 101]}
    if column == "defer_ms":
        batch = {"body": [b"x"], "defer_ms": [10_000]}
    with running_nsqd("ours", max_msg_size=100, max_req_timeout=5.0) as nsqd:
        with pytest.raises(NotPublished, match=r"refused the publish of .*: E_"):
            publish(nsqd.tcp_address, batch, topic="t")
        assert message_counts(nsqd).get("t", 0) == 0


def wait_for_no_producer(nsqd: Running, topic: str) -> None:
    """Wait until nsqd has closed the last connection that published; blocks the hub, as Spark does."""
    url = f"http://{nsqd.http_address}/stats?format=json&topic={topic}"
    deadline = time.monotonic() + 60
    while True:
        with urlopen(url) as answer:
            if not json.load(answer)["producers"]:
                return
        assert time.monotonic() < deadline, "nsqd keeps the connection"
        time.sleep(0.05)  # between two requests


@pytest.mark.spark_long
@pytest.mark.parametrize("kind", ["process", pytest.param("real", marks=pytest.mark.real_nsqd)])
def test_rows_that_come_after_a_long_time_are_published_once(kind: Kind) -> None:
    """While a task waits for rows from Spark, its hub does not run, and nsqd closes the silent connection."""
    with running_nsqd(kind) as nsqd:

        def batches() -> Iterator[Any]:
            yield pa.RecordBatch.from_pydict({"body": ["a", "b"]})
            wait_for_no_producer(nsqd, "late")
            yield pa.RecordBatch.from_pydict({"body": ["c", "d", "e"]})

        options = {"nsqd_tcp_addresses": nsqd.tcp_address, "topic": "late", "nsq.heartbeat_interval": "1"}
        assert publish_batches(batches(), sink_options(options)) == 5
        assert message_counts(nsqd)["late"] == 5
