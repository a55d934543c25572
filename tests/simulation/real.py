"""The same scenarios with NSQ's own daemons, in real time: ``python -m tests.simulation --real --seed=7``.

The programs and the books are those of the simulation, and so are the cluster, the options and the times of the faults
that a seed draws; the daemons are processes, and a proxy stands before each nsqd. So the simulated nsqd cannot hide
a misunderstanding. Faults that take a simulated disk or clock are left out, and nobody looks into the daemons: after
a kill or the deletion of a topic, all that was not handled yet may be lost. By hand: it takes as long as it says, and a
machine that does much else may be late.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from random import Random
from types import SimpleNamespace
from typing import Any

import gevent
import requests

from gnsq_like.testing import FaultProxy
from tests.simulation.faults import CUT_WITHIN
from tests.simulation.ledger import Ledger
from tests.simulation.programs import CHANNEL, ProducerProgram, Program, ReaderProgram
from tests.simulation.run import Report, wait_for_rest
from tests.simulation.scenario import Scenario
from tests.support.daemons import Process, Running, running_nsqd, running_nsqlookupd

#: Seconds between two looks at whether this process runs.
_TICK = 0.005


class _Standstills:
    """When this process had no processor, or its hub was busy, as a greenlet notes that wakes all the time."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []
        gevent.spawn(self._watch)

    def _watch(self) -> None:
        while True:
            due = time.monotonic() + _TICK
            gevent.sleep(_TICK)
            if (now := time.monotonic()) > due + _TICK:
                self._seen.append((due, now))

    def since(self, when: float) -> float:
        """Their seconds since then."""
        return sum(max(0.0, end - max(start, when)) for start, end in self._seen)


class _Here:
    """What a program takes for its process: this one."""

    def __init__(self, name: str, standstills: Callable[[float], float]) -> None:
        self.name = name
        self.stood_still = standstills

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def spawn(self, function: Callable[..., Any], *arguments: Any) -> gevent.Greenlet:
        return gevent.spawn(function, *arguments)


class RealCluster:
    """NSQ's daemons as processes, with a proxy before each nsqd; what the programs need of a Cluster."""

    def __init__(self, stack: ExitStack, options: dict[str, Any]) -> None:
        self._start = start = time.monotonic()
        standstills = _Standstills()
        self.world = SimpleNamespace(process=lambda name: _Here(name, lambda when: standstills.since(start + when)))
        self.nsqlookupds: list[Running] = [
            stack.enter_context(running_nsqlookupd("real")) for _ in range(options["nsqlookupds"])
        ]
        lookupds = [each.tcp_address for each in self.nsqlookupds]
        self.proxies = [stack.enter_context(FaultProxy()) for _ in range(options["nsqds"])]
        self.nsqds: list[Running] = []
        for number, proxy in enumerate(self.proxies):
            nsqd = running_nsqd(
                "real",
                node_id=number,
                broadcast_address="127.0.0.1",
                broadcast_tcp_port=proxy.port,
                lookupd_tcp_addresses=lookupds,
                mem_queue_size=options["mem_queue_size"],
                msg_timeout=options["msg_timeout"],
                sync_every=options["sync_every"],
                max_bytes_per_file=options["max_bytes_per_file"],
            )
            self.nsqds.append(stack.enter_context(nsqd))
            proxy.target = self.nsqds[-1].tcp_address

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._start

    @property
    def tcp_addresses(self) -> list[str]:
        """Of all nsqds, through their proxies."""
        return [proxy.address for proxy in self.proxies]

    def discovery(self) -> dict[str, Any]:
        """How a program finds the nsqds."""
        if self.nsqlookupds:
            return {"lookupd_http_addresses": [each.http_address for each in self.nsqlookupds]}
        return {"nsqd_tcp_addresses": self.tcp_addresses}


