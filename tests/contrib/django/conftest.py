"""A project of Django whose commands can be run."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.django_project import Project
from tests.support.postgres import Postgres

Ask = Callable[[str], list[Any]]


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project that every test gets a copy of."""
    return Project.migrated(tmp_path_factory.mktemp("django") / "project")


@pytest.fixture
def project(migrated: Project, tmp_path: Path) -> Project:
    return migrated.copied_to(tmp_path / "project")


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
