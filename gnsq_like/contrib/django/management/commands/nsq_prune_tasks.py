"""``manage.py nsq_prune_tasks``: deletes old results of tasks."""

from __future__ import annotations

from datetime import timedelta

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import Q
from django.utils import timezone

from gnsq_like.contrib.django.tasks import records

#: Rows of one statement, which SQLite limits.
_AT_ONCE = 500


class Command(BaseCommand):
    """See ``help``."""

    help = "Deletes the results of tasks that ended long ago. Tasks that wait or run stay, however old they are."

    def add_arguments(self, parser: CommandParser) -> None:
        """How old, and where."""
        parser.add_argument("--days", type=float, default=7.0, help="Days to keep results for (default: 7).")
        parser.add_argument("--failed-days", type=float, help="The same for failed tasks, if they differ.")
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="The database with the results.")

    def handle(self, *, days: float, failed_days: float | None, database: str, **_: object) -> None:
        """Delete, and report how many."""
        if database not in connections:
            raise CommandError(f"There is no database {database!r} in DATABASES.")
        if not records.has_table():
            raise CommandError("There is no table of results: gnsq_like.contrib.django.tasks is not in INSTALLED_APPS.")
        failed = days if failed_days is None else failed_days
        if min(days, failed) < 0:
            raise CommandError("Days are 0 or more.")
        now, count = timezone.now(), 0
        old = Q(status="SUCCESSFUL", finished_at__lt=now - timedelta(days=days))
        old |= Q(status="FAILED", finished_at__lt=now - timedelta(days=failed))
        rows = records.rows(database)
        # A few at a time: a worker that writes meanwhile does not wait long.
        while found := list(rows.filter(old).values_list("pk", flat=True)[:_AT_ONCE]):
            count += rows.filter(pk__in=found).delete()[0]
        self.stdout.write(f"Deleted {count}")
