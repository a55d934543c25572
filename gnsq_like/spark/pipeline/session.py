"""The Spark that a pipeline runs on: the caller's, the one of spark-submit, or one that is made here."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gnsq_like.spark import py_files, register
from gnsq_like.spark.java import use_java
from gnsq_like.spark.pipeline.config import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Says that spark-submit started this process, and has settled everything.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"

#: What a session gets that does not say otherwise. The ids of the messages seen lately are kept on disk, so that
#: their number is no matter of memory.
_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Else times are written as INT96, which others read without their time zone, or not at all.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def open_session(pipeline: Pipeline, master: str | None, log_level: str) -> SparkSession:
    """The session of spark-submit, or a new one; it knows the format nsq.

    :param master: which Spark; None for that of spark-submit, else for this machine
    :param log_level: of Spark's log on stderr
    :raises JavaNotFound: there is no Java for it
    """
    submitted = _SUBMITTED in os.environ
    chosen = master or pipeline.spark.get("spark.master") or (None if submitted else "local[*]")
    if not submitted:
        use_java()
        if chosen is not None and chosen.startswith("local["):
            # Spark's default is the python3 on PATH, which may be another one than ours.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(pipeline.title)
    for name, value in {"spark.ui.showConsoleProgress": "false", "spark.log.level": log_level}.items():
        if not submitted:
            builder = builder.config(name, value)
    for name, value in pipeline.spark.items():
        builder = builder.config(name, value)
    if chosen is not None:
        builder = builder.master(chosen)
    with _interrupts_kept():
        spark = builder.getOrCreate()
    context = spark.sparkContext
    context.setLogLevel(log_level)
    given = context.getConf()
    for name, value in {**_SETTINGS, "spark.sql.shuffle.partitions": str(context.defaultParallelism)}.items():
        if not given.contains(name):
            spark.conf.set(name, value)
    if not str(context.master).startswith("local["):
        # Executors may have none of ours, or another version.
        # Executors that come later fetch it, too: it stays as long as this process.
        directory = tempfile.mkdtemp(prefix="gnsq_like-pipeline-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        context.addPyFile(py_files(Path(directory, "gnsq_like.zip")))
    register(spark)
    return spark


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """pyspark takes SIGINT for itself, and cancels what runs; the process's own handler stays here."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
