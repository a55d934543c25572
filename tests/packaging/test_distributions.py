"""The wheel and the sdist: sound, complete, and of use in an environment that has nothing else.

They are built as for a release, the wheel from the sdist.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from email import message_from_bytes, message_from_string
from email.message import Message as Metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

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


def run(*command: str | Path, cwd: Path = ROOT, status: int = 0) -> str:
    """What it prints, stderr too. Outside the checkout, and without what the tests have on their path."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", directory, ROOT)
    return directory


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    [found] = distributions.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Metadata:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands are of a new environment with the wheel and what it requires."""
    directory = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", directory / "venv")
    run(directory / "venv/bin/python", "-m", "pip", "install", "--quiet", wheel)
    return directory / "venv/bin"


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
    assert names == tracked("gnsq_like") | {"pyspark_nsq.py"}


def test_the_sdist_has_the_whole_project(distributions: Path) -> None:
    [sdist] = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    hidden = tracked(".*")
    assert tracked() - hidden <= names
    assert not [name for name in names if re.search(r"(^|/)(\.|__pycache__|_build)", name)]


def test_the_metadata_is_what_an_index_shows(metadata: Metadata) -> None:
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Description-Content-Type"].startswith("text/x-rst")
    assert metadata["Summary"]
    classifiers = metadata.get_all("Classifier") or []
    assert {"Typing :: Typed", "Framework :: Django", "Framework :: Flask", "Framework :: Pytest"} <= set(classifiers)


def test_the_extra_all_has_every_extra_for_users(metadata: Metadata) -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    others = {"all", "test", "docs", "release", "fuzz", "mutation"}
    named = set(re.findall(r"[\w-]+", setup["options.extras_require"]["all"])) - {"gnsq", "gnsq-like"}
    assert named == set(metadata.get_all("Provides-Extra") or []) - others


def test_each_extra_that_is_named_exists(metadata: Metadata) -> None:
    """In messages, comments, examples and pages: `pip install "gnsq-like[NAME,...]"`."""
    known = set(metadata.get_all("Provides-Extra") or [])
    for name in tracked("gnsq_like", "docs", "examples", "*.rst"):
        path = ROOT / name
        if path.suffix in {".py", ".rst", ".html", ""}:
            for extras in re.findall(r"gnsq[-_]like\[([\w,-]+)\]", path.read_text()):
                assert set(extras.split(",")) <= known, (name, extras)


def test_it_publishes_and_consumes_where_nothing_else_is(environment: Path, tmp_path: Path) -> None:
    printed = run(environment / "python", "-W", "error", "-c", PROGRAM, cwd=tmp_path)
    assert printed.splitlines() == ["InvalidName", "from a wheel", "None True"]


def test_the_command_says_what_it_needs_and_then_runs(environment: Path, wheel: Path, tmp_path: Path) -> None:
    command = environment / "gnsq-like"
    assert 'pip install "gnsq-like[cli]"' in run(command, "--version", cwd=tmp_path, status=1)
    run(environment / "python", "-m", "pip", "install", "--quiet", f"{wheel}[cli]")
    version = message_from_string(run(environment / "python", "-m", "pip", "show", "gnsq-like"))["Version"]
    assert version in run(command, "--version", cwd=tmp_path)
    assert "0 lost" in run(command, "demo", "--messages", "200", cwd=tmp_path)
