"""The Spark that a pipeline runs on: the caller's, the one of spark-submit, or one that is made here."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from gnsq_like.errors import InvalidOption
from gnsq_like.spark import py_files, register
from gnsq_like.spark.java import use_java
from gnsq_like.spark.pipeline.config import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Says that spark-submit started this process, and has settled everything.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"

#: Spark's own log goes to stderr, from the first line on no more than is asked for. Without a level of its own, the
#: class that serves Python sets everything to WARN, and says so.
_LOG4J = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""
#: What Spark knows as a master.
_MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

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
    :raises InvalidOption: Spark has no such master
    :raises JavaNotFound: there is no Java for it
    """
    submitted = _SUBMITTED in os.environ
    chosen = master or pipeline.spark.get("spark.master") or (None if submitted else "local[*]")
    if chosen is not None and not _MASTER.fullmatch(chosen):
        raise InvalidOption("master", chosen, "it must be as local[4], spark://host:7077, yarn or k8s://...")
    if not submitted:
        use_java()
        if chosen is not None and chosen.startswith("local["):
            # Spark's default is the python3 on PATH, which may be another one than ours.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(pipeline.title)
    # Executors that come later fetch what is in it, too: it stays as long as this process.
    directory = Path(tempfile.mkdtemp(prefix="gnsq_like-pipeline-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    given = dict(pipeline.spark)
    if not submitted:
        log4j = directory / "log4j2.properties"
        log4j.write_text(_LOG4J.format(level=log_level))
        quiet = f"{given.get(_JAVA_OPTIONS, '')} -Dlog4j2.configurationFile={log4j.as_uri()}".strip()
        given = {"spark.ui.showConsoleProgress": "false", **given, _JAVA_OPTIONS: quiet}
    for name, value in given.items():
        builder = builder.config(name, value)
    if chosen is not None:
        builder = builder.master(chosen)
    spark = _made(builder)
    context = spark.sparkContext
    context.setLogLevel(log_level)
    known = context.getConf()
    for name, value in {**_SETTINGS, "spark.sql.shuffle.partitions": str(context.defaultParallelism)}.items():
        if not known.contains(name):
            spark.conf.set(name, value)
    if not str(context.master).startswith("local["):
        # Executors may have none of ours, or another version.
        context.addPyFile(py_files(directory / "gnsq_like.zip"))
    register(spark)
    return spark


def _made(builder: SparkSession.Builder) -> SparkSession:
    """The session, made in another thread: in the main one, pyspark takes SIGINT for itself."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(builder.getOrCreate).result()
