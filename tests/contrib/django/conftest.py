"""Django, set up in this process for what needs no server; and a project to run commands of."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import django
import pytest
from django.conf import settings

from tests.support.web import ROOT, running

PROJECT = Path(__file__).parent / "project"

settings.configure(
    INSTALLED_APPS=["gnsq_like.contrib.django"],
    DATABASES={name: {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"} for name in ("default", "other")},
    USE_TZ=True,
    NSQ={"NSQD_TCP_ADDRESSES": "127.0.0.1:1"},
)
django.setup()


class Project:
    """A copy of the project under test, with a database file of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = path / "ledger.sqlite3"

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "NOTES": str(self.path / "notes"), **more}

    def manage(self, *arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; its output is text."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=self.path,
            env=self.environment(**environment),
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def running(self, *arguments: str, listening: str = "", **environment: str):
        """Context manager: a command that stays."""
        return running(["-u", "manage.py", *arguments], self.path, listening, **environment)

    def lines(self, writer: str) -> list[str]:
        """The names in the ledger that this writer wrote."""
        connection = sqlite3.connect(self.database, timeout=60)
        try:
            return [name for (name,) in connection.execute("SELECT name FROM ledger_line WHERE writer = ?", [writer])]
        finally:
            connection.close()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory):
    """The project as every test gets a copy of it."""
    path = tmp_path_factory.mktemp("django") / "project"
    shutil.copytree(PROJECT, path, ignore=shutil.ignore_patterns("__pycache__", "*.sqlite3"))
    done = Project(path).manage("migrate", "--verbosity", "0", NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:1")
    assert done.returncode == 0, done.stderr
    # Readers and requests write at once: a log beside the file spares most of the waiting.
    connection = sqlite3.connect(path / "ledger.sqlite3")
    connection.execute("PRAGMA journal_mode = wal")
    connection.close()
    return path


@pytest.fixture
def project(migrated, tmp_path):
    path = tmp_path / "project"
    shutil.copytree(migrated, path)
    return Project(path)
