"""Django, set up in this process for tests that need no server; and a project whose commands can be run."""

from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from django.conf import settings

from tests.support.django_project import Project
from tests.support.postgres import Postgres, running_postgres

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
