"""``manage.py nsq_run``: the readers of the installed apps, as a process of their own.

In production the main thread runs the Readers. With autoreload Django's reloader has the main thread, and ends the
process by SystemExit at each change; the Readers then have a thread of their own, and are stopped before the process
ends, so that a reload cuts no handler short.

With ``--processes``, or another option of several processes, this process becomes their supervisor, which does not
load Django (``contrib/django/workers.py`` does).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import autoreload

from gnsq_like.contrib.django import conf
from gnsq_like.contrib.django.readers import chosen, unpatched_greenlets
from gnsq_like.contrib.django.workers import LOADER
from gnsq_like.errors import NSQError
from gnsq_like.workers.plan import Plan, add_arguments, given_options, make_plan
from gnsq_like.workers.process import supervise

if TYPE_CHECKING:
    from gnsq_like import ReaderGroup
    from gnsq_like.contrib.shared.outbox.relay import Relay


class Command(BaseCommand):
    """See ``help``."""

    help = (
        "Runs the readers that the installed apps declare in their nsq_readers modules, until SIGTERM or SIGINT, and "
        "then lets running handlers end. With DEBUG it restarts when code changes."
    )
    # With autoreload the checks run at each start, in the process that reloads.
    requires_system_checks = ()

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._group: ReaderGroup | None = None

    def add_arguments(self, parser: CommandParser) -> None:
        """The readers, and how to run them."""
        parser.add_argument("names", nargs="*", help="The readers to run; default: all.")
        parser.add_argument("--noreload", action="store_true", help="Do not restart when code changes.")
        parser.add_argument(
            "--health",
            metavar="HOST:PORT",
            help="Serve /healthz there, and with the setting METRICS /metrics.",
        )
        parser.add_argument(
            "--relay", action="store_true", help="Publish the outbox of the default database, too, as nsq_relay does."
        )
        parser.add_argument("--skip-checks", action="store_true", help="Skip system checks.")
        parser.add_argument(
            "--stop-timeout",
            type=float,
            metavar="SECONDS",
            help='For handlers that still run when this is stopped; default: NSQ["STOP_TIMEOUT"] (30).',
        )
        add_arguments(parser)

    def handle(self, *, names: list[str], noreload: bool, stop_timeout: float | None, **options: object) -> None:
        """Run; a CommandError gives the reason for a failure."""
        if given_options(options):
            if options["relay"]:
                raise CommandError("--relay needs a single process: run manage.py nsq_relay beside these.")
            self._make(names, options)  # finds what is wrong
            supervise(self._plan(names, stop_timeout, options))
        if noreload or not settings.DEBUG:
            self._run(names, stop_timeout, options)
            return
        try:
            autoreload.run_with_reloader(self._run_beside, names, options)
        finally:
            if self._group is not None:
                self._group.stop(_or_set(stop_timeout))

    def _plan(self, names: list[str], stop_timeout: float | None, options: dict[str, object]) -> Plan:
        patience, health = _or_set(stop_timeout), options["health"] or ""
        try:
            return make_plan(options, LOADER, tuple(names), stop_timeout=patience, health=health)
        except NSQError as exc:
            raise CommandError(str(exc)) from exc

    def _run(self, names: list[str], stop_timeout: float | None, options: dict[str, object]) -> None:
        group = self._make(names, options)
        try:
            with self._beside(group, options):
                group.run(stop_timeout=_or_set(stop_timeout))
        except NSQError as exc:
            raise CommandError(str(exc)) from exc

    @contextmanager
    def _beside(self, group: ReaderGroup, options: dict[str, Any]) -> Iterator[None]:
        """During the block, the pages and the relay run, as far as they are asked for."""
        from gnsq_like.contrib.shared.outbox.relay import RelayThread
        from gnsq_like.workers.reader_process import served_pages

        address = options["health"]
        with ExitStack() as stack:
            relays = [stack.enter_context(RelayThread(_relay()))] if options["relay"] else []
            metrics = conf.metrics() if address else None
            stack.enter_context(served_pages(group.readers, address, metrics, self._report, relays))
            yield

    def _report(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()

    def _make(self, names: list[str], options: dict[str, object], *, own_thread: bool = False) -> ReaderGroup:
        from gnsq_like import ReaderGroup

        if not options["skip_checks"]:
            self.check()
        try:
            wanted = chosen(names)
            if not wanted:
                raise CommandError("No installed app declares a reader in its nsq_readers.py.")
            if sum((counts := unpatched_greenlets(wanted)).values()) > 1:
                raise CommandError(
                    f"Handlers of {', '.join(counts)} would share one database connection and its transaction: run "
                    'each in an nsq_run of its own, or with spawn="thread".'
                )
            readers = [each.make(conf.metrics(), conf.tracing()) for each in wanted]
            self._group = ReaderGroup(*readers, own_thread=own_thread)
        except (LookupError, NSQError, ImproperlyConfigured) as exc:
            raise CommandError(str(exc)) from exc
        if options["verbosity"] and not options["log_json"]:
            for each in wanted:
                self._report(f"Reading {each.topic_text}/{each.channel}: {each.name}")
        return self._group

    def _run_beside(self, names: list[str], options: dict[str, object]) -> None:
        """Called at each start in the reloader's second thread, whose own hub serves the pages."""
        from gevent.event import Event

        autoreload.raise_last_exception()
        group = self._make(names, options, own_thread=True)
        with self._beside(group, options):
            group.start()
            if options["health"] or options["relay"]:
                Event().wait()


def _relay() -> Relay:
    from gnsq_like.contrib.django.outbox.relaying import make_relay

    try:
        return make_relay()
    except ImproperlyConfigured as exc:
        raise CommandError(str(exc)) from exc


def _or_set(stop_timeout: float | None) -> float:
    return float(conf.settings().own["STOP_TIMEOUT"]) if stop_timeout is None else stop_timeout
