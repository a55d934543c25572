"""The sink on Spark: nsqd delivers what was written, and errors come before anything is published."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from gnsq_like import Reader
from tests.support.daemons import Running, running_nsqd, running_nsqlookupd, wait_for
from tests.support.patient import LookupdClient, NsqdHTTPClient

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, PythonException
from pyspark.sql.functions import udf

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

#: Our nsqd as a process: the test's process runs no hub while it waits for Spark.
KINDS = ["process", pytest.param("real", marks=[pytest.mark.real_nsqd, pytest.mark.spark_long])]


@pytest.fixture(scope="module", params=KINDS)
def nsqd(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running_nsqd(request.param) as running:
        yield running


def depth(nsqd: Running, topic: str) -> int:
    return sum(each["depth"] for each in NsqdHTTPClient(nsqd.http_address).stats(topic)["topics"])


def consumed(nsqd: Running, topic: str, count: int) -> list[bytes]:
    """The bodies of a topic's first ``count`` messages. If they do not come, the limit of the test ends it."""
    bodies: list[bytes] = []
    reader = Reader(
        topic,
        "check",
        lambda message: bodies.append(message.body),
        nsqd_tcp_addresses=nsqd.tcp_address,
        max_in_flight=100,
    )
    reader.start()
    try:
        wait_for(lambda: len(bodies) >= count, f"{count} messages of {topic}", math.inf)
    finally:
        reader.stop()
    return bodies


def write(frame: DataFrame, nsqd: Running, mode: str = "append", **options: Any) -> None:
    given = {"nsqd_tcp_addresses": nsqd.tcp_address, **options}
    frame.write.format("nsq").options(**given).mode(mode).save()


def test_rows_become_messages(spark: SparkSession, nsqd: Running) -> None:
    write(spark.range(3000).selectExpr("cast(id AS string) AS body"), nsqd, topic="numbers", max_batch_messages=100)
    assert depth(nsqd, "numbers") == 3000
    assert Counter(consumed(nsqd, "numbers", 3000)) == Counter(b"%d" % number for number in range(3000))


def test_bytes_stay_what_they_are(spark: SparkSession, nsqd: Running) -> None:
    body = bytes(range(256))
    write(spark.createDataFrame([(bytearray(body),)], "body BINARY"), nsqd, topic="bytes")
    assert consumed(nsqd, "bytes", 1) == [body]


def test_each_row_has_its_topic_or_the_option_s(spark: SparkSession, nsqd: Running) -> None:
    rows = [("first", "a"), ("second", "b"), (None, "c"), ("first", "d")]
    frame = spark.createDataFrame(rows, "TOPIC STRING, Body STRING").coalesce(1)
    write(frame, nsqd, topic="others")
    assert sorted(consumed(nsqd, "first", 2)) == [b"a", b"d"]
    assert consumed(nsqd, "second", 1) == [b"b"]
    assert consumed(nsqd, "others", 1) == [b"c"]


def test_deferred_rows_wait(spark: SparkSession, nsqd: Running) -> None:
    rows = [("now", 0), ("later", 60_000), ("soon", 50), ("whenever", None)]
    write(spark.createDataFrame(rows, "body STRING, defer_ms BIGINT"), nsqd, topic="deferred")
    http = NsqdHTTPClient(nsqd.http_address)
    assert sorted(consumed(nsqd, "deferred", 3)) == [b"now", b"soon", b"whenever"]
    [topic] = http.stats("deferred")["topics"]
    assert [topic["message_count"], topic["channels"][0]["deferred_count"]] == [4, 1]


def test_batches_are_cut_by_bytes(spark: SparkSession, nsqd: Running) -> None:
    frame = spark.range(1).selectExpr("explode(sequence(1, 40)) AS n").selectExpr("repeat('x', 1000 * n) AS body")
    write(frame, nsqd, topic="sizes", max_batch_bytes="50k")
    assert sorted(map(len, consumed(nsqd, "sizes", 40))) == [1000 * n for n in range(1, 41)]


def test_an_empty_frame_publishes_nothing(spark: SparkSession, nsqd: Running) -> None:
    write(spark.createDataFrame([], "body STRING"), nsqd, topic="nothing")
    assert depth(nsqd, "nothing") == 0


