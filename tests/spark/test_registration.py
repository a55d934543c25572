"""How Spark finds the format: by register, by installing, and on executors that lack gnsq_like."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest

from gnsq_like.spark import py_files
from tests.support.daemons import running_nsqd
from tests.support.spark_sessions import ROOT, run_program

#: The modules that executors need beside gnsq_like, and the modules that those need.
NEEDED = ["gevent", "greenlet", "zope", "requests", "urllib3", "idna", "certifi", "charset_normalizer"]
NEEDED += ["snappy", "cramjam", "pyarrow", "pyspark", "py4j"]


def run_python(code: str, python: str = sys.executable, **environ: str) -> str:
    done = subprocess.run(
        [python, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        cwd="/",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("java")
def test_looking_for_formats_loads_little() -> None:
    """Spark imports pyspark_nsq in every session that looks for a data source."""
    loaded = run_python(
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_nsq\n"
        "assert pyspark_nsq.DefaultSource.name() == 'nsq'\n"
        "print(*sorted(set(sys.modules) - before))",
        PYTHONPATH=f"{ROOT}:{ROOT / 'gnsq_like' / 'spark'}",
    ).split()
    assert {name for name in loaded if not name.startswith("gnsq_like")} <= {"pyspark_nsq", "contextlib", "pathlib"}
    assert "gnsq_like.spark.source.data_source" in loaded


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("package", ["gevent", "pyarrow"])
def test_a_python_that_lacks_something_is_named_with_it(package: str) -> None:
    said = run_python(
        f"import sys; sys.modules[{package!r}] = None\n"
        "from gnsq_like.spark.source.data_source import NsqDataSource\n"
        "try:\n    NsqDataSource({}).streamReader(None)\nexcept Exception as exc:\n    print(type(exc).__name__, exc)",
        PYTHONPATH=str(ROOT),
    )
    assert said.startswith(f"NotInstalled {sys.executable}, the Python that Spark runs, lacks {package}: install")


def test_importing_the_room_needs_no_pyspark() -> None:
    loaded = run_python("import sys, gnsq_like.spark, gnsq_like.spark.java; print(*sys.modules)", PYTHONPATH=str(ROOT))
    assert not {"pyspark", "pyarrow", "gevent"} & set(loaded.split())


def test_py_files_holds_the_package(tmp_path: Path) -> None:
    path = py_files(tmp_path / "gnsq_like.zip")
    names = ZipFile(path).namelist()
    assert {"gnsq_like/__init__.py", "gnsq_like/spark/source/driver.py", "gnsq_like/wire/frames.py"} <= set(names)
    assert "gnsq_like/spark/pipeline/report.html" in names
    assert all(name.startswith("gnsq_like/") and name.endswith((".py", ".html")) for name in names)
    code = "import gnsq_like; print(gnsq_like.__file__); gnsq_like.Reader('t', 'c', print, nsqd_tcp_addresses='h:1')"
    assert run_python(code, PYTHONPATH=path).startswith(path)


# -- by installing ------------------------------------------------------------------------------------


WITHOUT_REGISTER = """
frame = spark.createDataFrame([("a",), ("b",)], "body STRING")
frame.write.format("nsq").options(nsqdTcpAddresses={tcp!r}, topic="t").mode("append").save()
options = dict(nsqdTcpAddresses={tcp!r}, nsqdHttpAddresses={http!r}, topic="t", channel="c")
rows = spark.read.format("nsq").options(**options).load().collect()
report["bodies"] = sorted(bytes(row.body).decode() for row in rows)
import gnsq_like.spark
gnsq_like.spark.register(spark)
report["again"] = spark.read.format("NSQ").options(**options).load().count()
"""


@pytest.mark.spark_long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("java")
def test_an_installed_package_needs_no_register(tmp_path: Path) -> None:
    """Built and installed as users do; the session sees only the installed gnsq_like."""
    target = tmp_path / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    copied = tmp_path / "source"
    _copy_sources(copied)
    subprocess.run([*command, "--target", str(target), str(copied)], check=True, timeout=300)
    assert (target / "pyspark_nsq.py").exists()
    assert (target / "gnsq_like" / "spark" / "pipeline" / "report.html").exists()
    with running_nsqd("process") as nsqd:
        report = run_program(
            tmp_path,
            WITHOUT_REGISTER.format(tcp=nsqd.tcp_address, http=nsqd.http_address),
            python_path=str(target),
        )
    assert report == {"bodies": ["a", "b"], "again": 2}


def _copy_sources(target: Path) -> None:
    """Copy the files of a release; building them elsewhere leaves nothing in the checkout."""
    files = [path for path in ROOT.glob("gnsq_like/**/*") if path.suffix in {".py", ".typed", ".html"}]
    for file in (*files, *(ROOT / name for name in ("setup.cfg", "setup.py", "README.rst", "LICENSE"))):
        copy = target / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())


# -- executors that lack gnsq_like --------------------------------------------------------------------


BY_PY_FILES = """
import gnsq_like.spark
spark.sparkContext.addPyFile(gnsq_like.spark.py_files("gnsq_like.zip"))
gnsq_like.spark.register(spark)

def without(_):
    import gnsq_like
    yield gnsq_like.__file__

report["place"] = spark.sparkContext.parallelize([0], 1).mapPartitions(without).collect()
frame = spark.range(100).selectExpr("cast(id AS string) AS body")
frame.write.format("nsq").options(nsqdTcpAddresses={tcp!r}, topic="t").mode("append").save()
options = dict(nsqdTcpAddresses={tcp!r}, nsqdHttpAddresses={http!r}, topic="t", channel="c")
rows = spark.read.format("nsq").options(**options).load().collect()
report["bodies"] = sorted(int(row.body) for row in rows)
"""


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with everything that gnsq_like needs on an executor, and without gnsq_like."""
    directory = tmp_path_factory.mktemp("bare")
    venv.create(directory, with_pip=False, symlinks=True)
    [packages] = directory.glob("lib/python*/site-packages")
    for name in NEEDED:
        spec = find_spec(name)
        if spec is None:
            continue
        source = Path(str(next(iter(spec.submodule_search_locations or [str(spec.origin)]))))
        if source.parent != packages and not (packages / source.name).exists():
            (packages / source.name).symlink_to(source)
    return str(directory / "bin" / "python")


@pytest.mark.spark_long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("java")
def test_py_files_bring_it_to_executors(tmp_path: Path, bare_python: str) -> None:
    code = "import gevent, requests, snappy, pyarrow, pyspark, importlib.util as u; print(u.find_spec('gnsq_like'))"
    assert run_python(code, bare_python, PYTHONPATH="") == "None\n"
    with running_nsqd("process") as nsqd:
        report = run_program(
            tmp_path,
            BY_PY_FILES.format(tcp=nsqd.tcp_address, http=nsqd.http_address),
            master="local-cluster[1,1,1024]",
            python=bare_python,
            python_path="",
        )
    assert report["bodies"] == list(range(100))
    [place] = report["place"]
    assert "gnsq_like.zip" in place
