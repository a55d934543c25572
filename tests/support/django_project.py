"""The Django project under test, whose commands run as processes."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from gnsq_like.testing import Published, RecordingProducer
from tests.support.scripts import run_beside
from tests.support.web import ROOT, Server, running, with_patience

PROJECT = ROOT / "tests" / "contrib" / "django" / "project"


def recorded() -> list[Published]:
    """The messages published so far in this process, with the setting RECORD."""
    from gnsq_like.contrib.django import producer

    made = producer()
    assert isinstance(made, RecordingProducer)
    return made.outbox


class Project:
    """A copy of the project under test, with a database file of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = path / "ledger.sqlite3"

    @classmethod
    def migrated(cls, path: Path) -> Project:
        """A new copy, with an empty database."""
        shutil.copytree(PROJECT, path, ignore=shutil.ignore_patterns("__pycache__", "*.sqlite3"))
        project = cls(path)
        done = project.manage("migrate", "--verbosity", "0", NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:1")
        assert done.returncode == 0, done.stderr
        # Readers and requests write at once: with a write-ahead log they seldom wait for each other.
        connection = sqlite3.connect(project.database)
        connection.execute("PRAGMA journal_mode = wal")
        connection.close()
        return project

    def copied_to(self, path: Path) -> Project:
        """A copy with a copy of the database."""
        shutil.copytree(self.path, path)
        return Project(path)

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a command."""
        return {**os.environ, "PYTHONPATH": str(ROOT), "NOTES": str(self.path / "notes"), **with_patience(more)}

    def manage(self, *arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; its output is text."""
        command = [sys.executable, "manage.py", *arguments]
        return run_beside(command, cwd=self.path, env=self.environment(**environment), input=stdin)

    def running(self, *arguments: str, listening: str = "", **environment: str) -> AbstractContextManager[Server]:
        """Context manager: a command that runs until it is ended."""
        return running(["-u", "manage.py", *arguments], self.path, listening, **environment)

    def lines(self, writer: str) -> list[str]:
        """The names in the ledger that this writer wrote."""
        connection = sqlite3.connect(self.database, timeout=60)
        try:
            return [name for (name,) in connection.execute("SELECT name FROM ledger_line WHERE writer = ?", [writer])]
        finally:
            connection.close()
