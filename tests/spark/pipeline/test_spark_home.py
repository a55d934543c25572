"""A home of Spark without pyspark.zip, and when it may take the place of the installed one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark

from gnsq_like.spark.pipeline.session import can_replace, make_home
from tests.support.scripts import run_script

PACKAGE = Path(pyspark.__file__).parent
OURS = {"PYSPARK_PYTHON": sys.executable}


def test_a_home_has_what_spark_needs_and_not_the_file(tmp_path: Path) -> None:
    assert (PACKAGE / "python" / "lib" / "pyspark.zip").exists()
    home = Path(make_home(tmp_path / "home"))
    assert (home / "bin" / "spark-submit").samefile(PACKAGE / "bin" / "spark-submit")
    assert any((home / "jars").glob("spark-core_*.jar"))
    assert not (home / "python").exists()
    assert make_home(home) == str(home)  # it may be there


def test_it_takes_the_place_of_the_installed_one(tmp_path: Path) -> None:
    assert can_replace(OURS)
    assert can_replace({**OURS, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_CONF_DIR": str(tmp_path)})


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"PYSPARK_PYTHON": "python3"},
        {**OURS, "PYSPARK_DRIVER_PYTHON": "jupyter"},
        {**OURS, "SPARK_HOME": "/opt/spark"},
    ],
)
def test_not_where_another_python_or_spark_is_chosen(environ: dict[str, str]) -> None:
    assert not can_replace(environ)


def test_not_where_a_script_of_spark_may_choose_one(tmp_path: Path) -> None:
    (tmp_path / "spark-env.sh").touch()
    assert not can_replace({**OURS, "SPARK_CONF_DIR": str(tmp_path)})


def test_not_where_only_this_process_finds_pyspark(tmp_path: Path) -> None:
    for name in ("pyspark", "py4j"):
        (tmp_path / name).symlink_to(PACKAGE.parent / name)
    code = """
        import sys
        sys.path.insert(0, sys.argv[1])
        from gnsq_like.spark.pipeline.session import can_replace
        ours = {"PYSPARK_PYTHON": sys.executable}
        print(can_replace(ours), can_replace({**ours, "PYTHONPATH": sys.argv[1]}))
    """
    assert run_script(code, str(tmp_path)) == ["False True"]
