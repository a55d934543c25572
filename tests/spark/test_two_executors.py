"""Two executors, each a JVM with its own workers, share a topic of four nsqds."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.daemons import Kind, running_nsqd
from tests.support.patient import NsqdHTTPClient
from tests.support.spark_sessions import run_program

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 8_000

#: The sink fills the nsqds; a stream takes everything.
#: The parent of a row's worker identifies the executor: each executor has one.
PROGRAM = """
import os
from pyspark.sql.functions import udf
from gnsq_like.spark import register

register(spark)
tcp, http = {tcp!r}, {http!r}
frame = spark.range({count}).selectExpr("cast(id AS string) AS body").repartition(4)
options = dict(nsqd_tcp_addresses=tcp, nsqd_http_addresses=http, topic="t", channel="c", min_partitions="8")

@udf("bigint")
def executor(body):
    return os.getppid()

def fill():
    # Many batches, which go to the nsqds in turn: each of them gets some, whichever is the first of a task.
    options = dict(nsqd_tcp_addresses=tcp, topic="t", max_batch_messages="100")
    frame.write.format("nsq").options(**options).mode("append").save()

def rows_of(frame):
    return [[row.id, int(row.body), row.nsqd_address, row.executor] for row in frame.collect()]

chosen = ["id", "body", "nsqd_address", executor("body").alias("executor")]
fill()
source = spark.readStream.format("nsq").options(staging_location={place!r} + "/stage", max_messages="4000", **options)
query = (
    source.load().select(chosen)
    .writeStream.format("parquet").option("checkpointLocation", {place!r} + "/checkpoint")
    .trigger(availableNow=True).start({place!r} + "/rows")
)
assert query.awaitTermination(500)
report["batches"] = sum(progress["numInputRows"] > 0 for progress in query.recentProgress)
report["stream"] = rows_of(spark.read.parquet({place!r} + "/rows"))
"""


@pytest.mark.spark_long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("kind", ["process", pytest.param("real", marks=pytest.mark.real_nsqd)])
def test_nothing_is_lost_or_doubled_and_both_read(tmp_path: Path, kind: Kind) -> None:
    with ExitStack() as stack:
        nsqds = [stack.enter_context(running_nsqd(kind)) for _ in range(4)]
        for nsqd in nsqds:
            client = NsqdHTTPClient(nsqd.http_address)
            client.create_topic("t")
            client.create_channel("t", "c")
        program = PROGRAM.format(
            tcp=",".join(nsqd.tcp_address for nsqd in nsqds),
            http=",".join(nsqd.http_address for nsqd in nsqds),
            count=COUNT,
            place=str(tmp_path),
        )
        report: dict[str, Any] = run_program(tmp_path, program, master="local-cluster[2,1,1024]")
        left = [NsqdHTTPClient(nsqd.http_address).stats("t")["topics"][0]["channels"][0] for nsqd in nsqds]
    rows = report["stream"]
    assert Counter(number for _, number, _, _ in rows) == Counter(range(COUNT))
    assert len({(address, message_id) for message_id, _, address, _ in rows}) == COUNT
    assert {address for _, _, address, _ in rows} == {nsqd.tcp_address for nsqd in nsqds}
    assert len({executor for _, _, _, executor in rows}) == 2
    assert [channel["depth"] + channel["in_flight_count"] for channel in left] == [0] * 4
    assert report["batches"] >= 2
