"""Fleets of Readers in simulated clusters (``tests.simulation``): what they do with their windows while the traffic
moves, and what they ask of nsqlookupds while daemons come and go. Each run needs a process of its own."""

from __future__ import annotations

import bisect
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

import gevent

from gnsq_like import Message
from tests.simulation.cluster import Cluster, Daemon
from tests.simulation.process import Process
from tests.simulation.world import World, quiet_logs

#: Seconds from a Reader to a daemon, as within a data centre.
ONE_WAY = 0.00025
TOPIC, CHANNEL = "t", "c"
#: Messages that a Reader handles in a second if it uses all of max_in_flight; so a handler takes max_in_flight by this.
RATE = 25.0
#: Seconds between two samples of the window; for a fleet to connect; of each phase; and of its steady end.
SAMPLE, CONNECTING, STEADY = 0.25, 3.0, 3.0
PHASES = {"all": 6.0, "a tenth": 14.0, "another tenth": 14.0, "killed, replaced": 10.0, "trickle": 6.0}
#: Seconds from one event to the next; and for which an nsqlookupd is away, and an nsqd.
SPAN, LOOKUPD_AWAY, NSQD_AWAY = 150.0, 10.0, 2.0


class Setup(NamedTuple):
    readers: int = 10
    nsqds: int = 30
    nsqlookupds: int = 3
    seed: int = 1


class Fleet:
    """Readers with these options, nsqds with a topic, and nsqlookupds."""

    def __init__(self, setup: Setup, options: dict[str, Any]) -> None:
        quiet_logs()
        self.setup = setup
        self.options = options
        self.world = World(setup.seed)
        self.random = Random(f"{setup.seed} fleet")
        self.cluster: Cluster
        #: For each Reader the messages whose handlers began: the moment, the nsqd's address, when it was published.
        self.logs: list[list[tuple[float, str, float]]] = [[] for _ in range(setup.readers)]
        #: When Readers connected, and to which nsqd.
        self.connects: list[tuple[float, str]] = []
        #: When each phase or event began, and its figures, by name.
        self.began: dict[str, float] = {}
        self.figures: dict[str, dict[str, float]] = {}
        self.readers: list[Any] = []

    def run(self) -> dict[str, Any]:
        """Returns what ``as_dict`` does."""
        self.world.run(self._main)
        return self.as_dict()

    def _main(self) -> None:
        setup = self.setup
        self.cluster = Cluster(self.world, 0, setup.nsqlookupds, {"mem_queue_size": 1_000_000})
        self.world.network.latency = ONE_WAY
        for _ in range(setup.nsqds):
            self.add_nsqd()
        gevent.sleep(1.0)  # until all are registered
        self.happen()
        self.world.checks.clear()

    def happen(self) -> None:
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        return {"options": self.options, "began": self.began, "figures": self.figures}

    def add_nsqd(self) -> Daemon:
        """One more, which registers its topic with the nsqlookupds."""
        nsqd = self.cluster.add_nsqd()
        nsqd.process.run(nsqd.daemon.broker.topic, TOPIC)
        return nsqd

    def start_readers(self) -> None:
        """All at the same moment, each in a process of its own."""
        starts = []
        for number in range(self.setup.readers):
            process = self.world.process(f"reader-{number}")
            starts.append(process.spawn(self._start_reader, process, number))
        gevent.joinall(starts, raise_error=True)

    def _start_reader(self, process: Process, number: int) -> None:
        options, random = self.options, Random(f"{self.setup.seed} reader {number}")
        handling = options.get("max_in_flight", 1) / RATE

        def handle(message: Message) -> None:
            self.logs[number].append((self.world.now, message.nsqd_address, float(message.body.strip(b"x"))))
            gevent.sleep(handling * (0.5 + random.random()))

        def connected(address: str) -> None:
            self.connects.append((self.world.now, address))

        self.readers.append(self.cluster.reader(TOPIC, CHANNEL, handle, on_connect=connected, **options))


