"""The wheel and the sdist: sound, complete, and of use in an environment that has nothing else."""

from __future__ import annotations

import ast
import re
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from email import message_from_bytes
from email.message import Message as Metadata
from pathlib import Path

import pytest

from tests.support.built import ROOT, build, environment_of, run

pytestmark = [pytest.mark.package, pytest.mark.timeout(300)]

#: Publishes and consumes, with the daemon that is in the wheel; tests/ is not there.
PROGRAM = """
import importlib.util
from gnsq_like import Producer, Reader, errors
from gnsq_like.server import Nsqd

with Nsqd(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0") as nsqd:
    with Producer(nsqd.tcp_address) as producer:
        producer.publish("clicks", b"from a wheel")
        try:
            producer.publish("not a topic", b"a body")
        except errors.NSQError as exc:
            print(type(exc).__name__)
    reader = Reader("clicks", "archive", nsqd_tcp_addresses=nsqd.tcp_address)
    for message in reader:
        with message:
            print(message.body.decode())
            reader.stop()
    reader.wait()
print(importlib.util.find_spec("tests"), importlib.util.find_spec("pyspark_nsq") is not None)
"""

#: What Python, Spark and Django find by their names.
FOUND_BY_NAME = r"__main__|/(pyspark_nsq|admin|apps|migrations/\w+|management/(commands/)?\w+)\.py$"


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Metadata:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands are of a new environment with the wheel and what it requires."""
    return environment_of(str(wheel), tmp_path_factory.mktemp("environment"))


def tracked(*patterns: str) -> set[str]:
    """Files of the checkout, of which git knows."""
    listed = set(run("git", "ls-files", "--", *patterns).splitlines())
    return {name for name in listed if (ROOT / name).exists()}


def test_both_are_sound(distributions: Path, wheel: Path) -> None:
    checked = run(sys.executable, "-m", "twine", "--no-color", "check", "--strict", *distributions.iterdir())
    assert checked.count("PASSED") == 2, checked
    assert run(sys.executable, "-m", "check_wheel_contents", wheel).endswith(": OK\n")


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    top_level = "gnsq_like/spark/found_by_spark/"
    assert names == {name.removeprefix(top_level) for name in tracked("gnsq_like")}
    assert "pyspark_nsq.py" in names


def test_the_sdist_has_the_whole_project(distributions: Path) -> None:
    [sdist] = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needless = tracked(".ci", ".gitignore")
    assert tracked() - needless <= names
    assert not needless & names
    assert not [name for name in names if re.search(r"(^|/)(\.venv|\.git/|__pycache__|_build)", name)]


def test_an_sdist_is_built_again_with_the_same_bytes(distributions: Path, tmp_path: Path) -> None:
    [sdist] = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [unpacked] = tmp_path.iterdir()
    build(unpacked, tmp_path / "dist")
    for each in distributions.iterdir():
        assert (tmp_path / "dist" / each.name).read_bytes() == each.read_bytes(), each.name


def test_the_wheel_is_small_and_each_of_its_modules_is_imported(wheel: Path) -> None:
    assert wheel.stat().st_size < 1_000_000
    texts = [(ROOT / name).read_text() for name in tracked("docs/*.rst", "setup.cfg")]
    named = set(re.findall(r"gnsq_like[.\w]*", "\n".join(texts)))
    modules = tracked("gnsq_like/*.py")
    for name in modules:
        package = name.split("/")[:-1]
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.Import):
                named |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                named |= {f"{node.module}.{each.name}" for each in node.names}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # loaded by name
                named |= {node.value.partition(":")[0], ".".join([*package, node.value.removesuffix(".py")])}
    for each in [*named]:
        named |= {each[: dot.start()] for dot in re.finditer(r"\.", each)}
    found_otherwise = {name for name in modules if re.search(FOUND_BY_NAME, name)}
    assert [name for name in modules - found_otherwise if module_of(name) not in named] == []


def module_of(file: str) -> str:
    return re.sub(r"(/__init__)?\.py$", "", file).replace("/", ".")


def test_the_metadata_is_what_an_index_shows(metadata: Metadata) -> None:
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Description-Content-Type"].startswith("text/x-rst")
    assert metadata["Summary"]
    description = metadata.as_string()
    assert "\nCompared with gnsq and pynsq\n" in description
    assert ".. image::" not in description, "an index has no such files"
    classifiers = metadata.get_all("Classifier") or []
    assert {"Typing :: Typed", "Framework :: Django", "Framework :: Flask", "Framework :: Pytest"} <= set(classifiers)


def test_the_extra_all_has_every_extra_for_users(metadata: Metadata) -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    others = {"all", "test", "docs", "release", "fuzz", "mutation"}
    named = set(re.findall(r"[\w-]+", setup["options.extras_require"]["all"])) - {"gnsq", "gnsq-like"}
    assert named == set(metadata.get_all("Provides-Extra") or []) - others


def test_each_extra_that_is_named_exists(metadata: Metadata) -> None:
    """In messages, comments, examples and pages: the extra [NAME,...], or as pip takes it."""
    known = set(metadata.get_all("Provides-Extra") or [])
    for name in tracked("gnsq_like", "docs", "examples", "*.rst"):
        path = ROOT / name
        if path.suffix in {".py", ".rst", ".html", ""}:
            for extras in re.findall(r"(?:gnsq[-_]like|extras? `{0,2}|\"\.)\[([\w,-]+)\]", path.read_text()):
                assert set(extras.split(",")) <= known, (name, extras)


def test_it_publishes_and_consumes_where_nothing_else_is(environment: Path, tmp_path: Path) -> None:
    printed = run(environment / "python", "-W", "error", "-c", PROGRAM, cwd=tmp_path)
    assert printed.splitlines() == ["InvalidName", "from a wheel", "None True"]


def test_the_command_says_what_it_needs(environment: Path, tmp_path: Path) -> None:
    assert "the extra [cli]" in run(environment / "gnsq-like", "--version", cwd=tmp_path, status=1)
