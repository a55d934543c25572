"""A private PostgreSQL for tests, from the installed package: a cluster on a unix socket, a database for each test.

PostgreSQL does not run as root: then it is given to an unprivileged user of the machine.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gnsq_like.testing.waits import wait_until

#: Where Debian's packages have the programs, which they do not put on PATH.
_DEBIAN = Path("/usr/lib/postgresql")
#: The superuser of the cluster.
USER = "tests"


@cache
def _programs() -> Path | None:
    """The directory with initdb and postgres."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    versions = sorted(_DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parent.parent.name))
    return versions[-1].parent if versions else None


@cache
def _other_user() -> pwd.struct_passwd | None:
    """The user that PostgreSQL runs as, if that is not this process's."""
    if os.geteuid() != 0:
        return None
    names = {each.pw_name: each for each in pwd.getpwall()}
    return names.get("postgres") or names["nobody"]


class Postgres:
    """A running cluster."""

    def __init__(self, directory: Path) -> None:
        #: The directory of its socket, which stands for a host.
        self.host = str(directory)
        self._count = 0

    def new_database(self) -> str:
        """The name of a new, empty database."""
        self._count += 1
        name = f"tests_{self._count}"
        self.execute(f"CREATE DATABASE {name}", "postgres")
        return name

    def execute(self, statement: str, database: str) -> list[Any]:
        """Run a statement outside a transaction, and return its rows."""
        import psycopg

        with psycopg.connect(host=self.host, user=USER, dbname=database, autocommit=True) as connection:
            found = connection.execute(statement)
            return list(found) if found.description else []


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Context manager: a cluster. Skips the test where PostgreSQL or its driver is not installed."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL: Debian's package is postgresql")
    user = _other_user()
    owner: dict[str, Any] = {}
    directory = Path(tempfile.mkdtemp(prefix="gnsq-pg-"))
    if user is not None:
        os.chown(directory, user.pw_uid, user.pw_gid)
        # With root's group, because initdb writes to /dev/null, which in some containers only that may do.
        owner = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [0]}
    directory.chmod(0o755)
    data = directory / "data"
    try:
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", USER, "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"],
            check=True,
            capture_output=True,
            cwd=directory,
            **owner,
        )
        settings = {"listen_addresses": "", "unix_socket_directories": directory, "fsync": "off", "max_connections": 50}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (directory / "log").open("wb") as log:
            server = subprocess.Popen(
                [programs / "postgres", "-D", data, *options], stdout=log, stderr=log, cwd=directory, **owner
            )
        try:
            postgres = Postgres(directory)
            wait_until(lambda: _answers(postgres, server, directory), 60, "PostgreSQL")
            yield postgres
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait(30)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _answers(postgres: Postgres, server: subprocess.Popen[bytes], directory: Path) -> bool:
    import psycopg

    assert server.poll() is None, (directory / "log").read_text()
    try:
        postgres.execute("SELECT 1", "postgres")
    except psycopg.OperationalError:
        return False
    return True


# -- databases of their own for Django's tests in this process: a file of SQLite, or one of a private PostgreSQL


def on_postgres(postgres: Postgres) -> dict[str, Any]:
    """The settings of a new database."""
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": postgres.new_database(),
        "USER": USER,
        "HOST": postgres.host,
    }


@contextmanager
def migrated(alias: str, settings: dict[str, Any], *apps: str) -> Iterator[str]:
    """Context manager: a database of this alias during the block, with the tables of these apps."""
    from django.core.management import call_command
    from django.db import connections

    connections.settings[alias] = {**connections.settings["default"], "OPTIONS": {}, **settings}
    try:
        for app in apps:
            call_command("migrate", app, database=alias, verbosity=0)
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]