class _Faults:
    """The faults that real processes and proxies can have."""

    def __init__(
        self, cluster: RealCluster, topics: list[str], ledger: Ledger, readers: list[Any], producers: list[Any]
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._ledger = ledger
        self._readers = readers
        self._producers = producers
        self.kinds: dict[str, Callable[[Random], None]] = {
            "cut": lambda random: random.choice([FaultProxy.cut, FaultProxy.reset])(self._proxy(random)),
            "cut after bytes": self._cut_after_bytes,
            "half-open": lambda random: random.choice([FaultProxy.lose_server, FaultProxy.lose_client])(
                self._proxy(random)
            ),
            "partition": self._partition,
            "port": self._port,
            "slow network": self._slow_network,
            "stand still": self._stand_still,
            "restart nsqd": lambda random: self._end(random, self._cluster.nsqds, Process.stop),
            "kill nsqd": lambda random: self._end(random, self._cluster.nsqds, self._kill),
            "nsqlookupd": lambda random: self._end(random, self._cluster.nsqlookupds, Process.stop),
            "delete topic": self._delete_topic,
            "pause channel": self._pause_channel,
            "steer": lambda random: random.choice(self._readers).steer(random),
            "stop reader": lambda random: random.choice(self._readers).stop_for_a_while(random),
            "change producer": lambda random: random.choice(self._producers).change(random),
        }

    def _proxy(self, random: Random) -> FaultProxy:
        return random.choice(self._cluster.proxies)

    def _cut_after_bytes(self, random: Random) -> None:
        proxy = self._proxy(random)
        direction = random.choice([proxy.to_server, proxy.to_client])
        direction.cut_at(direction.count + random.randrange(300))
        gevent.sleep(CUT_WITHIN)
        direction.clear()

    def _partition(self, random: Random) -> None:
        proxy = self._proxy(random)
        proxy.freeze()
        gevent.sleep(random.choice([0.2, 2, 10]))
        proxy.thaw()

    def _port(self, random: Random) -> None:
        proxy = self._proxy(random)
        proxy.accepting = False
        gevent.sleep(random.random() * 10)
        proxy.accepting = True

    def _slow_network(self, random: Random) -> None:
        proxy = self._proxy(random)
        proxy.delay = 0.1
        gevent.sleep(random.random() * 5)
        proxy.delay = 0.0

    def _stand_still(self, random: Random) -> None:
        daemon = random.choice([each for each in (*self._cluster.nsqds, *self._cluster.nsqlookupds) if each.is_running])
        assert isinstance(daemon, Process) and daemon.process is not None
        process = daemon.process
        process.signal(signal.SIGSTOP)
        gevent.sleep(random.random() * 5)
        process.signal(signal.SIGCONT)

    def _end(self, random: Random, daemons: list[Running], how: Callable[[Any], None]) -> None:
        running = [each for each in daemons if each.is_running]
        if running:
            daemon = random.choice(running)
            how(daemon)
            gevent.sleep(random.random() * 12)
            daemon.start()

    def _kill(self, daemon: Process) -> None:
        self._excuse_all()
        daemon.kill()

    def _excuse_all(self) -> None:
        """What was not handled yet may be lost."""
        self._ledger.excused |= {body for body in self._ledger.outcomes if not self._ledger.handled[body]}

    def _post(self, daemon: Running, path: str) -> None:
        with suppress(requests.RequestException):
            requests.post(f"http://{daemon.http_address}/{path}", timeout=5)

    def _delete_topic(self, random: Random) -> None:
        topic = random.choice(self._topics)
        daemons = [*self._cluster.nsqds, *self._cluster.nsqlookupds]
        random.shuffle(daemons)
        for daemon in daemons:
            self._excuse_all()
            self._post(daemon, f"topic/delete?topic={topic}")
        self._excuse_all()

    def _pause_channel(self, random: Random) -> None:
        daemon, topic = random.choice(self._cluster.nsqds), random.choice(self._topics)
        self._post(daemon, f"channel/pause?topic={topic}&channel={CHANNEL}")
        gevent.sleep(random.random() * 10)
        while not daemon.is_running:  # it may have stored the pause
            gevent.sleep(0.5)
        self._post(daemon, f"channel/unpause?topic={topic}&channel={CHANNEL}")


def run_real(scenario: Scenario) -> Report:
    """Run it, in this process, which is to end afterwards."""
    ledger = Ledger()
    start = time.process_time()
    happened: dict[str, int] = {}
    with ExitStack() as stack:
        cluster: Any = RealCluster(stack, scenario.options)
        readers = [ReaderProgram(cluster, number, scenario, ledger) for number in range(scenario.options["readers"])]
        producers = [
            ProducerProgram(cluster, number, scenario, ledger) for number in range(scenario.options["producers"])
        ]
        faults = _Faults(cluster, scenario.options["topics"], ledger, readers, producers)
        happening = []
        for fault in scenario.faults:
            if fault.kind in faults.kinds:
                gevent.sleep(max(0.0, fault.at - cluster.now))
                happened[f"fault: {fault.kind}"] = happened.get(f"fault: {fault.kind}", 0) + 1
                happening.append(gevent.spawn(faults.kinds[fault.kind], Random(fault.seed)))
        gevent.sleep(max(0.0, scenario.seconds - cluster.now))
        gevent.joinall(happening, raise_error=True)
        for producer in producers:
            producer.finish()
        for program in readers:
            program.be_calm()
        wait_for_rest(ledger, lambda: cluster.now)
        programs: list[Program] = [*readers, *producers]
        for each in programs:
            each.end()
        seconds = cluster.now
    if missing := ledger.missing():
        ledger.fail(f"{len(missing)} confirmed messages are lost, such as {missing[:5]}")
    used = time.process_time() - start
    return Report(scenario.seed, ledger.failures, 0, seconds, used, ledger.counts(), happened)
