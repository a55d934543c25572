"""``flask nsq run``, ``relay``, ``publish`` and ``list``: the commands of an application that has the extension."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

import click
from flask.cli import AppGroup, ScriptInfo

from gnsq_like import Reader, ReaderGroup
from gnsq_like.contrib.flask.workers import LOADER
from gnsq_like.contrib.shared.outbox.relay import RelayThread
from gnsq_like.contrib.shared.standard_input import publish_lines
from gnsq_like.errors import NSQError
from gnsq_like.workers.plan import click_options, given_options, make_plan, number
from gnsq_like.workers.process import supervise
from gnsq_like.workers.reader_process import run_relay, served_pages

if TYPE_CHECKING:
    from gnsq_like.contrib.prometheus import Metrics
    from gnsq_like.contrib.shared.outbox.relay import Relay


class Extension(Protocol):
    """The members of ``gnsq_like.contrib.flask.NSQ`` that the commands use."""

    @property
    def declared_readers(self) -> list[tuple[str, str, str]]: ...

    @property
    def metrics(self) -> Metrics | None: ...

    @property
    def stop_timeout(self) -> float: ...

    def make_readers(self, names: Iterable[str] = ()) -> list[Reader]: ...

    def publish(self, topic: str, body: object, *, defer: float | None = None) -> None: ...

    def make_relay(self) -> Relay: ...


def make_commands(nsq: Extension) -> AppGroup:
    """The group ``nsq`` for ``app.cli``; its commands run in a context of the application."""
    group = AppGroup("nsq", help="Run NSQ readers, and publish.")

    @group.command("run")
    @click.argument("names", nargs=-1)
    @click.option("--stop-timeout", type=number(float, 0), metavar="SECONDS", help="For running handlers.")
    @click.option("--health", metavar="HOST:PORT", help="Serve /healthz and /metrics there.")
    @click.option("--relay", is_flag=True, help="Publish the outbox, too, as flask nsq relay does.")
    @click_options
    def run(
        names: tuple[str, ...], stop_timeout: float | None, health: str | None, relay: bool, **options: object
    ) -> None:
        """Run the readers NAMES, or all, until SIGTERM or SIGINT.

        Running handlers may then end; other messages go back to nsqd at once.

        In a process that is not monkey-patched, handlers run in threads. For greenlets start it as
        python -m gevent.monkey --module flask nsq run

        With --processes, or another option of several processes, this one only supervises them.
        """
        patience = nsq.stop_timeout if stop_timeout is None else stop_timeout
        settings = {"stop_timeout": patience, "health": health or ""}
        with _nsq_errors():
            readers = nsq.make_readers(names)
        if not readers:
            raise click.ClickException("this application declares no readers (@nsq.reader)")
        if given_options(options):
            if relay:
                raise click.ClickException("--relay needs a single process: run flask nsq relay beside these")
            if _script().create_app is not None:
                raise click.ClickException("several processes need the command flask: flask --app MODULE nsq run")
            with _nsq_errors():
                plan = make_plan(options, LOADER, (_script().app_import_path or "", *names), **settings)
            supervise(plan)
        with _nsq_errors(), ExitStack() as stack:
            relays = [stack.enter_context(RelayThread(nsq.make_relay()))] if relay else []
            stack.enter_context(served_pages(readers, health, nsq.metrics if health else None, _report, relays))
            for reader in readers:
                click.echo(f"consuming {reader.topic}/{reader.channel}", err=True)
            ReaderGroup(*readers).run(stop_timeout=patience)

    @group.command("relay")
    @click.option("--once", is_flag=True, help="Publish what is due now, and end.")
    @click.option("--health", metavar="HOST:PORT", help="Serve /healthz and /metrics there.")
    def relay(once: bool, health: str | None) -> None:
        """Publish the messages that committed transactions have put into the outbox, until SIGTERM or SIGINT.

        On PostgreSQL several may run at once; on SQLite a second one waits until the first has ended.
        """
        with _nsq_errors():
            made = nsq.make_relay()
            if once:
                click.echo(f"published {made.run_once()}", err=True)
            else:
                _report("publishing the outbox")
                run_relay(made, RelayThread(made), health, nsq.metrics if health else None, _report)

    @group.command("publish")
    @click.argument("topic")
    @click.argument("body", default="-")
    @click.option("--defer", type=number(float, 0), metavar="SECONDS", help="Deliver it later.")
    def publish(topic: str, body: str, defer: float | None) -> None:
        """Publish BODY to TOPIC unchanged, as UTF-8.

        Without a BODY, or with -, publish standard input: each line is a message, empty ones are left out. Lines are
        published as they come. If one cannot be published, those before it have been, and the command ends.
        """
        send = partial(nsq.publish, topic, defer=defer)
        with _nsq_errors():
            if body == "-":
                publish_lines(sys.stdin.buffer, send)
            else:
                send(body.encode())

    @group.command("list")
    def show() -> None:
        """List the readers: name, topic, channel."""
        for name, topic, channel in nsq.declared_readers:
            click.echo(f"{name} {topic} {channel}")

    return group


def _script() -> ScriptInfo:
    """Where the command flask has found the application."""
    return click.get_current_context().ensure_object(ScriptInfo)


def _report(line: str) -> None:
    click.echo(line, err=True)


@contextmanager
def _nsq_errors() -> Iterator[None]:
    try:
        yield
    except NSQError as exc:
        raise click.ClickException(str(exc)) from exc
