"""The Spark session of a pipeline that has none of its caller's: that of spark-submit, or a new one."""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnsq_like.errors import InvalidOption
from gnsq_like.spark import py_files, register
from gnsq_like.spark.java import use_java
from gnsq_like.spark.pipeline.config import Pipeline
from gnsq_like.spark.pipeline.reachable import check_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Set if spark-submit started this process and has configured everything.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"

#: Spark's own log goes to stderr, at the wanted level from the first line on. The class that serves Python needs a
#: level of its own, or it sets all levels to WARN and prints that.
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
#: The masters that Spark accepts.
_MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")
#: How often a task is tried; Spark's default on clusters. A worker that dies then costs a task, and not the run.
_ATTEMPTS = 4
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

#: Settings of the session unless it has others. In a directory, Spark's logs have no checksums: without its native
#: library, Hadoop starts a program, chmod, for each file that it creates, and another one for the checksum
#: (docs/internals S4).
_SETTINGS = {
    "fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}


def open_session(pipeline: Pipeline, master: str | None, log_level: str) -> SparkSession:
    """Open the session of spark-submit, or a new one; it knows the format nsq.

    :param master: the Spark to use; None for that of spark-submit, or for this machine
    :param log_level: the level of Spark's log on stderr
    :raises InvalidOption: Spark has no such master
    :raises JavaNotFound: there is no Java for Spark
    :raises NotBegun: nothing answers at the master
    """
    submitted = _SUBMITTED in os.environ
    chosen = master or pipeline.spark.get("spark.master") or (None if submitted else "local[*]")
    if chosen is not None:
        chosen = with_attempts(chosen)
    if chosen is not None and not _MASTER.fullmatch(chosen):
        raise InvalidOption("master", chosen, "it must be one such as local[4], spark://host:7077, yarn or k8s://...")
    if chosen is not None:
        check_master(chosen)
    # Executors that start later fetch files from it, too, so it stays as long as this process.
    directory = Path(tempfile.mkdtemp(prefix="gnsq_like-pipeline-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    settings = dict(pipeline.spark)
    if not submitted:
        use_java()
        if _is_local(chosen):
            # Spark's default is the python3 on PATH, which may be another one.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings.setdefault("spark.ui.showConsoleProgress", "false")
        log4j = directory / "log4j2.properties"
        log4j.write_text(_LOG4J.format(level=log_level))
        options = settings.get(_JAVA_OPTIONS, "")
        settings[_JAVA_OPTIONS] = f"{options} -Dlog4j2.configurationFile={log4j.as_uri()}".strip()
    if chosen is not None:
        settings["spark.master"] = chosen
    is_usual = not submitted and _is_local(chosen) and not any(each.startswith("spark.pyspark.") for each in settings)
    with _spark_home(directory / "spark") if is_usual and can_replace(os.environ) else nullcontext():
        spark = _create(pipeline.title, settings, quiet=log_level == "OFF" and not submitted)
    context = spark.sparkContext
    context.setLogLevel(log_level)
    known = context.getConf()
    for name, value in {**_SETTINGS, "spark.sql.shuffle.partitions": str(context.defaultParallelism)}.items():
        if not known.contains(name):
            spark.conf.set(name, value)
    if not _is_local(context.master) or context.pythonExec != sys.executable:
        # Spark's Python may have no gnsq_like, or another version.
        context.addPyFile(py_files(directory / "gnsq_like.zip"))
    register(spark)
    return spark


def with_attempts(master: str) -> str:
    """A master that tries a failed task again, as clusters do: a local one does not unless it is told how often."""
    found = re.fullmatch(r"local(?:\[\s*([^,\]]+?)\s*\])?", master)
    return master if found is None else f"local[{found[1] or 1},{_ATTEMPTS}]"


def _is_local(master: str | None) -> bool:
    return master is not None and re.fullmatch(r"local(\[.+\])?", master) is not None


@contextmanager
def _spark_home(directory: Path) -> Iterator[None]:
    """For the start of Java, which keeps its environment: a home of Spark whose Pythons start faster."""
    try:
        home = make_home(directory)
    except OSError:  # a system without symbolic links
        yield
        return
    os.environ["SPARK_HOME"] = home
    try:
        yield
    finally:
        os.environ.pop("SPARK_HOME", None)


def _create(title: str, settings: Mapping[str, str], *, quiet: bool) -> SparkSession:
    """Create the session in another thread: in the main one, pyspark would handle SIGINT itself.

    :param quiet: whether to leave out what this process's libraries say of the end of Java
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(title)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with ThreadPoolExecutor(1) as thread:
        spark = thread.submit(builder.getOrCreate).result()
    if quiet:
        _hide_end_of_java(spark)
    return spark


def _hide_end_of_java(spark: SparkSession) -> None:
    """If Java is killed, py4j and pyspark print a traceback for each connection; the run's error says it once."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # py4j reports it to the root logger.
    logging.getLogger().addFilter(lambda record: "while sending command" not in str(record.msg))
    server: Any = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda request, address: None


# -- a home of Spark ------------------------------------------------------------------------------------
#
# Its Pythons import pyspark from its package, and not from ``python/lib/pyspark.zip``. Spark puts that file first on
# the path of every Python that it starts, about eight a session. Python keeps no compiled form of a module from a zip
# file, so each of them compiles pyspark again: 1.4 s of CPU time. Without it they import the installed package, if
# they run this same Python; Python ignores path entries that do not exist.


#: The parts of its home that Spark reads on one machine, besides the Python packages.
_PARTS = ("bin", "conf", "jars", "sbin")


def make_home(directory: Path) -> str:
    """Make a home of Spark from the installed pyspark, in an empty directory or one with such a home.

    :returns: the directory, for SPARK_HOME
    """
    package = _package("pyspark")
    assert package is not None
    directory.mkdir(parents=True, exist_ok=True)
    for name in _PARTS:
        if (package / name).exists():
            with suppress(FileExistsError):
                (directory / name).symlink_to(package / name)
    return str(directory)


def can_replace(environ: Mapping[str, str], executable: str = sys.executable) -> bool:
    """Whether Spark's Pythons find the same pyspark without Spark's own home.

    They do not if they are another Python, if another Spark was chosen, or if this process has found pyspark where only
    it looks.

    :param environ: the variables that Spark will have
    :param executable: this Python
    """
    package, py4j = _package("pyspark"), _package("py4j")
    if "SPARK_HOME" in environ or package is None or py4j is None:
        return False
    # For tasks; and for planning, where the first one counts that is set.
    chosen = environ.get("PYSPARK_PYTHON"), environ.get("PYSPARK_DRIVER_PYTHON", executable)
    if set(chosen) != {executable}:
        return False
    if not (package / "bin" / "spark-submit").exists() or (package / "spark-distribution").exists():
        return False  # a Spark whose home is elsewhere
    if Path(environ.get("SPARK_CONF_DIR", package / "conf"), "spark-env.sh").exists():
        return False  # it may choose anything
    known = {*site.getsitepackages(), sysconfig.get_path("purelib"), *environ.get("PYTHONPATH", "").split(os.pathsep)}
    if site.ENABLE_USER_SITE:
        known.add(site.getusersitepackages())
    return {str(package.parent), str(py4j.parent)} <= known


def _package(name: str) -> Path | None:
    spec = find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None
