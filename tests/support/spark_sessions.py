"""Spark sessions for tests: the settings that all of them share, and programs that need a session of their own.

A process has only one SparkContext, so tests that need another master (local-cluster, retries) run a program::

    done = run_program(directory, "program.py's text", master="local-cluster[1,1,1024]")
    done["rows"]                                     # a value that the program put into `report`

In a program ``spark`` is the session and ``report`` a dict that goes back as JSON. nsqds must be processes
(kind "process" or "real"): a test that waits for Spark runs no hub.

``python -m tests.support.spark_sessions`` makes an archive of Spark's classes (JEP 350), which all later Javas share: a
short run of a pipeline then takes 17 s of CPU time and not 24. ``make test-spark`` does it once; without the archive,
tests are slower.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnsq_like.spark.java import JavaNotFound, use_java
from gnsq_like.spark.pipeline.session import make_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]

#: The settings of every session.
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
}

#: Short programs: the fast compiler and the simple collector save a second of each start. That compiler alone would get
#: a cache of 48 MB, which is full after some queries.
_JAVA_OPTIONS = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m"]

#: Loads the classes that a pipeline needs: a stream with state, JSON, a sink in Python, Parquet.
_LOAD_CLASSES = """
from pyspark.sql import functions as F

spark.conf.set(
    "spark.sql.streaming.stateStore.providerClass",
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
)
spark.range(20).selectExpr("id", "to_json(struct(id)) AS body").write.parquet("source")

def write(batch, number):
    rows = batch.withColumn("found", F.from_json("body", "id BIGINT")).persist()
    rows.groupBy("found.id", F.window("at", "1 minute")).count().collect()
    rows.write.mode("overwrite").partitionBy("id").parquet(f"out/{number}")
    rows.rdd.count()
    rows.unpersist()

stream = spark.readStream.schema("id BIGINT, body STRING").parquet("source").withColumn("at", F.current_timestamp())
once = stream.withWatermark("at", "1 minute").dropDuplicatesWithinWatermark(["id"])
query = once.writeStream.foreachBatch(write).option("checkpointLocation", "checkpoint").trigger(availableNow=True)
query.start().awaitTermination()
"""

_PROGRAM = """
import json, sys
from tests.support.spark_sessions import session
report = {{}}
with session({master!r}, {conf!r}) as spark:
{body}
with open({answer!r}, "w") as file:
    json.dump(report, file)
"""


def environment(python: str = sys.executable, python_path: str = str(ROOT)) -> dict[str, str]:
    """The variables that Spark reads from the environment.

    :param python: the Python of the workers
    :param python_path: where they find gnsq_like
    :raises JavaNotFound: see ``gnsq_like.spark.java``
    """
    environ = {key: value for key, value in os.environ.items() if key in {"PATH", "JAVA_HOME"}}
    java, home = use_java(environ), _spark_home()
    archive = _archive(java, home)
    return {
        **environ,
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": python_path,
        "JDK_JAVA_OPTIONS": " ".join([*_JAVA_OPTIONS, *([f"-XX:SharedArchiveFile={archive}"] * archive.exists())]),
    }


def _spark_home() -> str:
    """A home of Spark whose Pythons start faster, for all sessions; one for each pyspark that tests have run with."""
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return make_home(ROOT / ".venv" / f"spark-home-{zlib.crc32(os.fsencode(spec.origin)):08x}")


def _archive(java: str, home: str) -> Path:
    """Where the archive of Spark's classes is, for this Java and this Spark; Java ignores it for another one."""
    import pyspark

    key = f"{os.path.realpath(java)} {pyspark.__version__}"
    return Path(home, f"classes-{zlib.crc32(key.encode()):08x}.jsa")


@contextmanager
def session(master: str, conf: Mapping[str, str] = {}) -> Iterator[SparkSession]:
    """A session, with the environment that it needs as long as it lives."""
    changed = environment()
    before = {key: os.environ.get(key) for key in {*changed, "JAVA_HOME"}}
    if "JAVA_HOME" not in changed:
        os.environ.pop("JAVA_HOME", None)
    os.environ.update(changed)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("gnsq_like tests")
    # Its catalog creates this; by default in the working directory.
    nowhere = str(Path(tempfile.gettempdir()) / "gnsq_like-warehouse")
    for key, value in {**CONF, "spark.sql.warehouse.dir": nowhere, **conf}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
        for key, old in before.items():
            if old is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = old


def run_program(
    directory: Path,
    body: str,
    *,
    master: str = "local[2]",
    conf: Mapping[str, str] = {},
    environ: Mapping[str, str] = {},
) -> dict[str, Any]:
    """Run a program that has a session of its own; returns its ``report``. AssertionError if it fails.

    :param directory: for the program and its files
    :param body: its text, starting at the left margin
    :param environ: more variables for its environment, such as JAVA_HOME
    """
    answer = directory / "report.json"
    answer.unlink(missing_ok=True)
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    program = directory / "program.py"
    program.write_text(_PROGRAM.format(master=master, conf=dict(conf), body=indented, answer=str(answer)))
    # A new session of the system, so that all processes that it starts (JVMs, workers) end with it in any case.
    process = subprocess.Popen(
        [sys.executable, str(program)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    try:
        output, _ = process.communicate()
    except BaseException:  # the limit of the test
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert process.returncode == 0, output[-10_000:]
    report: dict[str, Any] = json.loads(answer.read_text())
    return report


def main() -> None:
    """Make the archive, unless it is there, or there is no Java."""
    try:
        found = environment()
    except JavaNotFound:
        return
    java = use_java(dict(found))
    archive = _archive(java, found["SPARK_HOME"])
    # A Java behind a script is at another place in each process.
    if not archive.exists() and not Path(java).is_relative_to(tempfile.gettempdir()):
        with tempfile.TemporaryDirectory(prefix="gnsq_like-classes-") as directory:
            conf = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive} -Xlog:disable"}
            try:
                run_program(Path(directory), _LOAD_CLASSES, conf=conf)
            except AssertionError as exc:  # a Java that makes no archives: the tests run without
                print(f"no archive of Spark's classes: {exc}", file=sys.stderr)


if __name__ == "__main__":
    main()
