"""The speed of the Spark sink, compared with a Python sink that discards its rows: the cost of the engine itself.

    python benchmarks/spark_sink.py [--messages N] [--size BYTES] [--tasks N] [--rounds N] [--nsqd PATH]

Starts an nsqd from PATH and one local session. After a write that starts the workers, the two sinks take turns; the
last line has their medians. It needs pyspark, and Java 17 or newer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _nsqd import running_nsqd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

ROOT = Path(__file__).resolve().parents[1]


class DiscardWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class DiscardSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: Any, overwrite: bool) -> DiscardWriter:
        return DiscardWriter()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the speed of the Spark sink.")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=200, help="bytes of a body")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nsqd", default="nsqd")
    arguments = parser.parse_args()

    sys.path.insert(0, str(ROOT))
    os.environ |= {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    from gnsq_like.spark import register
    from gnsq_like.spark.java import use_java

    use_java()
    builder = SparkSession.builder.master(f"local[{arguments.tasks}]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    register(spark)
    spark.dataSource.register(DiscardSource)
    in_all = arguments.messages * arguments.rounds
    rates: dict[str, list[float]] = {"nsq": [], "discard": []}
    with running_nsqd(arguments.nsqd, 2 * in_all) as nsqd:
        options = {"nsq": {"nsqd_tcp_addresses": nsqd.tcp_address, "topic": "bench"}, "discard": {}}
        # A constant, so that the time to make bodies does not count.
        rows = spark.range(0, arguments.messages, 1, arguments.tasks).selectExpr(
            f"repeat('x', {arguments.size}) AS body"
        )
        for name, given in options.items():
            write(rows.limit(1000), name, given)
        for _ in range(arguments.rounds):
            for name, given in options.items():
                started = time.monotonic()
                write(rows, name, given)
                rates[name].append(arguments.messages / (time.monotonic() - started))
                print(f"{name:8} {rates[name][-1]:9,.0f} a second", flush=True)
    spark.stop()
    medians = {name: statistics.median(each) for name, each in rates.items()}
    print(", ".join(f"{name} {rate:,.0f} a second" for name, rate in medians.items()))


def write(rows: DataFrame, name: str, options: dict[str, str]) -> None:
    rows.write.format(name).options(**options).mode("append").save()


if __name__ == "__main__":
    main()
