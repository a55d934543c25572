"""A fleet of Readers in virtual time, with the policy and discovery that the real ones have.

A `Member` is a Reader: `gnsq_like.discovery` finds and dials the nsqds, and `tests.support.simulation.Reader` steers
RDY with `gnsq_like.policy`. The rest of a Reader, and the network, is a model: each way takes `ONE_WAY` seconds,
connecting three round trips, and a handler waits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import gevent
from _fleet_nsqd import Lookupd, Nsqd, register

from gnsq_like.addresses import Address
from gnsq_like.discovery.lookupd_poller import LookupdPoller
from gnsq_like.discovery.redial import Redialer
from gnsq_like.errors import ConnectionFailed, NSQError
from gnsq_like.options import ReaderOptions
from gnsq_like.policy.rdy import Settings
from tests.support.simulation import Connection, Reader
from tests.support.virtual_nsqd import Clock, Message

#: Seconds from a Reader to an nsqd, as within a data centre.
ONE_WAY = 0.00025
#: Seconds to connect: TCP, IDENTIFY and SUB.
HANDSHAKE = 6 * ONE_WAY


class Setup(NamedTuple):
    """What a simulation is made of."""

    readers: int = 1000
    nsqds: int = 100
    lookupds: int = 3
    seed: int = 1
    options: ReaderOptions = ReaderOptions()
    #: Messages that each Reader handles in a second if all of max_in_flight is in use; so a handler takes
    #: max_in_flight by this.
    rate: float = 25.0
    #: Whether there are messages. Without, only discovery runs, and nothing is sent to an nsqd but IDENTIFY and SUB.
    with_traffic: bool = True

    def spare(self) -> int:
        """The nsqds that are down at first."""
        return max(2, self.nsqds // 10)


class Member:
    """One Reader."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        setup = fleet.setup
        options = setup.options
        self._fleet = fleet
        self._rng = rng = random.Random(f"{setup.seed}/{number}")
        self._handling = options.max_in_flight / setup.rate
        self.reader = Reader(
            fleet.clock,
            rng,
            max_in_flight=options.max_in_flight,
            settings=Settings(
                low_rdy_idle_timeout=options.low_rdy_idle_timeout,
                low_rdy_timeout=options.low_rdy_timeout,
                low_rdy_probe_timeout=options.low_rdy_probe_timeout,
            ),
            handle=self._handle,
            adaptive=True,
        )
        #: By address: the connection, or None where there is no traffic.
        self.connections: dict[Address, Connection | None] = {}
        self._plan_due = False
        self._redialer: Redialer[Address] = Redialer(
            (),
            connect=self._connect,
            is_connected=self.connections.__contains__,
            on_failure=lambda *_: None,
            on_hopeless=lambda _: False,
            max_redial_delay=options.max_redial_delay,
            surveyed=False,
            draw=rng.random,
            clock=fleet.time,
        )
        self._poller = LookupdPoller(
            cast(Any, fleet.lookupds),
            options,
            self._redialer.found,
            lambda *_: None,
            draw=rng.random,
            clock=fleet.time,
        )

    def start(self) -> None:
        self._redialer.start()
        self._poller.start()

    @property
    def in_flight(self) -> int:
        return sum(each.charge.in_flight for each in self.reader.connections)

    def _handle(self, _message: Message) -> tuple[float, str]:
        return self._handling * (0.5 + self._rng.random()), "finish"

    def _connect(self, address: Address) -> NSQError | None:
        nsqd = self._fleet.at[address]
        nsqd.dialled.append(self._fleet.clock.now)
        gevent.sleep(HANDSHAKE)
        if not nsqd.is_up:
            return ConnectionFailed(str(address), "refused")
        consumer = nsqd.accept(lambda: self._lost(nsqd))
        connection = None
        if self._fleet.setup.with_traffic:
            connection = Connection(self.reader, cast(Any, consumer), lambda: ONE_WAY, 2 * ONE_WAY, None)
            self.reader.connections.append(connection)
            self._plan_soon()
        self.connections[address] = connection
        return None

    def _lost(self, nsqd: Nsqd) -> None:
        connection = self.connections.pop(nsqd.address)
        if connection is not None:
            self.reader.lose(connection)
        if self._redialer.lost(nsqd.address):
            self._poller.hurry()

    def _plan_soon(self) -> None:
        if not self._plan_due:
            self._plan_due = True
            self._fleet.clock.after(0.0, self._plan)

    def _plan(self) -> None:
        self._plan_due = False
        self.reader.replan()


class Fleet:
    """Readers, nsqds and nsqlookupds on one clock. Some nsqds more than the setup names are down at first."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.clock = Clock()
        self.rng = random.Random(f"{setup.seed}/nsqds")
        self.nsqds = [Nsqd(self.clock, number, self.rng) for number in range(setup.nsqds + setup.spare())]
        self.at = {nsqd.address: nsqd for nsqd in self.nsqds}
        self.lookupds = [Lookupd(self.clock, number) for number in range(setup.lookupds)]
        self.members = [Member(self, number) for number in range(setup.readers)]

    def time(self) -> float:
        return self.clock.now

    @property
    def spare(self) -> list[Nsqd]:
        """The nsqds that are down at first."""
        return self.nsqds[self.setup.nsqds :]

    def begin(self, nsqds: list[Nsqd]) -> None:
        """These nsqds start; each registers with the nsqlookupds, and again at moments of its own."""
        for nsqd in nsqds:
            nsqd.is_up = True
            register(self.clock, nsqd, self.lookupds, self.rng.random())

    def end(self, nsqds: list[Nsqd]) -> None:
        """These nsqds are killed."""
        for nsqd in nsqds:
            for lookupd in self.lookupds:
                lookupd.registered.pop(nsqd.name, None)
            nsqd.end()

    def start(self) -> None:
        """All nsqds but the spare ones, and all Readers at the same moment."""
        self.begin(self.nsqds[: self.setup.nsqds])
        for member in self.members:
            member.start()

    @property
    def rdy_count(self) -> int:
        return sum(nsqd.rdy_count for nsqd in self.nsqds)

    def dials(self) -> list[float]:
        """When each connection was tried."""
        return sorted(at for nsqd in self.nsqds for at in nsqd.dialled)

    def requests(self) -> list[float]:
        """When each request to an nsqlookupd was made."""
        return sorted(at for lookupd in self.lookupds for at in lookupd.requests)

    def share_in_use(self) -> float:
        """The messages in flight, by max_in_flight of all Readers."""
        window = self.setup.readers * self.setup.options.max_in_flight
        return sum(member.in_flight for member in self.members) / window

    def take_logs(self) -> list[list[tuple[float, Connection, Message]]]:
        """For each Reader what it received since the last call: the moment, the connection and the message."""
        logs = []
        for member in self.members:
            logs.append(member.reader.log)
            member.reader.log = []
        return logs

    def every(self, seconds: float, call: Callable[[], object]) -> None:
        """Call it now and as often from now on."""

        def again() -> None:
            call()
            self.clock.after(seconds, again)

        again()
