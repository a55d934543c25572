"""Databases of their own for Django's tests in this process: a file of SQLite, or one of a private PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.postgres import USER, Postgres


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
