"""How Spark finds the format; ``test_connect`` has Sparks that do by themselves, ``test_deployments`` has Pythons that
lack gnsq_like, and the wheel's content is in tests/packaging."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from gnsq_like.spark import py_files
from tests.support.spark_sessions import ROOT


def run_python(code: str, python: str = sys.executable, **environ: str) -> str:
    done = subprocess.run(
        [python, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        cwd="/",
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
@pytest.mark.parametrize("package", ["gevent", "pyarrow", "msgspec"])
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
    assert all(name.startswith("gnsq_like/") and name.endswith(".py") for name in names)
    code = "import gnsq_like; print(gnsq_like.__file__); gnsq_like.Reader('t', 'c', print, nsqd_tcp_addresses='h:1')"
    assert run_python(code, PYTHONPATH=path).startswith(path)
