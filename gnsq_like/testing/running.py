"""A running nsqd or nsqlookupd of any kind, for tests with pytest or without, and its counts.

Without a ``kind``, our own daemon runs in this process. It has its own thread, so that the test may block; if sockets
are monkey-patched, it runs in the caller's hub, whenever the test waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from gnsq_like.addresses import parse_address
from gnsq_like.cluster.figures import read_topics
from gnsq_like.errors import HTTPError, InvalidOption
from gnsq_like.http.client import HTTPClient
from gnsq_like.http.nsqd import NsqdHTTPClient
from gnsq_like.http.nsqlookupd import LookupdClient, LookupResult
from gnsq_like.server import Nsqd, NsqdOptions, Nsqlookupd, NsqlookupdOptions
from gnsq_like.server.daemon_options import MAX_NODE_ID
from gnsq_like.testing.clock import Clock
from gnsq_like.testing.kinds import InProcess, Kind, Process, make_daemon
from gnsq_like.testing.states import (
    ChannelState,
    Topics,
    TopicState,
    Wanted,
    WantedCounts,
    check_wanted,
    describe,
    describe_wanted,
    find,
    satisfies,
    states_of,
)
from gnsq_like.testing.taken_messages import TakenMessage, take
from gnsq_like.testing.waits import TIMEOUT, wait_until


class Inspectable:
    """Topics and channels with counts.

    A topic or channel that does not exist counts as an empty one, except in :meth:`wait_until`.
    All methods may be called from any thread, and may switch or block.
    """

    #: How many times in a row the counts must be as wanted. Between a queue and a consumer the real nsqd does not
    #: count a message for some microseconds.
    _looks = 1

    def topics(self) -> Topics:
        """All topics with their channels, now."""
        raise NotImplementedError

    def topic(self, name: str) -> TopicState:
        """A topic, now."""
        return self.topics().get(name, TopicState())

    def channel(self, topic: str, channel: str) -> ChannelState:
        """A channel, now."""
        return self.topic(topic).channels.get(channel, ChannelState())

    def depth(self, topic: str, channel: str | None = None) -> int:
        """Messages that wait in a channel; without ``channel``, in the topic itself."""
        return self.topic(topic).depth if channel is None else self.channel(topic, channel).depth

    def in_flight(self, topic: str, channel: str) -> int:
        """Messages that a channel's consumers have not answered."""
        return self.channel(topic, channel).in_flight

    def deferred(self, topic: str, channel: str) -> int:
        """A channel's messages that wait for the end of a delay."""
        return self.channel(topic, channel).deferred

    def clients(self, topic: str, channel: str) -> int:
        """Consumers of a channel."""
        return self.channel(topic, channel).clients

    def wait_until(
        self, topic: str, channel: str | None = None, *, timeout: float = TIMEOUT, **counts: Unpack[WantedCounts]
    ) -> None:
        """Wait until a channel's counts are as given, all at the same moment; without a channel, the topic's.

        ::

            nsqd.wait_until("clicks", "archive", clients=2)
            nsqd.wait_until("clicks", "archive", messages=10, left=0)    # ten arrived, and all are finished
            nsqd.wait_until("clicks", "archive", depth=lambda count: count > 100)

        The topic and channel must exist; only ephemeral ones may be gone, and then count as empty. The counts are
        those of :class:`ChannelState` and :class:`TopicState` (a topic has only ``depth`` and ``messages``).

        :param timeout: seconds
        :raises AssertionError: when the counts are not as given in time; it shows the last ones
        """
        wanted = check_wanted(counts, channel)
        seen = "nothing"
        looks = 0

        def look() -> bool:
            nonlocal seen, looks
            try:
                topics = self.topics()
            except HTTPError as exc:
                seen = f"no answer ({exc})"
                looks = 0
                return False
            seen = describe(topics, topic, channel)
            state = find(topics, topic, channel)
            looks = looks + 1 if state is not None and satisfies(state, wanted) else 0
            return looks == self._looks

        name = topic if channel is None else f"{topic}/{channel}"
        wait_until(look, timeout, lambda: f"{self}: {name} with {describe_wanted(wanted)}; last seen: {seen}")


