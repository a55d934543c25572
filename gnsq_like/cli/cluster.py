"""``gnsq-like cluster``: daemons on this machine, and a line of their counts each second.

gevent is imported when the run begins: ``--help`` does not load it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gnsq_like.cli.admin_beside import admin_beside, admin_option
from gnsq_like.cli.exits import CannotRun, Interrupted, until_a_signal
from gnsq_like.cli.tool_options import Integer

if TYPE_CHECKING:
    from gnsq_like.cli.cluster_processes import ClusterProcesses
    from gnsq_like.cluster.counting import Counts
    from gnsq_like.server.daemon_process import DaemonProcess

_PORT = Integer(0, 65535)
#: Seconds between two lines.
_INTERVAL = 1.0
#: Seconds for an answer; then the line says that it is missing.
_ANSWER_TIMEOUT = 2.0
#: Seconds that the nsqds have at their end to write all messages to disk.
_STOP_TIMEOUT = 30.0


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
    """Run several nsqds and nsqlookupds, and print their counts.

    The node id of each nsqd is its number, and each is registered with all nsqlookupds. All listen on the loopback
    address. Flags after -- are passed to each nsqd: gnsq-like cluster --nsqds 3 -- --msg-timeout 5s

    After their addresses, a line is printed each second in which the counts have changed. A daemon that ends by itself
    is reported, and the others go on. Ctrl-C or SIGTERM ends all of them in good order.

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


def _run(options: dict[str, Any]) -> int:
    """Run the cluster; returns the exit status."""
    from gnsq_like.cli.cluster_processes import ClusterProcesses
    from gnsq_like.server.daemon_process import DaemonFailed

    admin_port = options.pop("admin_port")
    lost: list[DaemonProcess] = []

    def run() -> int:
        with ClusterProcesses(**options, stop_timeout=_STOP_TIMEOUT) as cluster:
            lookupds = [each.http_address for each in cluster.lookupds]
            _introduce(cluster, lookupds)
            with admin_beside(admin_port, lookupds, click.echo):
                _watch(cluster, lost)
        return 1

    try:
        until_a_signal(run)
    except DaemonFailed as exc:
        raise CannotRun(f"{exc}.") from exc
    except Interrupted as exc:
        click.echo(f"Ended by {exc}; no process is left.", err=True)
    else:
        click.echo("No nsqd is left.", err=True)
    return 1 if lost else 0


def _introduce(cluster: ClusterProcesses, lookupds: list[str]) -> None:
    """Print the addresses, in a form to be copied."""
    for daemon in cluster:
        click.echo(f"{daemon.name:<12}  TCP {daemon.tcp_address}  HTTP {daemon.http_address}")
    click.echo()
    click.echo(f'Reader("topic", "channel", handler, lookupd_http_addresses={_listed(lookupds)})')
    click.echo(f"Producer({_listed([nsqd.tcp_address for nsqd in cluster.nsqds])})")
    click.echo(" ".join(["nsqadmin", *(f"--lookupd-http-address={address}" for address in lookupds)]))
    click.echo()


def _listed(addresses: list[str]) -> str:
    """A list in Python's syntax."""
    return "[" + ", ".join(f'"{address}"' for address in addresses) + "]"


def _watch(cluster: ClusterProcesses, lost: list[DaemonProcess]) -> None:
    """Print the counts when they change, until no nsqd is left. May switch.

    :param lost: daemons that ended by themselves are added
    """
    import gevent

    from gnsq_like.cluster.counting import count_all
    from gnsq_like.cluster.daemons import Daemons
    from gnsq_like.cluster.rounds import Unreachable

    http = {"timeout": _ANSWER_TIMEOUT, "connect_timeout": _ANSWER_TIMEOUT, "verify": True, "cert": None}
    said = ""
    with Daemons([nsqd.http_address for nsqd in cluster.nsqds], options=http) as daemons:
        while True:
            for daemon in cluster:
                if daemon not in lost and not daemon.is_running:
                    lost.append(daemon)
                    click.echo(f"{daemon.name} is gone: {daemon.how_it_ended}.")
            if not cluster.running_nsqds:
                return
            try:
                line = _sums(count_all(daemons))
            except Unreachable as exc:
                line = str(exc)
            if line != said:
                said = line
                click.echo(line)
            gevent.sleep(_INTERVAL)


def _sums(counts: Counts) -> str:
    topics = counts.topics.values()
    channels = [channel for topic in topics for channel in topic.channels]
    sums = [
        f"{len(topics):,} topics",
        f"{len(channels):,} channels",
        f"{sum(topic.message_count for topic in topics):,} published",
        f"depth {sum(topic.depth for topic in topics) + sum(channel.depth for channel in channels):,}",
        f"{sum(channel.in_flight_count for channel in channels):,} in flight",
        f"{sum(channel.deferred_count for channel in channels):,} deferred",
        f"{sum(channel.client_count for channel in channels):,} consumers",
    ]
    return "; ".join([", ".join(sums), *map(str, counts.failures)])
