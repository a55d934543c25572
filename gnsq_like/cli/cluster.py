"""``gnsq-like cluster``: the command and its exit status.

The run itself is in ``cluster_run``, which is imported when it begins: ``--help`` loads no gevent.
"""

from __future__ import annotations

from typing import Any

import click

from gnsq_like.cli.admin_beside import admin_option
from gnsq_like.cli.exits import CannotRun, Interrupted, until_a_signal
from gnsq_like.cli.tool_options import Integer

_PORT = Integer(0, 65535)


@click.command()
@click.option("--nsqds", type=Integer(1, 32), default=2, show_default=True, help="nsqds to run.")
@click.option("--lookupds", type=Integer(1, 32), default=1, show_default=True, help="nsqlookupds to run.")
@click.option(
    "--nsqd-port",
    type=_PORT,
    default=0,
    help="TCP port of the first nsqd; its HTTP port is the next one, and so on. Default: free ports.",
)
@click.option("--lookupd-port", type=_PORT, default=0, help="The same for nsqlookupds.")
@click.option(
    "--data-path",
    type=click.Path(file_okay=False),
    default="",
    help="Directory in which the nsqds keep messages: nsqd-1, nsqd-2, ... Default: all are in memory.",
)
@admin_option
@click.argument("nsqd_flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- NSQD_FLAGS]")
def cluster(**options: Any) -> None:
    """Run several nsqds and nsqlookupds, and show their counts.

    The node id of each nsqd is its number, and each is registered with all nsqlookupds. All listen on the loopback
    address. Flags after -- are passed to each nsqd: gnsq-like cluster --nsqds 3 -- --msg-timeout 5s

    On a terminal a table shows the counts of each nsqd, and how many messages a second are published and finished;
    elsewhere a line is printed when something has changed. A daemon that ends by itself is reported, and the others
    go on. Ctrl-C or SIGTERM ends all of them in good order.

    \b
    Exit status:
      0  ended by Ctrl-C or SIGTERM
      1  the same, but a daemon had ended before; or all nsqds have ended
      2  the cluster could not be run
    """
    ends = [_last_port(options[f"{name}_port"], options[f"{name}s"]) for name in ("nsqd", "lookupd")]
    if max(ends) > 65535:
        raise click.UsageError("the ports of that many daemons end above 65535")
    starts = [options["nsqd_port"], options["lookupd_port"]]
    if all(starts) and starts[0] <= ends[1] and starts[1] <= ends[0]:
        raise click.UsageError(
            f"the nsqds' ports {starts[0]} to {ends[0]} and the nsqlookupds' {starts[1]} to {ends[1]} overlap"
        )
    raise SystemExit(_run(options))


def _last_port(first: int, daemons: int) -> int:
    return first + 2 * daemons - 1 if first else 0


def _run(options: dict[str, object]) -> int:
    """Run the cluster; returns the exit status."""
    from gnsq_like.cli.cluster_run import ClusterLayout, ClusterRun
    from gnsq_like.cli.screen import make_view
    from gnsq_like.server.daemon_process import DaemonFailed

    run = ClusterRun(options, make_view(ClusterLayout()))
    try:
        until_a_signal(run.run)
    except DaemonFailed as exc:
        raise CannotRun(f"{exc}.") from exc
    except Interrupted as exc:
        click.echo(f"Ended by {exc}; no process is left.", err=True)
    else:
        click.echo("No nsqd is left.", err=True)
    return 1 if run.lost else 0
