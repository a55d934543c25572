"""The stream read under Spark, as far as ``spark_engine`` cannot show it. Long tests run with ``make test-spark``."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyarrow import dataset
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.functions import udf

from tests.support.daemons import Running, running_nsqd
from tests.support.files import wait_for_changes
from tests.support.patient import NsqdHTTPClient
from tests.support.spark_engine import PATIENT, once, publish, source_options
from tests.support.spark_points import kill_session
from tests.support.spark_sessions import CONF, ROOT, environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS = ["process", pytest.param("real", marks=[pytest.mark.real_nsqd, pytest.mark.spark_long])]


@pytest.fixture(scope="module", params=KINDS)
def nsqd(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running_nsqd(request.param) as running:
        yield running


def stream(spark: SparkSession, nsqd: Running, directory: Path, topic: str, **options: Any) -> DataFrame:
    given = source_options([nsqd], directory, topic, **PATIENT, **options)
    return spark.readStream.format("nsq").options(**given).load()


def run(frame: DataFrame, directory: Path, sink: Any) -> None:
    """Run a query with AvailableNow to its end; ``sink`` is called with (batch number, rows)."""
    writer = frame.writeStream.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True)
    query = writer.foreachBatch(lambda batch, number: sink(number, batch)).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def test_rows_are_the_messages(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    began = time.time_ns()
    publish(nsqd, "rows", range(250))
    published = time.time_ns()
    batches: dict[int, list[Any]] = {}
    frame = stream(spark, nsqd, tmp_path, "rows", max_messages=100, columns="all")
    run(frame, tmp_path, lambda number, batch: batches.update({number: batch.collect()}))
    assert [len(rows) for rows in batches.values()] == [100, 100, 50]
    rows = [row for batch in batches.values() for row in batch]
    assert Counter(bytes(row.body).decode() for row in rows) == once(250)
    row = rows[0]
    assert (row.topic, row.channel, row.nsqd_address, row.attempts) == ("rows", "spark", nsqd.tcp_address, 1)
    assert len(row.id) == 16
    assert began <= row.timestamp_ns <= published
    assert row.timestamp.microsecond == row.timestamp_ns // 1000 % 1_000_000
    # A second run continues where the first ended.
    publish(nsqd, "rows", range(1000, 1030))
    later: list[Any] = []
    run(frame, tmp_path, lambda number, batch: later.extend(batch.collect()))
    assert Counter(bytes(row.body).decode() for row in later) == once(30, 1000)


def test_progress_shows_the_lag_by_nsqd_which_ends_at_0(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "lag", range(30))
    frame = stream(spark, nsqd, tmp_path, "lag", max_messages=20)
    # A sink that reads: a foreachBatch without an action would leave the messages in nsqd, and never end.
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def lag(report: Any) -> Any:
        return json.loads(report["sources"][0]["latestOffset"])

    try:
        query.processAllAvailable()
        assert lag(query.recentProgress[0]) == {"lag": {nsqd.tcp_address: {"messages": 10, "in_flight": 0}}}
        # Spark reports nothing while a query is idle: this stays.
        assert lag(query.lastProgress) == {"lag": {nsqd.tcp_address: {"messages": 0, "in_flight": 0}}}
    finally:
        query.stop()


def test_two_actions_see_the_same_rows(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    publish(nsqd, "twice", range(200))
    seen: list[tuple[list[Any], list[Any]]] = []
    frame = stream(spark, nsqd, tmp_path, "twice", min_partitions=2).select("id", "body", "attempts")
    run(frame, tmp_path, lambda number, batch: seen.append((batch.collect(), batch.collect())))
    assert [len(first) for first, _ in seen] == [200]
    assert all(first == second for first, second in seen)


def test_an_action_that_takes_only_some_rows_loses_the_others_of_its_batch_alone(
    spark: SparkSession, nsqd: Running, tmp_path: Path
) -> None:
    publish(nsqd, "some", range(300))
    seen: list[list[Any]] = []
    frame = stream(spark, nsqd, tmp_path, "some", max_messages=200)
    run(frame, tmp_path, lambda number, batch: seen.append([len(batch.take(5)), batch.count()]))
    assert seen == [[5, 200], [5, 100]]


def test_what_is_wrong_is_said_plainly(spark: SparkSession, nsqd: Running, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="did you mean staging_location") as raised:
        stream(spark, nsqd, tmp_path, "wrong", staging_locatoin="/tmp")
    assert "Traceback" not in str(raised.value)
    frame = stream(spark, nsqd, tmp_path, "wrong", staging_location="relative")
    with pytest.raises(StreamingQueryException, match="absolute path") as failed:
        run(frame, tmp_path, print)
    assert "Traceback" not in str(failed.value)
    given = source_options([nsqd], tmp_path, "wrong")
    frame = spark.readStream.format("nsq").schema("key STRING").options(**given).load()
    with pytest.raises(StreamingQueryException, match="choose columns with columns"):
        run(frame, tmp_path, print)


def test_a_failure_downstream_is_tried_again_with_the_same_rows(
    spark: SparkSession, nsqd: Running, tmp_path: Path
) -> None:
    @udf(returnType="string", useArrow=False)
    def fail_first(body):
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if body == b"150" and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")
        return body.decode()

    publish(nsqd, "downstream", range(500))
    seen: list[str] = []
    frame = stream(spark, nsqd, tmp_path, "downstream").select(fail_first("body").alias("body"))
    run(frame, tmp_path, lambda number, batch: seen.extend(row.body for row in batch.collect()))
    assert Counter(seen) == once(500)


# -- the long ones ----------------------------------------------------------------------------------------

_QUERY = """
import sys, json
from pathlib import Path
from tests.support.spark_sessions import session
from tests.spark.source.killing import KillingDataSource

