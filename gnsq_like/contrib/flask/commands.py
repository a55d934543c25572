"""``flask nsq``: the commands that ``gnsq_like.contrib.flask.extension`` gives an application."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from flask.cli import AppGroup

from gnsq_like.contrib.shared.pages import served_pages
from gnsq_like.contrib.shared.readers import ReaderGroup
from gnsq_like.errors import NSQError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gnsq_like.contrib.flask.extension import NSQ


def make_commands(nsq: NSQ) -> AppGroup:
    """The group ``nsq`` for ``app.cli``; its commands run in a context of the application."""
    group = AppGroup("nsq", help="Run NSQ readers, and publish.")

    @group.command("run")
    @click.argument("names", nargs=-1)
    @click.option("--stop-timeout", type=click.FloatRange(0), metavar="SECONDS", help="For handlers that run.")
    @click.option("--health", "health_address", metavar="HOST:PORT", help="Serve /healthz and /metrics there.")
    def run(names: tuple[str, ...], stop_timeout: float | None, health_address: str | None) -> None:
        """Run the readers NAMES, or all, until SIGTERM or SIGINT.

        Handlers that run then may end; what none has begun goes back to nsqd at once.

        Where nothing is monkey-patched, handlers run in threads. For greenlets start it as
        python -m gevent.monkey --module flask nsq run
        """
        with _nsq_errors():
            readers = nsq.make_readers(names)
        if not readers:
            raise click.ClickException("this application declares no readers (@nsq.reader)")
        with _nsq_errors(), served_pages(health_address, readers, nsq.metrics_app, _tell):
            for reader in readers:
                click.echo(f"consuming {reader.topic}/{reader.channel}", err=True)
            ReaderGroup(readers).run(nsq.stop_timeout if stop_timeout is None else stop_timeout)

    @group.command("publish")
    @click.argument("topic")
    @click.argument("body", default="-")
    @click.option("--defer", type=click.FloatRange(0), metavar="SECONDS", help="Until it is delivered.")
    def publish(topic: str, body: str, defer: float | None) -> None:
        """Publish BODY to TOPIC as it stands, as UTF-8; without a BODY, or with -, what comes on stdin."""
        data = sys.stdin.buffer.read() if body == "-" else body.encode()
        with _nsq_errors():
            nsq.publish(topic, data, defer=defer)

    @group.command("list")
    def show() -> None:
        """List the readers: name, topic, channel."""
        for name, topic, channel in nsq.declared_readers:
            click.echo(f"{name} {topic} {channel}")

    return group


def _tell(line: str) -> None:
    click.echo(line, err=True)


@contextmanager
def _nsq_errors() -> Iterator[None]:
    try:
        yield
    except NSQError as exc:
        raise click.ClickException(str(exc)) from exc
