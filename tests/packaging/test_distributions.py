"""The wheel and the sdist: sound, complete, and of use in an environment that has nothing else, or one extra.

They are built as for a release, the wheel from the sdist.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from email import message_from_bytes
from email.message import Message as Metadata
from pathlib import Path

import pytest

from gnsq_like.testing import RunningNsqd
from tests.support.pages import blocks, page, replaced

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

#: For each extra: the page whose first example runs with nothing else installed, and what makes a program of it.
EXTRAS = {
    "cli": ("", "import subprocess\nsubprocess.run(['gnsq-like', 'demo', '--messages', '200'], check=True)"),
    "cli,self-signed": ("", "from gnsq_like.cli.self_signed import self_signed"),
    "flask": ("web.rst", "assert create_app().test_client().post('/click', data={'button': 'red'}).status_code == 204"),
    "django": (
        "django.rst",
        """
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=INSTALLED_APPS[1:], NSQ=NSQ)
django.setup()
from gnsq_like.contrib.django import publish
publish("clicks", {"button": "red"})
""",
    ),
    "django-health": ("", "from gnsq_like.contrib.django.health import NSQ; assert NSQ()"),
    "django-tasks": ("", "import django_tasks"),
    "flask,sqlalchemy": (
        "",
        """
from sqlalchemy import MetaData
from gnsq_like.contrib.flask import NSQ
from gnsq_like.contrib.flask.outbox import Outbox
metadata = MetaData()
Outbox(NSQ(), metadata, None)
assert metadata.tables
""",
    ),
    "gunicorn": ("", "from gnsq_like.contrib.gunicorn import WorkerReaders; import gunicorn.workers.ggevent"),
    "prometheus": ("", "from gnsq_like.contrib.prometheus import Metrics; assert Metrics().wsgi_app()"),
    "otel": ("tracing.rst", "producer.publish('orders', {'order': 7}); producer.close()"),
    "zstd": ("", "from gnsq_like.tools.to_file.members import _zstandard; _zstandard()"),
    "object-stores": ("", "import fsspec; fsspec.get_filesystem_class('s3')"),
    "msgpack": ("", "from gnsq_like import Producer; Producer('127.0.0.1:4150', encoder='msgpack')"),
    "admin": (
        "",
        "from gnsq_like import admin; admin.create_app(admin.AdminOptions(nsqd_http_addresses=['[::1]:4151']))",
    ),
}
#: Those that install Spark; with GNSQ_LIKE_EXTRAS=all they are tested, too.
ON_SPARK = {
    "spark": ("", "import pyspark_nsq"),
    "spark-object-stores": ("", "import s3fs"),
    "pipeline": ("", "import subprocess\nsubprocess.run(['gnsq-like', 'pipeline', 'demo'], check=True)"),
    "delta": ("", "from gnsq_like.spark.tables import delta"),
    "iceberg": ("", "from gnsq_like.spark.tables import iceberg"),
    "all": ("", "import gnsq_like.spark, flask, django"),
}
if os.environ.get("GNSQ_LIKE_EXTRAS") == "all":
    EXTRAS |= ON_SPARK

#: What Python and Django find by their names.
FOUND_BY_NAME = r"__main__|/(apps|migrations/\w+|management/\w+|management/commands/\w+)\.py$|spark/pyspark_nsq\.py"


def run(*command: str | Path, cwd: Path = ROOT, status: int = 0) -> str:
    """What it prints, stderr too. Outside the checkout, and without what the tests have on their path."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ["PATH"] = f"{Path(command[0]).parent}:{environ['PATH']}"
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


def build(source: Path, into: Path) -> None:
    """Build both as ``make dist`` does, as of a moment in 2027."""
    run("env", "SOURCE_DATE_EPOCH=1800000000", sys.executable, "-m", "build", "--outdir", into, source)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    build(ROOT, directory)
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
    return environment_of(str(wheel), tmp_path_factory.mktemp("environment"))


def environment_of(requirement: str, directory: Path) -> Path:
    """Where the commands are of a new environment with a requirement and nothing else."""
    run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, directory / "venv")
    python = directory / "venv/bin/python"
    run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, requirement)
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


def test_an_sdist_is_built_again_with_the_same_bytes(distributions: Path, tmp_path: Path) -> None:
    [sdist] = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [unpacked] = tmp_path.iterdir()
    build(unpacked, tmp_path / "dist")
    for each in distributions.iterdir():
        assert (tmp_path / "dist" / each.name).read_bytes() == each.read_bytes(), each.name


def test_the_wheel_is_small_and_each_of_its_modules_is_imported(wheel: Path) -> None:
    assert wheel.stat().st_size < 2**20
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


def test_the_command_says_what_it_needs(environment: Path, tmp_path: Path) -> None:
    assert 'pip install "gnsq-like[cli]"' in run(environment / "gnsq-like", "--version", cwd=tmp_path, status=1)


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_alone_is_enough_for_its_example(extra: str, wheel: Path, tmp_path: Path, nsqd: RunningNsqd) -> None:
    python = environment_of(f"{wheel}[{extra}]", tmp_path) / "python"
    name, program = EXTRAS[extra]
    example = blocks(page(name))[0] if name else ""
    (tmp_path / "example.py").write_text(replaced(f"{example}\n{program}", {"127.0.0.1:4150": nsqd.tcp_address}))
    run(python, "example.py", cwd=tmp_path)
