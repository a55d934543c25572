"""The speed of the Spark source, compared with a bare loop that receives and stages, and with Spark's own sources.

    python benchmarks/spark.py [--messages N] [--size BYTES] [--trigger N] [--splits N] [--rounds N] [MODE ...]

Starts an nsqd from PATH for each measurement. Every mode runs in a process of its own:

- bare: one socket, no gevent and no Spark: receive, cut, make segments, write, fsync and link them, FIN. A segment is
  all that nsqd has in flight for a connection: half as many fsyncs as the source needs, while nsqd waits for the FINs;
- receive: the source's own work in one task, without Spark;
- noop, parquet: the source on local[2] into Spark's sinks, AvailableNow. Rates are measured from the end of the first
  batch, which includes the start of the workers, to the end of the last;
- arrow: a floor for pipelines: one socket, pyarrow's JSON reader, and one Parquet file, without any promise;
- pipeline-parquet, pipeline-delta, pipeline-iceberg: a pipeline of JSON with a schema of 7 fields, which 1 % does not
  fit, with dedupe_within as by default, from the end of the first batch to the end of the last;
- sql-parquet, sql-delta: the same with select and where;
- python: the same number of rows with the same columns, which a Python source has ready, to noop: Spark's own part;
- file: the same number of rows with the same columns, from Parquet files through Spark's file source to noop;
- rate: Spark's rate source, which makes its rows in the JVM, to noop: the cost of a batch alone;
- latency: one message at a time, from its publish until foreachBatch has its row, and the parts of that time.

Beside the rates is the CPU time of a message in µs, by process: on a busy machine, it says more than a rate. "java" and
"workers" are Spark's, "source" is the process that plans batches, and "driver" is the one that runs the benchmark.

It needs pyspark, and Java 17 or newer. With --profile, the source's modes print where the time of a batch goes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from _nsqd import CHANNEL, Nsqd, connect, publish_command, running_nsqd
from _processes import cpu_of

ROOT = Path(__file__).resolve().parents[1]
TOPIC = "bench"
SEGMENT = 2500
PIPELINES = ("pipeline-parquet", "pipeline-delta", "pipeline-iceberg", "sql-parquet", "sql-delta")
MODES = ("bare", "arrow", "receive", "noop", "parquet", *PIPELINES, "python", "file", "rate", "latency")
#: The fields of a pipeline's messages.
SCHEMA = "id BIGINT NOT NULL, user STRING, amount DECIMAL(12, 2), ok BOOLEAN, at TIMESTAMP, score DOUBLE, page STRING"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the speed of the Spark source.")
    parser.add_argument("modes", nargs="*", help=", ".join(MODES))
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=200, help="bytes of a body")
    parser.add_argument("--trigger", type=int, default=250_000, help="max_messages")
    parser.add_argument("--splits", type=int, default=1, help="min_partitions")
    parser.add_argument("--samples", type=int, default=40, help="messages for latency")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--nsqd", default="nsqd")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--java-options", default="", help="such as -XX:+UseSerialGC")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(run(arguments)))
        return
    results: dict[str, list[float]] = {}
    used: dict[str, list[dict[str, float]]] = {}
    for _ in range(arguments.rounds):
        for mode in arguments.modes or MODES:
            answer = subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--run", mode],
                stdout=subprocess.PIPE,
                stderr=None if arguments.profile else subprocess.DEVNULL,
                text=True,
                check=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            result = json.loads(answer.stdout.splitlines()[-1])
            results.setdefault(mode, []).append(result["rate"])
            used.setdefault(mode, []).append(result.get("cpu", {}))
            print(f"{mode:16} {result['text']}{cpu_text(result.get('cpu', {}))}", flush=True)
    for mode in results if arguments.rounds > 1 else ():
        median = {name: statistics.median(each.get(name, 0) for each in used[mode]) for name in used[mode][0]}
        print(f"{mode:16} median {statistics.median(results[mode]):9,.0f} a second{cpu_text(median)}")
    if "bare" in results:
        for mode in results.keys() - {"bare", "latency"}:
            ratios = [rate / bare for rate, bare in zip(results[mode], results["bare"], strict=True)]
            print(f"{mode:16} {statistics.median(ratios):.0%} of bare")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    mode = arguments.run
    if mode == "rate":
        return rate(arguments)
    if mode == "file":
        return file(arguments)
    if mode == "python":
        return python(arguments)
    with running_nsqd(arguments.nsqd, 2 * arguments.messages) as nsqd, tempfile.TemporaryDirectory() as directory:
        nsqd.make_topic(TOPIC)
        if mode == "latency":
            return latency(arguments, nsqd, directory)
        if mode in PIPELINES or mode == "arrow":
            nsqd.fill(TOPIC, json_bodies(arguments.messages))
            return arrow(arguments, nsqd, directory) if mode == "arrow" else pipeline(arguments, nsqd, directory)
        nsqd.fill(TOPIC, [b"x" * arguments.size] * arguments.messages)
        if mode == "bare":
            return bare(arguments, nsqd, directory)
        if mode == "receive":
            return receive(arguments, nsqd, directory)
        return source(arguments, nsqd, directory)


def summary(rows: int, seconds: float) -> dict[str, Any]:
    return {"rate": rows / seconds, "text": f"{rows / seconds:9,.0f} a second ({rows:,} in {seconds:.2f} s)"}


def cpu_text(cpu: dict[str, float]) -> str:
    """µs by process, as the end of a line."""
    if not cpu:
        return ""
    return f"; CPU µs a message: {', '.join(f'{name} {value:.2f}' for name, value in cpu.items())}"


def cpu_seconds(nsqd: Nsqd | None = None) -> dict[tuple[str, int], float]:
    """CPU seconds until now of this process, of nsqd, and of Spark's processes, by kind and pid."""
    found: dict[tuple[str, int], float | None] = {("driver", os.getpid()): cpu_of(os.getpid())}
    if nsqd is not None:
        found["nsqd", nsqd.pid] = cpu_of(nsqd.pid)
    for java in _children(os.getpid()):
        if "java" not in _read(java, "comm"):
            continue
        found["java", java] = cpu_of(java)
        for python in _children(java):
            if "source_runner" in _read(python, "cmdline"):
                found["source", python] = cpu_of(python)
            else:
                found |= {("workers", each): cpu_of(each) for each in [python, *_children(python)]}
    return {key: seconds for key, seconds in found.items() if seconds is not None}