class Traffic(Fleet):
    """Backlogs, one kind after the other: on all nsqds; on a tenth of them; on another tenth; those are killed, and as
    many new ones take over. At last a trickle on all nsqds: a message a second for each Reader."""

    def __init__(self, setup: Setup, options: dict[str, Any]) -> None:
        super().__init__(setup, options)
        #: Of moments: the share of all max_in_flight in use, and the RDY commands so far.
        self.samples: list[tuple[float, float, int]] = []
        self._rdy_count = 0
        self._rdys: dict[Daemon, tuple[int, dict[str, int]]] = {}
        self._busy: list[Daemon] = []

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "samples": self.samples}

    def happen(self) -> None:
        nsqds, tenth = list(self.cluster.nsqds), max(2, self.setup.nsqds // 10)
        self.world.checks.append(self._count_rdys)
        self.start_readers()
        gevent.sleep(CONNECTING)
        for often in (self._sample, self._fill):
            self.world.main.spawn(self._repeat, often)
        self._backlog("all", nsqds)
        self._backlog("a tenth", nsqds[:tenth])
        self._backlog("another tenth", nsqds[-tenth:])
        fresh = [self.add_nsqd() for _ in range(tenth)]
        for nsqd in nsqds[-tenth:]:
            nsqd.kill()
        self._backlog("killed, replaced", fresh)
        self._trickle([*nsqds[:-tenth], *fresh])

    def _count_rdys(self) -> None:
        for nsqd in self.cluster.nsqds:
            turn = nsqd.process.last_turn
            if self._rdys.get(nsqd, (-1, {}))[0] == turn or not nsqd.is_running:
                continue
            _, before = self._rdys.get(nsqd, (-1, {}))
            now = {each.address: each.consumer.ready_count for each in nsqd.daemon.clients if each.consumer is not None}
            self._rdy_count += sum(before.get(address, 0) != rdy for address, rdy in now.items())
            self._rdys[nsqd] = turn, now

    def _repeat(self, call: Callable[[], object]) -> None:
        while True:
            call()
            gevent.sleep(SAMPLE)

    def _sample(self) -> None:
        in_flight = sum(reader.stats()["in_flight"] for reader in self.readers)
        window = len(self.readers) * self.options["max_in_flight"]
        self.samples.append((self.world.now, round(in_flight / window, 4), self._rdy_count))

    def _fill(self) -> None:
        """The backlogs never end."""
        for nsqd in self._busy:
            if (missing := 500 - len(self._queue(nsqd))) > 0:
                self._publish(nsqd, missing)

    def _queue(self, nsqd: Daemon) -> Any:
        topic = nsqd.daemon.broker.topics[TOPIC]
        channel = topic.channels.get(CHANNEL)
        return topic.queue if channel is None else channel.queue

    def _publish(self, nsqd: Daemon, count: int) -> None:
        body = repr(self.world.now).encode().ljust(100, b"x")

        def publish() -> None:
            nsqd.daemon.broker.topic(TOPIC).publish([body] * count, 0.0, time.monotonic(), time.time_ns())

        nsqd.process.spawn(publish)

    def _set_busy(self, nsqds: list[Daemon]) -> None:
        for nsqd in self._busy:
            if nsqd.is_running:
                self._queue(nsqd).clear()
        self._busy = nsqds
        self._fill()

    def _backlog(self, name: str, busy: list[Daemon]) -> None:
        began = self.began[name] = self.world.now
        marks = [len(log) for log in self.logs]
        self._set_busy(busy)
        gevent.sleep(PHASES[name] - STEADY)
        steady = [len(log) for log in self.logs]
        gevent.sleep(STEADY)
        addresses = {nsqd.tcp_address for nsqd in busy}
        rates = [(len(log) - mark) / STEADY for log, mark in zip(self.logs, steady, strict=True)]
        firsts = [
            next((at - began for at, address, _ in log[mark:] if address in addresses), PHASES[name])
            for log, mark in zip(self.logs, marks, strict=True)
        ]
        mean = statistics.fmean(rates) or 1.0
        self.figures[name] = {
            **self._steady(),
            "messages a second, a Reader": mean,
            "least, a Reader": min(rates) / mean,
            "most, a Reader": max(rates) / mean,
            **_times("first message", firsts),
        }

    def _trickle(self, nsqds: Sequence[Daemon]) -> None:
        name = "trickle"
        self._set_busy([])
        began = self.began[name] = self.world.now
        while self.world.now < began + PHASES[name]:
            self._publish(self.random.choice(nsqds), 1)
            gevent.sleep(self.random.expovariate(self.setup.readers))
        late = began + PHASES[name] - STEADY
        delays = [at - published for log in self.logs for at, _, published in log if published >= late]
        self.figures[name] = self._steady() | _times("delivered", delays)

    def _steady(self) -> dict[str, float]:
        """The share in use at the end of a phase, and RDY commands."""
        last = [sample for sample in self.samples if sample[0] >= self.world.now - STEADY]
        return {
            "share in use": statistics.fmean(share for _, share, _ in last),
            "RDY a second, a Reader": (last[-1][2] - last[0][2]) / (last[-1][0] - last[0][0]) / self.setup.readers,
        }


class Discovery(Fleet):
    """Without messages: all Readers start at once; an nsqd comes; one is killed and replaced by another; one nsqlookupd
    is restarted, then all of them; all nsqds are restarted one after the other; all connections are lost at once."""

    def __init__(self, setup: Setup, options: dict[str, Any]) -> None:
        super().__init__(setup, options)
        #: When each request to an nsqlookupd was made, and each connection to an nsqd tried.
        self._requests: list[float] = []
        self._dials: list[float] = []
        self._ports: set[str] = set()
        self.world.loop.trace = self._note

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "lookups": self._rates(self._requests), "dials": self._rates(self._dials)}

    def _note(self, process: Process, text: str) -> None:
        if process.name.startswith("reader"):
            if text.startswith("sends to nsqlookupd") and "GET /" in text:
                self._requests.append(self.world.now)
            elif text.startswith("connects to port") and text.rpartition(" ")[2] in self._ports:
                self._dials.append(self.world.now)

    def add_nsqd(self) -> Daemon:
        nsqd = super().add_nsqd()
        self._ports.add(nsqd.tcp_address.rpartition(":")[2])
        return nsqd

    def happen(self) -> None:
        nsqds, nsqlookupds = list(self.cluster.nsqds), self.cluster.nsqlookupds
        self._event("all Readers start", self.start_readers)
        self._event("an nsqd comes", self.add_nsqd)
        self._event("an nsqd is replaced", lambda: self._replace(nsqds.pop(0)))
        self._event("one nsqlookupd restarts", lambda: self._restart(nsqlookupds[:1]))
        self._event("all nsqlookupds restart", lambda: self._restart(nsqlookupds))
        self._event("all nsqds restart in turn", lambda: self._upgrade(nsqds))
        self._event("all connections are lost", self._drop_all)

    def _replace(self, old: Daemon) -> Daemon:
        old.kill()
        return self.add_nsqd()

    def _restart(self, daemons: Sequence[Daemon]) -> None:
        for daemon in daemons:
            gevent.spawn(daemon.restart, LOOKUPD_AWAY)

    def _upgrade(self, nsqds: Sequence[Daemon]) -> None:
        for number, nsqd in enumerate(nsqds):
            gevent.spawn_later(number * 0.8 * SPAN / len(nsqds), self._restart_nsqd, nsqd)

    def _restart_nsqd(self, nsqd: Daemon) -> None:
        nsqd.stop()
        gevent.sleep(NSQD_AWAY)
        nsqd.start()
        nsqd.process.run(nsqd.daemon.broker.topic, TOPIC)

    def _drop_all(self) -> None:
        processes = [nsqd.process for nsqd in self.cluster.nsqds if nsqd.is_running]
        for connection in self.world.network.open_connections(processes):
            if connection.client.owner.name.startswith("reader"):
                connection.cut()

    def _event(self, name: str, happen: Callable[[], object]) -> None:
        began = self.began[name] = self.world.now
        new = happen()
        gevent.sleep(began + SPAN - self.world.now)
        figures: dict[str, float] = {}
        for what, times in (("lookups", self._requests), ("dials", self._dials)):
            times = times[bisect.bisect_left(times, began) :]
            figures[f"{what} a second"] = len(times) / SPAN
            figures[f"{what}, most in a second"] = _most(times, 1.0)
        figures["not connected at the end"] = self._missing()
        if isinstance(new, Daemon):
            figures |= _times("found after", [at - began for at, where in self.connects if new.tcp_address in where])
        self.figures[name] = figures

    def _missing(self) -> int:
        up = [nsqd for nsqd in self.cluster.nsqds if nsqd.is_running]
        return sum(self.setup.readers - sum(each.consumer is not None for each in nsqd.daemon.clients) for nsqd in up)

    def _rates(self, times: Sequence[float]) -> list[int]:
        """How many there are in each second."""
        counts = [0] * (int(self.world.now) + 1)
        for at in times:
            counts[int(at)] += 1
        return counts


def run(kind: str, setup: Setup, options: dict[str, Any]) -> dict[str, Any]:
    return {"traffic": Traffic, "discovery": Discovery}[kind](setup, options).run()


def job(kind: str, setup: Setup, options: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """For ``tests.simulation.forked``."""
    return partial(run, kind, setup, options)


def _most(times: Sequence[float], seconds: float) -> int:
    """The most of these (in order) within so many seconds."""
    return max((bisect.bisect_left(times, at + seconds) - index for index, at in enumerate(times)), default=0)


def _times(what: str, seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    if not ordered:
        return {}
    return {f"{what}, median": ordered[len(ordered) // 2], f"{what}, latest": ordered[-1]}