#: The channel that :meth:`RunningNsqd.messages` uses unless told otherwise.
OWN_CHANNEL = "gnsq_like.testing"

#: Part of message ids, and so different for all nsqds here.
_node_ids = itertools.count(1)


_Client = TypeVar("_Client", bound=HTTPClient)


class _Running(Generic[_Client]):
    """The base of both daemons: addresses, start and end, and the client of its HTTP API."""

    _name = ""

    def __init__(
        self,
        make_client: Callable[[str], _Client],
        make: Callable[..., object],
        options_class: type[object],
        options: Mapping[str, object],
        *,
        kind: Kind | None,
        clock: Clock | None,
        real_command: str,
    ) -> None:
        self._make_client = make_client
        self._http: _Client | None = None
        self._clock = clock
        self._daemon = make_daemon(kind, make, options_class, options, real_command=real_command)
        if clock is not None and not isinstance(self._daemon, InProcess):
            raise InvalidOption("clock", clock, f"kind={kind!r} is a process, which follows real time")

    @property
    def tcp_address(self) -> str:
        """As "127.0.0.1:41234"; of the last start."""
        return self._daemon.tcp_address

    @property
    def http_address(self) -> str:
        """As "127.0.0.1:41235"; of the last start."""
        return self._daemon.http_address

    @property
    def https_address(self) -> str:
        """The same for HTTP over TLS; empty without the options ``tls_cert`` and ``tls_key``."""
        return self._daemon.https_address

    @property
    def is_running(self) -> bool:
        """Whether it serves."""
        return self._daemon.is_running

    @property
    def log(self) -> str:
        """The log of a process since its last start. Empty for a daemon in this process, which uses the loggers
        ``gnsq_like.nsqd`` and ``gnsq_like.nsqlookupd``."""
        return self._daemon.log if isinstance(self._daemon, Process) else ""

    def start(self) -> None:
        """Start it, after a stop on the same ports; it serves when this returns. May switch."""
        if not self.is_running:
            self._daemon.start()

    def stop(self) -> None:
        """Let it end in good order, as SIGTERM does; nothing if it does not run. May switch.

        An nsqd that is started again still has all its messages: its data path is a directory of its own, removed
        by :meth:`close`. The option ``data_path`` names another; an empty one keeps all messages in memory.
        """
        self._disconnect()
        self._daemon.stop()

    def kill(self) -> None:
        """End it at once, as SIGKILL does; nothing if it does not run. May switch.

        An nsqd that is started again has only the messages that were on disk.
        """
        self._disconnect()
        self._daemon.kill()

    def close(self) -> None:
        """End it and remove its data; it cannot be started again. Twice is fine. May switch."""
        self._disconnect()
        self._daemon.close()

    @property
    def http(self) -> _Client:
        """The client of its HTTP API; that of an nsqd creates, pauses, empties and deletes topics and channels."""
        if self._http is None:
            self._http = self._make_client(self.http_address)
        return self._http

    def _disconnect(self) -> None:
        client, self._http = self._http, None
        if client is not None:
            client.close()

    def __str__(self) -> str:
        return f"{self._name} {self.tcp_address or '(not started)'}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.tcp_address or 'not started'}>"

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