directory, options = Path(sys.argv[1]), json.loads(sys.argv[2])
with session("local[2]") as spark:
    spark.dataSource.register(KillingDataSource)
    frame = spark.readStream.format("nsq").options(**options).load().selectExpr("cast(body AS string) AS body")
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.read.parquet(str(directory / "out")).collect()
    (directory / "rows.json").write_text(json.dumps([row.body for row in rows]))
"""


def run_query(directory: Path, options: dict[str, Any], kill_at: str = "") -> int:
    """Run the query above in a session of processes that can be killed as one; returns its exit status.

    :param kill_at: a point of ``spark_points`` where it kills itself
    """
    program = directory / "query.py"
    program.write_text(_QUERY)
    given = {name: str(value) for name, value in options.items()}
    return run_python([str(program), str(directory), json.dumps(given)], directory, KILL_AT=kill_at)


def run_python(command: list[str], directory: Path, kill_after: int | None = None, **environ: str) -> int:
    """Run a program in a session of processes that can be killed as one; returns its exit status.

    :param directory: where it works
    :param kill_after: how many files it may make or remove there until it is killed
    """
    process = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, **environment(), **environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=ROOT,
    )
    try:
        if kill_after is not None:
            wait_for_changes(directory, kill_after, lambda: process.poll() is not None)
            kill_session(process.pid)
        return process.wait()
    finally:
        kill_session(process.pid)
        process.wait()


#: A point for each state in which Spark's logs can be; ``test_kill_points`` has all points, on an engine without Spark.
#: latestOffset: a batch is planned, and Spark has not written that down. after-END:2: it has, its task runs, and the
#: batch before it is complete. commit-middle: the batch is in the sink, and Spark tells the source so.
SPARKS_POINTS = ["latestOffset", "after-END:2", "commit-middle"]


@pytest.mark.spark_long
@pytest.mark.timeout(600)
def test_killing_everything_at_a_point_loses_and_doubles_nothing(java: None, nsqd: Running, tmp_path: Path) -> None:
    """One query, killed at each point in turn: what a run leaves, the next one takes up."""
    options = source_options([nsqd], tmp_path, "kill", max_messages=400)
    for turn, point in enumerate(SPARKS_POINTS):
        publish(nsqd, "kill", range(900 * turn, 900 * turn + 900))
        assert run_query(tmp_path, options, point) == -signal.SIGKILL, point
    assert run_query(tmp_path, options) == 0
    assert Counter(json.loads((tmp_path / "rows.json").read_text())) == once(900 * len(SPARKS_POINTS))


@pytest.mark.spark_long
@pytest.mark.timeout(600)
def test_sums_by_window_count_each_message_once_whatever_is_killed(java: None, nsqd: Running, tmp_path: Path) -> None:
    """The example, killed at any time."""
    http = NsqdHTTPClient(nsqd.http_address)
    http.create_topic("clicks")
    http.create_channel("clicks", "windows")
    options = {
        "nsqd_tcp_addresses": nsqd.tcp_address,
        "nsqd_http_addresses": nsqd.http_address,
        "max_messages": "200",
        "min_partitions": "2",
        "msg_timeout": "3s",
        "wait_in_flight": "true",
    }
    command = [str(ROOT / "examples" / "spark_windows" / "windows.py"), str(tmp_path)]
    command += [f"{name}={value}" for name, value in options.items()]
    conf = " ".join(f"--conf {name}={value}" for name, value in CONF.items())
    submit = f"{conf} pyspark-shell"
    http.multi_publish(
        "clicks", [json.dumps({"page": f"/{each % 7}", "seconds": each}).encode() for each in range(3000)]
    )
    # A run changes about 1,000 files.
    run_python(command, tmp_path, random.Random().randrange(1, 800), PYSPARK_SUBMIT_ARGS=submit)
    assert run_python(command, tmp_path, PYSPARK_SUBMIT_ARGS=submit) == 0
    found = dataset.dataset(tmp_path / "sums", format="parquet", exclude_invalid_files=False).to_table().to_pylist()
    by_page: Counter[str] = Counter()
    for row in found:
        by_page[row["page"]] += row["clicks"]
    assert by_page == Counter(f"/{number % 7}" for number in range(3000))
    assert sum(row["seconds"] for row in found) == sum(range(3000))
    assert {row["window"]["end"] - row["window"]["start"] for row in found} == {timedelta(minutes=5)}
