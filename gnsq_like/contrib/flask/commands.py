"""``flask nsq``: the commands of an application that has the extension."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import click
from flask.cli import AppGroup

from gnsq_like import Reader
from gnsq_like.contrib.shared.pages import served_pages
from gnsq_like.contrib.shared.readers import ReaderGroup
from gnsq_like.errors import NSQError


class Extension(Protocol):
    """The members of ``gnsq_like.contrib.flask.NSQ`` that the commands use."""

    @property
    def declared_readers(self) -> list[tuple[str, str, str]]: ...

    @property
    def metrics_app(self) -> Callable[..., Iterable[bytes]] | None: ...

    @property
    def stop_timeout(self) -> float: ...

    def make_readers(self, names: Iterable[str] = ()) -> list[Reader]: ...

    def publish(self, topic: str, body: Any, *, defer: float | None = None) -> None: ...


def make_commands(nsq: Extension) -> AppGroup:
    """The group ``nsq`` for ``app.cli``; its commands run in a context of the application."""
    group = AppGroup("nsq", help="Run NSQ readers, and publish.")

    @group.command("run")
    @click.argument("names", nargs=-1)
    @click.option("--stop-timeout", type=click.FloatRange(0), metavar="SECONDS", help="For running handlers.")
    @click.option("--health", "health_address", metavar="HOST:PORT", help="Serve /healthz and /metrics there.")
    def run(names: tuple[str, ...], stop_timeout: float | None, health_address: str | None) -> None:
        """Run the readers NAMES, or all, until SIGTERM or SIGINT.

        Running handlers may then end; other messages go back to nsqd at once.

        In a process that is not monkey-patched, handlers run in threads. For greenlets start it as
        python -m gevent.monkey --module flask nsq run
        """
        with _nsq_errors():
            readers = nsq.make_readers(names)
        if not readers:
            raise click.ClickException("this application declares no readers (@nsq.reader)")
        with _nsq_errors(), served_pages(health_address, readers, nsq.metrics_app, _report):
            for reader in readers:
                click.echo(f"consuming {reader.topic}/{reader.channel}", err=True)
            ReaderGroup(readers).run(nsq.stop_timeout if stop_timeout is None else stop_timeout)

    @group.command("publish")
    @click.argument("topic")
    @click.argument("body", default="-")
    @click.option("--defer", type=click.FloatRange(0), metavar="SECONDS", help="Deliver it later.")
    def publish(topic: str, body: str, defer: float | None) -> None:
        """Publish BODY to TOPIC unchanged, as UTF-8; without a BODY, or with -, publish standard input."""
        data = sys.stdin.buffer.read() if body == "-" else body.encode()
        with _nsq_errors():
            nsq.publish(topic, data, defer=defer)

    @group.command("list")
    def show() -> None:
        """List the readers: name, topic, channel."""
        for name, topic, channel in nsq.declared_readers:
            click.echo(f"{name} {topic} {channel}")

    return group


def _report(line: str) -> None:
    click.echo(line, err=True)


@contextmanager
def _nsq_errors() -> Iterator[None]:
    try:
        yield
    except NSQError as exc:
        raise click.ClickException(str(exc)) from exc
