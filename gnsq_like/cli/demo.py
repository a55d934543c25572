"""``gnsq-like demo``: the command and its exit status.

The run itself is in ``demo_run``, which is imported when it begins: ``--help`` loads no gevent.
"""

from __future__ import annotations

from typing import Any

import click

from gnsq_like.cli.admin_beside import admin_option
from gnsq_like.cli.exits import INTERRUPTED_STATUS, CannotRun, Interrupted, until_a_signal
from gnsq_like.cli.numbered_messages import NUMBER_BYTES
from gnsq_like.cli.tool_options import Integer, Number


@click.command()
@click.option("--messages", type=Integer(1, 10**9), default=100_000, show_default=True, help="Messages to publish.")
@click.option("--nsqds", type=Integer(1, 32), default=2, show_default=True, help="nsqds to start.")
@click.option("--readers", type=Integer(1, 32), default=2, show_default=True, help="Readers per channel.")
@click.option(
    "--body-bytes",
    type=Integer(NUMBER_BYTES, 1024 * 1024),
    default=100,
    show_default=True,
    help="Bytes of a message.",
)
@click.option(
    "--fail-every",
    type=Integer(0),
    default=1000,
    show_default=True,
    help="On one channel, the first try of every N-th message fails; 0: none fails.",
)
@click.option(
    "--work",
    type=Number(0, 10),
    default=0.02,
    show_default=True,
    help="Seconds that a handler waits for each message, as it would for a database.",
)
@admin_option
@click.option("--quiet", is_flag=True, help="Print the result only.")
def demo(quiet: bool, admin_port: int | None, **options: object) -> None:
    """Publish and consume on its own daemons; count lost messages.

    Starts a nsqlookupd and some nsqds as child processes on free ports, publishes numbered messages to them, and
    consumes them with several Readers on two channels, each of which gets every message. The Readers find the
    nsqds through nsqlookupd. Handlers on the channel "mail" fail now and then: the message is requeued and is
    delivered again half a second later.

    The last line says how many messages were lost and how many were delivered twice, per channel and in all. A
    message is lost if nsqd confirmed it and no handler of the channel finished its work on it. It was delivered
    twice if several handlers finished; a failed try does not count, so a requeue alone is not "twice".

    \b
    Exit status:
      0    nothing was lost
      1    something was lost
      2    the demo could not be run
      130  ended by Ctrl-C or SIGTERM
    """
    try:
        status = until_a_signal(lambda: _run(quiet, admin_port, options))
    except Interrupted as exc:
        click.echo(f"Ended by {exc}; no process is left.", err=True)
        status = INTERRUPTED_STATUS
    raise SystemExit(status)


def _run(quiet: bool, admin_port: int | None, options: dict[str, Any]) -> int:
    """Run the demo and print its verdict; returns the exit status."""
    from gnsq_like.cli.demo_run import Demo, DemoLayout, DemoPlan, Recorder
    from gnsq_like.cli.screen import make_view
    from gnsq_like.errors import HTTPError
    from gnsq_like.server.daemon_process import DaemonFailed

    recorder = Recorder()
    try:
        verdict = Demo(DemoPlan(**options), make_view(DemoLayout(), quiet=quiet), admin_port).run()
    except (DaemonFailed, HTTPError) as exc:
        raise CannotRun(f"{exc}.") from exc
    if any(verdict.lost.values()) or any(verdict.twice.values()):
        for line in recorder.lines:
            click.echo(line, err=True)
    click.echo(str(verdict))
    return verdict.exit_status
