"""Django, set up in this process for tests that need no server; and a project whose commands can be run."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings

from tests.support.django_project import Project
from tests.support.postgres import Postgres, running_postgres

Ask = Callable[[str], list[Any]]

settings.configure(
    INSTALLED_APPS=["gnsq_like.contrib.django", "gnsq_like.contrib.django.outbox"],
    DATABASES={name: {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"} for name in ("default", "other")},
    USE_TZ=True,
    NSQ={"NSQD_TCP_ADDRESSES": "127.0.0.1:1"},
)
django.setup()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project that every test gets a copy of."""
    return Project.migrated(tmp_path_factory.mktemp("django") / "project")


@pytest.fixture
def project(migrated: Project, tmp_path: Path) -> Project:
    return migrated.copied_to(tmp_path / "project")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, project: Project) -> tuple[dict[str, Any], Ask]:
    """For the project's commands, the environment with a database; and what asks that database."""
    if request.param == "sqlite":

        def ask(query: str) -> list[Any]:
            connection = sqlite3.connect(project.database, timeout=60)
            try:
                return list(connection.execute(query))
            finally:
                connection.close()

        return {}, ask
    server: Postgres = request.getfixturevalue("postgres")
    name = server.new_database()
    environment: dict[str, Any] = {"POSTGRES": f"{server.host},{name}"}
    done = project.manage("migrate", "--verbosity", "0", NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:1", **environment)
    assert done.returncode == 0, done.stderr
    return environment, lambda query: server.execute(query, name)
