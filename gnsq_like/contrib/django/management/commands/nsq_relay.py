"""``manage.py nsq_relay``: publishes the messages of the outbox, as a process of its own."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, Error, connections

from gnsq_like.contrib.django import conf
from gnsq_like.errors import NSQError


class Command(BaseCommand):
    """See ``help``."""

    help = (
        "Publishes the messages that committed transactions have put into the outbox, until SIGTERM or SIGINT. On "
        "PostgreSQL several may run at once; on SQLite a second one waits until the first has ended."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """The database, and what is served beside."""
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="The database with the outbox.")
        parser.add_argument("--once", action="store_true", help="Publish what is due now, and end.")
        parser.add_argument(
            "--health", metavar="HOST:PORT", help="Serve /healthz there, and with the setting METRICS /metrics."
        )

    def handle(self, *, database: str, once: bool, health: str | None, **_: object) -> None:
        """Run; a CommandError gives the reason for a failure."""
        if database not in connections:
            raise CommandError(f"There is no database {database!r} in DATABASES.")
        try:
            self._run(database, once, health)
        except (NSQError, ImproperlyConfigured, Error) as exc:
            raise CommandError(str(exc)) from exc

    def _run(self, database: str, once: bool, health: str | None) -> None:
        from gnsq_like.contrib.django.outbox.relaying import make_relay
        from gnsq_like.contrib.shared.outbox.relay import RelayThread
        from gnsq_like.workers.reader_process import run_relay

        relay = make_relay(database)
        if once:
            self._report(f"Published {relay.run_once()}")
        else:
            self._report("Publishing the outbox")
            run_relay(relay, RelayThread(relay), health, conf.metrics() if health else None, self._report)

    def _report(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
