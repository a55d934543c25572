"""Several nsqds and nsqlookupds that know each other, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from gnsq_like.testing.clock import Clock
from gnsq_like.testing.kinds import Kind
from gnsq_like.testing.running import Inspectable, RunningNsqd, RunningNsqlookupd
from gnsq_like.testing.states import Topics, add_up


class RunningCluster(Inspectable):
    """nsqds, each registered with all nsqlookupds; made by :func:`running_cluster` or ``nsq_cluster``.

    Its counts are sums over the running nsqds.
    """

    def __init__(
        self,
        nsqds: int = 2,
        lookupds: int = 1,
        *,
        kind: Kind | None = None,
        clock: Clock | None = None,
        nsqd_command: str = "",
        nsqlookupd_command: str = "",
        lookupd_options: Mapping[str, Any],
        **options: Any,
    ) -> None:
        #: These and the nsqds are in the order in which they were started.
        self.lookupds: list[RunningNsqlookupd] = [
            RunningNsqlookupd(kind=kind, clock=clock, command=nsqlookupd_command, **lookupd_options)
            for _ in range(lookupds)
        ]
        self.nsqds: list[RunningNsqd] = []
        self._nsqd_count = nsqds
        self._nsqd_arguments = {"kind": kind, "clock": clock, "command": nsqd_command, **options}
        self._looks = 2 if kind == "real" else 1
        self._running = ExitStack()

    @property
    def nsqd_tcp_addresses(self) -> list[str]:
        """For a Producer, or a Reader's argument of the same name."""
        return [nsqd.tcp_address for nsqd in self.nsqds]

    @property
    def nsqd_http_addresses(self) -> list[str]:
        """For NsqdHTTPClients."""
        return [nsqd.http_address for nsqd in self.nsqds]

    @property
    def lookupd_http_addresses(self) -> list[str]:
        """For a Reader's or Producer's argument of the same name."""
        return [lookupd.http_address for lookupd in self.lookupds]

    @property
    def lookupd_tcp_addresses(self) -> list[str]:
        """For an nsqd's option of the same name."""
        return [lookupd.tcp_address for lookupd in self.lookupds]

    def topics(self) -> Topics:
        return add_up(nsqd.topics() for nsqd in self.nsqds if nsqd.is_running)

    def start(self) -> None:
        """Start all; they know each other when this returns. May switch."""
        for lookupd in self.lookupds:
            self._running.enter_context(lookupd)
        for _ in range(self._nsqd_count):
            # A nsqlookupd's address is known only now.
            nsqd = RunningNsqd(lookupds=self.lookupds, **self._nsqd_arguments)
            self.nsqds.append(self._running.enter_context(nsqd))

    def close(self) -> None:
        """End all. May switch."""
        self._running.close()

    def __str__(self) -> str:
        return f"cluster of {', '.join(map(str, self.nsqds))}"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def running_cluster(
    nsqds: int = 2,
    lookupds: int = 1,
    *,
    kind: Kind | None = None,
    clock: Clock | None = None,
    lookupd_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> RunningCluster:
    """Context manager: nsqds, each with a node id of its own and registered with all of the nsqlookupds.

    :param kind: of all of them; see :func:`~gnsq_like.testing.running_nsqd`
    :param clock: the time of all of them
    :param lookupd_options: of :class:`~gnsq_like.server.NsqlookupdOptions`
    :param options: of each nsqd
    """
    return RunningCluster(nsqds, lookupds, kind=kind, clock=clock, lookupd_options=lookupd_options or {}, **options)
