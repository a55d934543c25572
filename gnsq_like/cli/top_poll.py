"""Asks a cluster for what ``gnsq-like top`` shows, by the admin's means: one poll, however many tables there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gnsq_like.admin.core import Core
from gnsq_like.admin.options import AdminOptions
from gnsq_like.admin.upstream.rounds import UpstreamError
from gnsq_like.cli.top_figures import Tables, Watch

if TYPE_CHECKING:
    from gnsq_like.admin.upstream.cluster import Cluster
    from gnsq_like.admin.upstream.figures import ChannelFigures
    from gnsq_like.admin.upstream.overview import Overview
    from gnsq_like.tools.daemons import Daemons

#: Seconds that an overview may be old.
_MAX_AGE = 0.05


class Poll:
    """Asks in a thread of its own. :meth:`take` is for one thread at a time.

    :param daemons: their addresses, and how they are asked
    """

    def __init__(self, daemons: Daemons) -> None:
        self._core = Core(_admin_options(daemons))
        self._watch = Watch()

    def take(self, *, with_clients: bool = False) -> Tables:
        """The cluster now; what does not answer is a warning. May switch, or block.

        :raises NotRunning: after :meth:`close`, or if that comes before the answers
        """
        overview, channels, problems = self._core.run(self._ask, with_clients)
        tables = self._watch.add(overview, channels)
        tables.warnings += problems
        tables.is_silent = is_silent(overview)
        return tables

    def _ask(self, with_clients: bool) -> tuple[Overview, list[ChannelFigures], list[str]]:
        [cluster] = self._core.clusters.values()
        overview = cluster.overview(_MAX_AGE)
        return (overview, *_channels(cluster)) if with_clients else (overview, [], [])

    def close(self) -> None:
        """Close all connections. May block briefly."""
        self._core.stop()


def _channels(cluster: Cluster) -> tuple[list[ChannelFigures], list[str]]:
    try:
        return cluster.consumed_channels(_MAX_AGE).value, []
    except UpstreamError as exc:
        return [], [str(exc)]


def is_silent(overview: Overview) -> bool:
    """Whether nothing that was asked has answered."""
    if overview.lookupds:
        return all(overview.lookupds.values())
    return all(total.problem for total in overview.nodes)


def _admin_options(daemons: Daemons) -> AdminOptions:
    options: dict[str, Any] = dict(daemons.options)
    verify, cert = options["verify"], options["cert"]
    certificate, key = cert if isinstance(cert, tuple) else (cert, cert)
    return AdminOptions(
        lookupd_http_addresses=daemons.lookupd_http_addresses,
        nsqd_http_addresses=daemons.nsqd_http_addresses,
        http_client_connect_timeout=options["connect_timeout"],
        http_client_request_timeout=options["timeout"],
        http_client_tls_insecure_skip_verify=verify is False,
        http_client_tls_root_ca_file=verify if isinstance(verify, str) else "",
        http_client_tls_cert=certificate or "",
        http_client_tls_key=key or "",
    )