class RunningNsqlookupd(_Running[LookupdClient]):
    """A nsqlookupd; made by :func:`running_nsqlookupd` or the fixture ``nsqlookupd``."""

    _name = "nsqlookupd"

    def __init__(
        self, *, kind: Kind | None = None, clock: Clock | None = None, command: str = "", **options: object
    ) -> None:
        def make(options: NsqlookupdOptions) -> Nsqlookupd:
            return Nsqlookupd(options) if clock is None else Nsqlookupd(options, clock=clock.wall)

        super().__init__(LookupdClient, make, NsqlookupdOptions, options, kind=kind, clock=clock, real_command=command)

    def wait_until(
        self,
        topic: str,
        *,
        producers: Wanted | None = None,
        channels: Iterable[str] = (),
        timeout: float = TIMEOUT,
    ) -> LookupResult:
        """Wait until it knows ``producers`` nsqds of a topic, and these channels; returns its answer.

        :param timeout: seconds
        :raises AssertionError: when it does not in time; it shows the last answer
        """
        wanted = set(channels)
        seen: list[LookupResult | HTTPError] = []

        def look() -> LookupResult | None:
            try:
                result = self.http.lookup(topic, missing_ok=True)
            except HTTPError as exc:
                seen[:] = [exc]
                return None
            seen[:] = [result]
            count = len(result.producers)
            enough = producers is None or (producers(count) if callable(producers) else count == producers)
            return result if enough and wanted <= set(result.channels) else None

        found = wait_until(look, timeout, lambda: self._explain(topic, producers, wanted, seen[0]))
        assert found is not None
        return found

    def _explain(self, topic: str, producers: Wanted | None, channels: set[str], seen: LookupResult | HTTPError) -> str:
        wanted = [] if producers is None else [f"{producers} nsqds"]
        wanted += [f"the channel {name}" for name in sorted(channels)]
        if isinstance(seen, LookupResult):
            nodes = " and ".join(node.tcp_address for node in seen.producers) or "none"
            names = " and ".join(sorted(seen.channels)) or "none"
            last = f"nsqds {nodes}, channels {names}"
        else:
            last = f"no answer ({seen})"
        return f"{self} knows {' and '.join(wanted)} of {topic}; last seen: {last}"

    def wait_for_nsqd(self, tcp_port: int, timeout: float = TIMEOUT) -> None:
        """Wait until an nsqd that announces this port is registered.

        :raises AssertionError: when it is not in time
        """
        wait_until(
            lambda: any(node.tcp_port == tcp_port for node in self.http.nodes()),
            timeout,
            f"{self} knows the nsqd with TCP port {tcp_port}",
        )


