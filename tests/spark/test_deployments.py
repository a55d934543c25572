"""The ways to deploy of docs/spark.rst and docs/pipeline.rst where ``PYSPARK_PYTHON`` has no gnsq_like of its own."""

from __future__ import annotations

import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gnsq_like.spark import py_files
from tests.spark.pipeline.killing import check, fill, read, running, write_config
from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.pages import page
from tests.support.patient import NsqdHTTPClient
from tests.support.spark_engine import PATIENT
from tests.support.spark_sessions import ROOT, environment

# -- a Spark cluster of processes for tests: a standalone master with workers; and a Python without gnsq_like


def make_bare_python(directory: Path, *requirements: str) -> str:
    """Make a Python with what pip would install for these, except gnsq_like itself; returns its path."""
    venv.create(directory, with_pip=False, symlinks=True)
    [packages] = directory.glob("lib/python*/site-packages")
    for name in _with_needed(requirements) - {"gnsq-like"}:
        found = metadata.distribution(name)
        for top in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(found.locate_file(top))).resolve())
    return str(directory / "bin" / "python")


def _with_needed(requirements: Sequence[str]) -> set[str]:
    """The names of these distributions, and of all that they need."""
    names: set[str] = set()
    waiting = [Requirement(each) for each in requirements]
    done: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in done:
            continue
        done.add(str(wanted))
        names.add(wanted.name)
        for each in map(Requirement, metadata.requires(wanted.name) or []):
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)):
                waiting.append(each)
    return names


@contextmanager
def standalone(directory: Path, workers: int) -> Iterator[str]:
    """Run a master and workers with one core each; yields the master's URL."""
    with ExitStack() as stack:
        log = stack.enter_context(_daemon(directory, "master.Master", "--webui-port", "0"))
        pattern = re.compile(r"Starting Spark master at (spark://\S+)\n")
        wait_for(lambda: pattern.search(log.read_text()), "Spark's master", 120)
        [master] = pattern.findall(log.read_text())
        for number in range(workers):
            place = directory / f"worker{number}"
            place.mkdir()
            options = ["--webui-port", "0", "-c", "1", "-m", "1g", "-d", str(place / "work"), master]
            stack.enter_context(_daemon(place, "worker.Worker", *options))
        wait_for(lambda: log.read_text().count("Registering worker") == workers, "Spark's workers", 120)
        yield master