def per_message(
    before: dict[tuple[str, int], float], after: dict[tuple[str, int], float], messages: int
) -> dict[str, float]:
    """CPU µs of each kind of process for a message, between two times."""
    found: defaultdict[str, float] = defaultdict(float)
    for (kind, pid), seconds in after.items():
        found[kind] += (seconds - before.get((kind, pid), 0)) / messages * 1e6
    return dict(found)


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for task in tasks for child in _read(pid, f"task/{task}/children").split()]


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


# -- without Spark --------------------------------------------------------------------------------------


def bare(arguments: argparse.Namespace, nsqd: Nsqd, directory: str) -> dict[str, Any]:
    from gnsq_like.spark.staging.records import encode_segment
    from gnsq_like.spark.staging.store import PosixStore

    store = PosixStore(Path(directory))
    store.make("stage")
    head = struct.Struct(">iiqH16s")
    host, _, port = nsqd.tcp_address.rpartition(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(b"  V2SUB %b %b\n" % (TOPIC.encode(), CHANNEL.encode()))
        sock.recv(10)
        started, before = time.monotonic(), cpu_seconds(nsqd)
        sock.sendall(b"RDY %d\n" % SEGMENT)
        rest, messages, total, number = b"", [], 0, 0
        while total < arguments.messages:
            data = rest + sock.recv(65536)
            position, end = 0, len(data)
            while end - position >= 34:
                size, _, timestamp, attempts, message_id = head.unpack_from(data, position)
                if end - position < size + 4:
                    break
                messages.append((timestamp, attempts, message_id, data[position + 34 : position + size + 4]))
                position += size + 4
            rest = data[position:]
            if len(messages) == min(SEGMENT, arguments.messages - total):
                store.create(f"stage/{number:06d}", encode_segment(messages))
                sock.sendall(b"".join([b"FIN %b\n" % message[2] for message in messages]))
                total += len(messages)
                number += 1
                messages = []
        cpu = per_message(before, cpu_seconds(nsqd), total)
        return {**summary(total, time.monotonic() - started), "cpu": cpu}


def json_bodies(count: int) -> list[bytes]:
    """JSON of 185 bytes; one of a hundred lacks a field that must be there."""
    rng = random.Random(1)
    return [
        (
            f'{{"{"id" if number % 100 else "no"}": {number}, "user": "user-{rng.randrange(10**6):06d}", '
            f'"amount": {rng.randrange(10**5)}.{rng.randrange(100):02d}, "ok": {"true" if number % 2 else "false"}, '
            f'"at": "2026-01-02T03:{number // 60 % 60:02d}:{number % 60:02d}.{rng.randrange(1000):03d}Z", '
            f'"score": {rng.random():.6f}, "page": "/articles/{rng.randrange(10**5):05d}/comments"}}'
        ).encode()
        for number in range(count)
    ]


def arrow(arguments: argparse.Namespace, nsqd: Nsqd, directory: str) -> dict[str, Any]:
    import io

    from pyarrow import json as arrow_json
    from pyarrow import parquet

    head = struct.Struct(">iiqH16s")
    host, _, port = nsqd.tcp_address.rpartition(":")
    writer = None
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(b"  V2SUB %b %b\n" % (TOPIC.encode(), CHANNEL.encode()))
        sock.recv(10)
        started, before = time.monotonic(), cpu_seconds(nsqd)
        sock.sendall(b"RDY %d\n" % SEGMENT)
        rest, bodies, ids, total = b"", [], [], 0
        while total < arguments.messages:
            data = rest + sock.recv(65536)
            position, end = 0, len(data)
            while end - position >= 34:
                size, _, _, _, message_id = head.unpack_from(data, position)
                if end - position < size + 4:
                    break
                bodies.append(data[position + 34 : position + size + 4])
                ids.append(message_id)
                position += size + 4
            rest = data[position:]
            if len(ids) >= SEGMENT // 2 or total + len(ids) == arguments.messages:
                sock.sendall(b"".join([b"FIN %b\n" % each for each in ids]))
                total, ids = total + len(ids), []
            if len(bodies) >= 1 << 16 or total == arguments.messages:
                table = arrow_json.read_json(io.BytesIO(b"\n".join(bodies)))
                writer = writer or parquet.ParquetWriter(f"{directory}/out.parquet", table.schema)
                writer.write_table(table.select(writer.schema.names))
                bodies = []
        assert writer is not None
        writer.close()
        cpu = per_message(before, cpu_seconds(nsqd), total)
        return {**summary(total, time.monotonic() - started), "cpu": cpu}


def pipeline(arguments: argparse.Namespace, nsqd: Nsqd, directory: str) -> dict[str, Any]:
    from pyarrow import dataset

    from gnsq_like.spark.java import use_java
    from gnsq_like.spark.pipeline import Pipeline, run_pipeline

    kind, _, format_ = arguments.run.partition("-")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    use_java()
    given = source_options(arguments, nsqd, directory)
    sql = {"select": ["body.id AS id", "upper(body.user) AS user", "body.amount AS amount"], "where": "body.ok"}
    made = Pipeline(
        location=f"{directory}/out",
        source=given,
        schema=SCHEMA,
        format=format_,
        transform=sql if kind == "sql" else {},
        spark={"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"},
    )
    watched: list[tuple[int, dict[tuple[str, int], float]]] = []

    def watch(snapshot: Any) -> None:
        if snapshot.batches and (not watched or time.monotonic() - watched_at[-1] > 1):
            watched.append((snapshot.messages, cpu_seconds(nsqd)))
            watched_at.append(time.monotonic())

    watched_at: list[float] = []
    last = run_pipeline(made, master="local[2]", available_now=True, watch=watch)
    batches: dict[int, tuple[datetime, int]] = {}
    metrics = dataset.dataset(f"{directory}/out/metrics", partitioning=None).to_table()
    for row in metrics.select(["batch_number", "written_at", "messages"]).to_pylist():
        _, count = batches.get(row["batch_number"], (row["written_at"], 0))
        batches[row["batch_number"]] = row["written_at"], count + row["messages"]
    first, *later = [batches[number] for number in sorted(batches)]
    rows = sum(count for _, count in later)
    assert last.messages == arguments.messages and last.rejected == -(-arguments.messages // 100)
    result = summary(rows, (later[-1][0] - first[0]).total_seconds())
    (begin, before), (end, after) = watched[0], watched[-1]
    return {**result, "cpu": per_message(before, after, end - begin) if end > begin else {}}


def receive(arguments: argparse.Namespace, nsqd: Nsqd, directory: str) -> dict[str, Any]:
    from gnsq_like.spark.format_options import SourceOptions, parse_options
    from gnsq_like.spark.source.driver import Driver
    from gnsq_like.spark.source.executor import read_part

    options = parse_options(SourceOptions, source_options(arguments, nsqd, directory))
    driver = Driver(options)
    offset = driver.initial()
    started, before = time.monotonic(), cpu_seconds(nsqd)
    rows = 0
    while rows < arguments.messages:
        end = driver.latest(offset)
        driver.commit(offset)
        rows += sum(batch.num_rows for part in driver.parts(offset, end) for batch in read_part(part, options))
        offset = dict(end)
    cpu = per_message(before, cpu_seconds(nsqd), rows)
    return {**summary(rows, time.monotonic() - started), "cpu": cpu}


# -- with Spark -----------------------------------------------------------------------------------------


@contextmanager
def session(arguments: argparse.Namespace) -> Iterator[Any]:
    from gnsq_like.spark.java import use_java

    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    use_java()
    from pyspark.sql import SparkSession

    from gnsq_like.spark import register

    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": arguments.java_options,
        # As a pipeline's session has it, and docs/spark.rst recommends.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def source_options(arguments: argparse.Namespace, nsqd: Nsqd, directory: str) -> dict[str, str]:
    return {
        "topic": TOPIC,
        "channel": CHANNEL,
        "nsqd_tcp_addresses": nsqd.tcp_address,
        "nsqd_http_addresses": nsqd.http_address,
        "staging_location": f"{directory}/stage",
        "max_messages": str(arguments.trigger),
        "min_partitions": str(arguments.splits),
    }


def source(arguments: argparse.Namespace, nsqd: Nsqd, directory: str) -> dict[str, Any]:
    with session(arguments) as spark:
        frame = spark.readStream.format("nsq").options(**source_options(arguments, nsqd, directory)).load()
        return drained(arguments, frame, directory, nsqd)


def drained(arguments: argparse.Namespace, frame: Any, directory: str, nsqd: Nsqd | None = None) -> dict[str, Any]:
    """Run an AvailableNow query to its end."""
    writer = frame.writeStream.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
    if arguments.run == "parquet":
        query = writer.format("parquet").option("path", f"{directory}/out").start()
    else:
        query = writer.format("noop").start()
    while query.isActive and not (query.lastProgress or {}).get("numInputRows"):
        time.sleep(0.05)
    before = cpu_seconds(nsqd)
    after = dict(before)  # those of processes that end before the query does stay in it
    while not query.awaitTermination(0.5):
        after |= cpu_seconds(nsqd)
    after |= cpu_seconds(nsqd)
    result = warm(arguments, query)
    return {**result, "cpu": per_message(before, after, result["rows"])}


def warm(arguments: argparse.Namespace, query: Any) -> dict[str, Any]:
    """From the end of the first batch with rows to the end of the last."""
    batches = [each for each in query.recentProgress if each["numInputRows"]]
    for each in batches if arguments.profile else ():
        print(each["numInputRows"], each["durationMs"], file=sys.stderr)
    seconds = sum(each["durationMs"]["triggerExecution"] for each in batches[1:]) / 1000
    rows = sum(each["numInputRows"] for each in batches[1:])
    return {**summary(rows, seconds), "rows": rows}


def file(arguments: argparse.Namespace) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as directory, session(arguments) as spark:
        count = arguments.trigger
        table = pa.table(
            {
                "id": [f"{number:016x}" for number in range(count)],
                "body": [os.urandom(arguments.size) for _ in range(count)],
                "timestamp_ns": range(count),
                "attempts": pa.array([1] * count, pa.int32()),
            }
        )
        Path(directory, "in").mkdir()
        for number in range(-(-arguments.messages // count)):
            pq.write_table(table, f"{directory}/in/{number}.parquet")
        schema = "id STRING, body BINARY, timestamp_ns BIGINT, attempts INT"
        reader = spark.readStream.format("parquet").schema(schema).option("maxFilesPerTrigger", 1)
        return drained(arguments, reader.load(f"{directory}/in"), directory)


def python(arguments: argparse.Namespace) -> dict[str, Any]:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    batches = -(-arguments.messages // arguments.trigger)
    splits, segments = arguments.splits, arguments.trigger // arguments.splits // SEGMENT
    size = arguments.size

    class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def initialOffset(self) -> dict[str, int]:
            return {"batch": 0}

        def prepareForTriggerAvailableNow(self) -> None:
            pass

        def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
            return {"batch": min(start["batch"] + 1, batches)}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(number) for number in range(splits)] if start != end else []

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            columns = {
                "id": [f"{number:016x}" for number in range(SEGMENT)],
                "body": [b"x" * size] * SEGMENT,
                "timestamp": pa.array(range(SEGMENT), pa.timestamp("us", "UTC")),
                "attempts": pa.array([1] * SEGMENT, pa.int32()),
                **{name: [name] * SEGMENT for name in ("topic", "channel", "nsqd_address")},
            }
            batch = pa.RecordBatch.from_pydict(columns)
            for _ in range(segments):
                yield batch

    class Ready(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready"

        def schema(self) -> str:
            texts = "topic STRING, channel STRING, nsqd_address STRING"
            return f"id STRING, body BINARY, timestamp TIMESTAMP, attempts INT, {texts}"

        def streamReader(self, schema: Any) -> Reader:
            return Reader()

    with tempfile.TemporaryDirectory() as directory, session(arguments) as spark:
        spark.dataSource.register(Ready)
        return drained(arguments, spark.readStream.format("ready").load(), directory)


def rate(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory, session(arguments) as spark:
        frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", arguments.trigger).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", f"{directory}/checkpoint").start()
        while len([each for each in query.recentProgress if each["numInputRows"]]) < 6:
            time.sleep(0.1)
        query.stop()
        return warm(arguments, query)


def latency(arguments: argparse.Namespace, nsqd: Nsqd, directory: str) -> dict[str, Any]:
    seen: dict[str, tuple[float, float]] = {}
    arrived = threading.Event()

    def note(frame: Any, batch: int) -> None:
        called = time.monotonic()
        for row in frame.select("body").collect():
            seen[bytes(row.body).decode()] = called, time.monotonic()
            arrived.set()

    delays, until_called = [], []
    with session(arguments) as spark, connect(nsqd.tcp_address) as sock:
        frame = spark.readStream.format("nsq").options(**source_options(arguments, nsqd, directory)).load()
        query = frame.writeStream.option("checkpointLocation", f"{directory}/checkpoint").foreachBatch(note).start()
        for number in range(arguments.samples + 3):
            arrived.clear()
            published = time.monotonic()
            sock.sendall(publish_command(TOPIC, str(number).encode()))
            sock.recv(10)
            if not arrived.wait(60):
                raise SystemExit(f"message {number} did not arrive: {query.exception()}")
            called, had = seen[str(number)]
            delays.append(had - published)
            until_called.append(called - published)
            time.sleep(0.5 + number % 7 * 0.1)  # the pace of the messages, not a wait for something
        query.stop()
    parts = [each["durationMs"] for each in query.recentProgress if each["numInputRows"]][3:]
    delays = sorted(delays[3:])
    tenths = statistics.quantiles(delays, n=10)
    text = f"p50 {tenths[4] * 1000:.0f} ms, p90 {tenths[8] * 1000:.0f} ms, least {delays[0] * 1000:.0f} ms"
    text += f"; until foreachBatch is called p50 {statistics.median(until_called[3:]) * 1000:.0f} ms; a batch: "
    text += ", ".join(f"{name} {statistics.median(each.get(name, 0) for each in parts):.0f}" for name in parts[0])
    return {"rate": 1 / tenths[4], "text": text}


if __name__ == "__main__":
    main()