class RunningNsqd(Inspectable, _Running[NsqdHTTPClient]):
    """An nsqd; made by :func:`running_nsqd` or the fixture ``nsqd``."""

    _name = "nsqd"

    def __init__(
        self,
        *,
        kind: Kind | None = None,
        clock: Clock | None = None,
        lookupds: Iterable[RunningNsqlookupd] | RunningNsqlookupd = (),
        command: str = "",
        **options: Any,
    ) -> None:
        #: The nsqlookupds it registers with.
        self.lookupds: tuple[RunningNsqlookupd, ...] = (
            (lookupds,) if isinstance(lookupds, RunningNsqlookupd) else tuple(lookupds)
        )
        if self.lookupds:
            options.setdefault("lookupd_tcp_addresses", [lookupd.tcp_address for lookupd in self.lookupds])
        options.setdefault("node_id", next(_node_ids) % MAX_NODE_ID)
        #: Part of its messages' ids.
        self.node_id: int = options["node_id"]
        self._announced_port: int = options.get("broadcast_tcp_port", 0)

        def make(options: NsqdOptions) -> Nsqd:
            return Nsqd(options) if clock is None else Nsqd(options, clock=clock)

        super().__init__(NsqdHTTPClient, make, NsqdOptions, options, kind=kind, clock=clock, real_command=command)
        self._looks = 2 if kind == "real" else 1

    @property
    def lookupd_http_addresses(self) -> list[str]:
        """Addresses of the nsqlookupds it registers with: for a Reader's argument of the same name."""
        return [lookupd.http_address for lookupd in self.lookupds]

    # -- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it, after a stop on the same ports; it serves and is registered when this returns. May switch."""
        super().start()
        if self._clock is not None:
            self._clock.unlink(self._look_at_clock)
            self._clock.link(self._look_at_clock)
        port = self._announced_port or parse_address(self.tcp_address).port
        for lookupd in self.lookupds:
            if lookupd.is_running:
                lookupd.wait_for_nsqd(port)

    def close(self) -> None:
        if self._clock is not None:
            self._clock.unlink(self._look_at_clock)
        super().close()

    def _look_at_clock(self) -> None:
        if self.is_running and isinstance(self._daemon, InProcess):
            self._daemon.run(self._daemon.daemon.look_at_clock)

    # -- publishing ----------------------------------------------------------------------------------

    def publish(self, topic: str, body: bytes, defer: float | None = None) -> None:
        """Publish one message: :meth:`~gnsq_like.NsqdHTTPClient.publish`. May switch."""
        self.http.publish(topic, body, defer)

    def multi_publish(self, topic: str, bodies: Iterable[bytes]) -> None:
        """Publish several messages: :meth:`~gnsq_like.NsqdHTTPClient.multi_publish`. May switch."""
        self.http.multi_publish(topic, bodies)

    def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel, and its topic; fine if they exist. May switch."""
        self.http.create_topic(topic)
        self.http.create_channel(topic, channel)

    # -- looking -------------------------------------------------------------------------------------

    def topics(self) -> Topics:
        return states_of(read_topics(self.http.stats(include_clients=False, include_mem=False)))

    def messages(
        self,
        topic: str,
        channel: str | None = None,
        count: int | None = None,
        *,
        finish: bool = True,
        timeout: float = TIMEOUT,
    ) -> list[TakenMessage]:
        """Take messages out of a channel, as a consumer does, in the order in which nsqd sends them. May switch.

        ::

            assert [message.body for message in nsqd.messages("clicks", "archive")] == [b"a", b"b"]

        :param channel: created if it does not exist. Without one the kit uses a channel of its own, which gets the
            messages that wait in the topic at its first use and all that are published later
        :param count: wait for this many, and take no more; without it, take all that wait now, but not those in
            flight with other consumers or deferred
        :param finish: False leaves the messages there: they are requeued, and the next delivery counts as another
            attempt. This way no more than nsqd's max-rdy-count can be taken
        :param timeout: seconds
        :raises AssertionError: when fewer than ``count`` arrived; all are requeued then
        """
        chosen = OWN_CHANNEL if channel is None else channel
        if channel is None:
            others = set(self.topic(topic).channels) - {OWN_CHANNEL}
            if others and OWN_CHANNEL not in self.topic(topic).channels:
                raise AssertionError(
                    f"{self}: the messages of {topic} have gone to its channels: name one of {sorted(others)}"
                )

        def look(client_id: str) -> tuple[int, int]:
            for found in read_topics(self.http.stats(topic, chosen, include_mem=False)):
                [state] = found.channels
                mine = [client for client in state.clients or () if client["client_id"] == client_id]
                return found.depth + state.depth, sum(int(client["in_flight_count"]) for client in mine)
            return 0, 0

        taken, is_complete = take(
            self.tcp_address, topic, chosen, count=count, finish=finish, timeout=timeout, look=look
        )
        if not is_complete:
            wanted = "all that wait" if count is None else f"{count} messages"
            shown = ", ".join(repr(message.body[:50]) for message in taken[:10]) or "none"
            raise AssertionError(
                f"{self}: {topic}/{chosen} did not give {wanted} within {timeout:g} s, but {len(taken)}: {shown}"
            )
        return taken


def running_nsqd(
    *,
    kind: Kind | None = None,
    clock: Clock | None = None,
    lookupds: Iterable[RunningNsqlookupd] | RunningNsqlookupd = (),
    command: str = "",
    **options: object,
) -> RunningNsqd:
    """Context manager: an nsqd on free loopback ports, with a node id of its own.

    :param kind: "thread" or "hub" for one of ours in this process, "process" for one of ours as a process,
        "real" for NSQ's own; None for "thread", or "hub" where sockets are monkey-patched
    :param clock: its time, moved by the test; only in this process
    :param lookupds: nsqlookupds to register with; the option ``lookupd_tcp_addresses`` takes addresses of others
    :param command: the path of NSQ's nsqd; if not given, it is found on PATH
    :param options: of :class:`~gnsq_like.server.NsqdOptions`, durations in seconds: ``msg_timeout=1``
    :raises InvalidOption: for an unknown option, and a wrong value
    """
    return RunningNsqd(kind=kind, clock=clock, lookupds=lookupds, command=command, **options)


def running_nsqlookupd(
    *, kind: Kind | None = None, clock: Clock | None = None, command: str = "", **options: object
) -> RunningNsqlookupd:
    """Context manager: a nsqlookupd on free loopback ports; see :func:`running_nsqd` for the arguments.

    :param options: of :class:`~gnsq_like.server.NsqlookupdOptions`, durations in seconds
    """
    return RunningNsqlookupd(kind=kind, clock=clock, command=command, **options)