def test_a_stream_is_published(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    source = tmp_path / "source"
    spark.range(500).selectExpr("cast(id AS string) AS value").write.text(str(source))
    query = (
        spark.readStream.format("text")
        .load(str(source))
        .selectExpr("value AS body")
        .writeStream.format("nsq")
        .options(nsqd_tcp_addresses=nsqd.tcp_address, topic="streamed", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert Counter(consumed(nsqd, "streamed", 500)) == Counter(b"%d" % number for number in range(500))


def test_nsqds_are_found_by_nsqlookupd(spark: SparkSession) -> None:
    with (
        running_nsqlookupd("process") as lookupd,
        running_nsqd("process", lookupd_tcp_addresses=[lookupd.tcp_address]) as one,
        running_nsqd("process", lookupd_tcp_addresses=[lookupd.tcp_address]) as two,
    ):
        lookup = LookupdClient(lookupd.http_address)
        wait_for(lambda: len(lookup.nodes()) == 2, "both are known")
        frame = spark.range(4000).selectExpr("cast(id AS string) AS body")
        options = {"lookupd_http_addresses": lookupd.http_address, "topic": "found", "max_batch_messages": "100"}
        frame.write.format("nsq").options(**options).mode("append").save()
        assert depth(one, "found") + depth(two, "found") == 4000
        # All may have been published before the second connection was made.
        for away, other in ((one, two), (two, one)):
            before = depth(other, "found")
            away.stop()
            wait_for(lambda: len(lookup.nodes()) == 1, "the other is known")
            frame.limit(10).write.format("nsq").options(**options).mode("append").save()
            assert depth(other, "found") == before + 10
            away.start()
            wait_for(lambda: len(lookup.nodes()) == 2, "both are known")


def test_an_nsqd_that_is_away_is_passed_over(spark: SparkSession, nsqd: Running) -> None:
    with running_nsqd("process") as away:
        away.stop()
        frame = spark.range(1000).selectExpr("cast(id AS string) AS body")
        write(frame, nsqd, topic="failover", nsqd_tcp_addresses=f"{away.tcp_address},{nsqd.tcp_address}")
    assert depth(nsqd, "failover") == 1000


# -- errors -------------------------------------------------------------------------------------------
#
# test_publishing has the errors of options, columns and rows; these tests show how users see them.


def test_wrong_options_and_columns_are_said_in_plain_words(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a",)], "text STRING")
    with pytest.raises(AnalysisException, match="did you mean nsqd_tcp_addresses") as caught:
        frame.write.format("nsq").options(nsqd_tcp_adresses="127.0.0.1:4150", topic="t").mode("append").save()
    assert "Traceback" not in str(caught.value)
    with pytest.raises(AnalysisException, match="the sink has no column text: select body"):
        frame.write.format("nsq").options(nsqd_tcp_addresses="127.0.0.1:4150", topic="t").mode("append").save()


def test_a_topic_is_not_overwritten(spark: SparkSession) -> None:
    writer = spark.createDataFrame([("a",)], "body STRING").write.format("nsq")
    with pytest.raises(AnalysisException, match=r'write with mode\("append"\)'):
        writer.options(nsqd_tcp_addresses="127.0.0.1:4150", topic="t").mode("overwrite").save()


def test_a_wrong_row_is_an_error_in_plain_words(spark: SparkSession, nsqd: Running) -> None:
    frame = spark.range(0, 10, 1, 1).selectExpr("if(id = 7, null, 'a') AS body")
    with pytest.raises(PythonException, match="body is null in 1 of 10 rows") as caught:
        write(frame, nsqd, topic="wrong")
    assert "Traceback" not in str(caught.value)
    assert depth(nsqd, "wrong") == 0


def test_a_refusal_is_quoted(spark: SparkSession) -> None:
    with running_nsqd("process", max_msg_size=100) as nsqd:
        frame = spark.range(0, 3, 1, 1).selectExpr("repeat('x', 101) AS body")
        with pytest.raises(PythonException, match=r"refused the publish of .*: E_BAD_MESSAGE .*MPUB message too big"):
            write(frame, nsqd, topic="refused")
        assert depth(nsqd, "refused") == 0


def test_an_nsqd_that_is_away(spark: SparkSession) -> None:
    with running_nsqd("process") as nsqd:
        nsqd.stop()
        frame = spark.range(0, 3, 1, 1).selectExpr("'a' AS body")
        with pytest.raises(PythonException) as caught:
            write(frame, nsqd, topic="t", publish_timeout="200ms", retries=1)
    said = f"3 messages for topic t were not published: not sent in time: no connection to {nsqd.tcp_address}"
    assert said in str(caught.value)
    assert "Traceback" not in str(caught.value)


# -- repeated tasks -----------------------------------------------------------------------------------


def test_a_task_that_is_tried_again_leaves_nothing_out(spark: SparkSession) -> None:
    @udf(returnType="string", useArrow=False)
    def late_failure(number):
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if number == 9_999 and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")
        return f"{number:0500}"  # too much to be held in a buffer

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        with running_nsqd("process") as nsqd:
            write(spark.range(0, 10_000, 1, 1).select(late_failure("id").alias("body")), nsqd, topic="again")
            published = depth(nsqd, "again")
            counts = Counter(consumed(nsqd, "again", published))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert set(counts) == {b"%0500d" % number for number in range(10_000)}
    assert 10_000 < published < 20_000
    assert set(counts.values()) == {1, 2}