@contextmanager
def _daemon(directory: Path, name: str, *options: str) -> Iterator[Path]:
    """Run one of Spark's daemons; yields its log."""
    import pyspark

    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    log = directory / f"{name}.log"
    environ = {**os.environ, **environment(), "SPARK_HOME": str(program.parents[1]), "PYTHONPATH": ""}
    with open(log, "w") as output:
        process = subprocess.Popen(
            [str(program), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--port", "0", *options],
            cwd=directory,
            env=environ,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield log
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # executors are in the worker's session, too
        process.wait()


pytest.importorskip("pyspark")

COUNT = 2_000
#: A job on the session ``spark``: writes, peeks at and streams messages. The rows of the stream are in Parquet.
JOB = """
from gnsq_like.spark import register

register(spark)
frame = spark.range({count}).selectExpr("cast(id AS string) AS body")
frame.write.format("nsq").options(nsqd_tcp_addresses={tcp!r}, topic="t").mode("append").save()
options = dict(nsqd_tcp_addresses={tcp!r}, nsqd_http_addresses={http!r}, topic="t", channel="c", **{patient})
assert spark.read.format("nsq").options(**options).load().count() == {count}
stream = spark.readStream.format("nsq").options(**options, staging_location="{place}/stage", min_partitions=2).load()
sink = stream.writeStream.format("parquet").option("checkpointLocation", "{place}/checkpoint")
query = sink.trigger(availableNow=True).start("{place}/rows")
query.awaitTermination()
"""
SUBMITTED = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
{job}
spark.stop()
"""
#: The driver has gnsq_like, but its environment does not say so to Spark's processes.
COMMAND = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from gnsq_like.cli import main; main()"
LOOPBACK = ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"]


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    python = make_bare_python(tmp_path_factory.mktemp("bare"), "gnsq-like", "pyarrow", "msgspec", "pyspark")
    code = "import gevent, requests, snappy, pyarrow, msgspec, pyspark; from importlib.util import find_spec as find"
    code += "; print(find('gnsq_like'))"
    assert run_bare(python, code) == "None\n"
    return python


@pytest.fixture
def nsqd() -> Iterator[Running]:
    with running_nsqd("process") as running:
        NsqdHTTPClient(running.http_address).create_topic("t")
        NsqdHTTPClient(running.http_address).create_channel("t", "c")
        yield running


def run_bare(python: str, code: str, given: bytes = b"") -> str:
    environ = {**os.environ, "PYTHONPATH": ""}
    command = [python, "-c", code]
    done = subprocess.run(command, input=given, capture_output=True, env=environ, cwd="/", check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def job_for(nsqd: Running, place: Path) -> str:
    return JOB.format(tcp=nsqd.tcp_address, http=nsqd.http_address, patient=PATIENT, count=COUNT, place=place)


def check_rows(place: Path) -> None:
    from pyarrow import dataset

    rows = dataset.dataset(place / "rows", format="parquet").to_table(["body"]).column("body").to_pylist()
    assert sorted(map(int, rows)) == list(range(COUNT))


def test_a_pickled_source_brings_the_place_of_its_package(tmp_path: Path, bare_python: str) -> None:
    """As Spark does it: pickled by a process that has the files, loaded by one that lacks them."""
    path = py_files(tmp_path / "gnsq_like.zip")
    code = (
        f"import sys; sys.path.insert(1, {path!r})\n"
        "from pyspark import cloudpickle\n"
        "from gnsq_like.spark.source.data_source import NsqDataSource\n"
        "sys.stdout.buffer.write(cloudpickle.dumps(NsqDataSource({'topic': 't'})).hex().encode())"
    )
    pickled = bytes.fromhex(run_bare(bare_python, code))
    code = "import pickle, sys; source = pickle.load(sys.stdin.buffer); print(source.options, sys.modules['gnsq_like'])"
    said = run_bare(bare_python, code, pickled)
    assert said.startswith("{'topic': 't'} ") and path in said
    # Where the package is found anyway, the path of modules stays as it is.
    before = list(sys.path)
    loaded = pickle.loads(pickled.replace(path.encode(), b"." * len(path)))
    sys.path.remove("." * len(path))
    assert (type(loaded).__name__, loaded.options, sys.path) == ("NsqDataSource", {"topic": "t"}, before)


@pytest.mark.spark_long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("java")
def test_a_cluster_whose_python_has_no_gnsq_like(tmp_path: Path, bare_python: str, nsqd: Running) -> None:
    """A job that is submitted with ``--py-files``; then the command, which sends gnsq_like along (``addPyFile``)."""
    import pyspark

    (tmp_path / "job.py").write_text(SUBMITTED.format(job=job_for(nsqd, tmp_path)))
    with standalone(tmp_path, workers=1) as master:
        submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
        options = ["--master", master, "--py-files", py_files(tmp_path / "gnsq_like.zip"), *LOOPBACK]
        run_on_cluster(tmp_path, submit, *options, str(tmp_path / "job.py"), python=bare_python, driver=bare_python)
        check_rows(tmp_path)
        fill([nsqd], COUNT)
        config = write_config([nsqd], tmp_path, COUNT // 2)
        arguments = ["pipeline", "run", "--config", str(config), "--available-now", "--master", master]
        run_on_cluster(tmp_path, sys.executable, "-c", COMMAND, *arguments, python=bare_python, driver=sys.executable)
    check(read([nsqd], tmp_path), COUNT)


@pytest.mark.spark_long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("java")
def test_the_recipe_for_a_pipeline_has_what_it_needs(tmp_path: Path, nsqd: Running) -> None:
    """The job of docs/pipeline.rst, in the environment of docs/spark.rst, which has no pyspark."""
    import pyspark

    [requirements] = re.findall(
        r"\$ python -m venv .* environment/bin/pip install (.*) venv-pack$", page("spark.rst"), re.M
    )
    [arguments] = re.findall(r" job\.py (pipeline run .*)$", page("pipeline.rst"), re.M)
    [job] = re.findall(r"the job ``(.*?)``", page("pipeline.rst"))
    (tmp_path / "job.py").write_text(job)
    python = make_bare_python(tmp_path / "environment", *shlex.split(requirements))
    [packages] = (tmp_path / "environment").glob("lib/python*/site-packages")
    assert not (packages / "pyspark").exists()
    (packages / "gnsq_like.pth").write_text(str(ROOT))
    fill([nsqd], COUNT)
    write_config([nsqd], tmp_path, COUNT)
    home = str(Path(pyspark.__file__).parent)
    command = [f"{home}/bin/spark-submit", "--master", "local[2]", "job.py", *shlex.split(arguments)]
    run_on_cluster(tmp_path, *command, python=python, driver=python, home=home)
    check(read([nsqd], tmp_path), COUNT)


def run_on_cluster(directory: Path, *command: str, python: str, driver: str, home: str = "") -> None:
    home = home or environment()["SPARK_HOME"]
    with running(
        *command, cwd=directory, PYTHONPATH="", PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=driver, SPARK_HOME=home
    ) as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output[-10_000:]
