"""Django, set up in this process for tests that need no server; and a PostgreSQL for outboxes."""

from collections.abc import Iterator

import django
import pytest
from django.conf import settings

from tests.support.postgres import Postgres, running_postgres

settings.configure(
    INSTALLED_APPS=["gnsq_like.contrib.django", "gnsq_like.contrib.django.outbox"],
    DATABASES={name: {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"} for name in ("default", "other")},
    USE_TZ=True,
    NSQ={"NSQD_TCP_ADDRESSES": "127.0.0.1:1"},
)
django.setup()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server
