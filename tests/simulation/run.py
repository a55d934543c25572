"""One run of a scenario, from the start of its cluster to its end, and what it showed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gevent

from tests.simulation.cluster import Cluster, Daemon
from tests.simulation.faults import Faults
from tests.simulation.ledger import Ledger
from tests.simulation.loop import RunsInCircles
from tests.simulation.oracles import Oracles
from tests.simulation.programs import ProducerProgram, ReaderProgram
from tests.simulation.scenario import Scenario
from tests.simulation.world import World, quiet_logs

#: Virtual seconds in which all must arrive after the end of all faults, beside what connections need; counted anew with
#: each message that arrives.
_DRAIN = 150.0

#: Seconds of the processor.
cpu_seconds = time.process_time


@dataclass
class Report:
    """What a run showed."""

    seed: int
    failures: list[str]
    hash: int = 0
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0
    messages: dict[str, int] = field(default_factory=dict)
    tally: dict[str, int] = field(default_factory=dict)


def run_scenario(scenario: Scenario, trace: Any = None) -> Report:
    """Run it; in a process of its own.

    :param trace: a file for the events, with their virtual times
    """
    start = cpu_seconds()
    quiet_logs()
    world = World(scenario.seed)
    if trace is not None:
        world.loop.trace = lambda process, text: trace.write(f"{world.now:12.6f} {process.name}: {text}\n")
    run = _Run(world, scenario)
    try:
        world.run(run.main)
    except RunsInCircles as exc:
        run.ledger.fail(f"@{world.now:.3f} {exc}")
    except gevent.hub.LoopExit:
        run.ledger.fail(f"@{world.now:.3f} nothing is left that could happen, but the run has not ended")
    finally:
        run.remove_files()
    for error in world.errors[:5]:
        run.ledger.fail(f"an error that nobody caught: {error}")
    tally = {} if run.oracles is None else dict(run.oracles.tally)
    return Report(
        scenario.seed,
        run.ledger.failures,
        world.loop.hash,
        world.now,
        cpu_seconds() - start,
        run.ledger.counts(),
        {**tally, "connections": world.network.connected, "turns": world.loop.turns},
    )


def wait_for_rest(ledger: Ledger, now: Callable[[], float]) -> None:
    """Wait until all that was confirmed has been handled, or nothing more comes."""
    left, since = len(ledger.missing()), now()
    while left and now() - since < _DRAIN:
        gevent.sleep(0.5)
        if (now_left := len(ledger.missing())) < left:
            left, since = now_left, now()
    gevent.sleep(10)


def _depths(daemon: Daemon) -> dict[str, Any]:
    if not daemon.is_running:
        return {}
    return {
        name: (topic.depth, {each.name: (each.depth, len(each.in_flight)) for each in topic.channels.values()})
        for name, topic in daemon.daemon.broker.topics.items()
    }


class _Run:
    def __init__(self, world: World, scenario: Scenario) -> None:
        self._world = world
        self._scenario = scenario
        self.ledger = Ledger()
        self.oracles: Oracles | None = None
        self._cluster: Cluster | None = None

    def main(self) -> None:
        """In the process "main"."""
        scenario, options = self._scenario, self._scenario.options
        network = self._world.network
        nsqd_options: dict[str, Any] = {
            "mem_queue_size": options["mem_queue_size"],
            "msg_timeout": options["msg_timeout"],
        }
        if options["data_path"]:
            nsqd_options |= {
                "data_path": True,
                "sync_every": options["sync_every"],
                "max_bytes_per_file": options["max_bytes_per_file"],
            }
        cluster = self._cluster = Cluster(self._world, options["nsqds"], options["nsqlookupds"], nsqd_options)
        network.latency, network.jitter = options["latency"], options["jitter"]
        network.fragment, network.bandwidth = options["fragment"], options["bandwidth"]
        readers = [ReaderProgram(cluster, number, scenario, self.ledger) for number in range(options["readers"])]
        producers = [ProducerProgram(cluster, number, scenario, self.ledger) for number in range(options["producers"])]
        oracles = self.oracles = Oracles(cluster, scenario, self.ledger, readers)
        self._world.checks.append(oracles.check)
        faults = Faults(cluster, scenario, self.ledger, oracles, readers, producers)
        self._go_through_phases(faults, oracles, readers)
        for producer in producers:
            producer.finish()
        self._drain(readers)
        self._end(cluster, readers, producers)

    def _go_through_phases(self, faults: Faults, oracles: Oracles, readers: list[ReaderProgram]) -> None:
        scenario, now = self._scenario, self._cluster.world  # type: ignore[union-attr]
        due = list(scenario.faults)
        happening: list[gevent.Greenlet] = []
        for index, (at, is_faulty) in enumerate(scenario.phases):
            gevent.sleep(max(0.0, at - now.now))
            if not is_faulty:
                gevent.joinall(happening)
                happening.clear()
                faults.undo_what_lasts()
                oracles.quiet_since = now.now
                continue
            oracles.quiet_since = None
            end = scenario.phases[index + 1][0]
            while due and due[0].at < end:
                fault = due.pop(0)
                gevent.sleep(max(0.0, fault.at - now.now))
                happening.append(gevent.spawn(faults.happen, fault))
        gevent.sleep(max(0.0, scenario.seconds - now.now))
        gevent.joinall(happening)
        faults.undo_what_lasts()
        oracles.quiet_since = now.now

    def _drain(self, readers: list[ReaderProgram]) -> None:
        """All that was confirmed arrives."""
        for program in readers:
            program.be_calm()
        wait_for_rest(self.ledger, lambda: self._world.now)
        if missing := self.ledger.missing():
            some = [body[:12] for body in missing[:5]]
            self.ledger.fail(
                f"@{self._world.now:.3f} {len(missing)} confirmed messages are lost, such as {some}; "
                f"the nsqds hold {[_depths(daemon) for daemon in self._cluster.nsqds]}, "  # type: ignore[union-attr]
                f"the Readers {[program.reader.stats() for program in readers]}"
            )

    def _end(self, cluster: Cluster, readers: list[ReaderProgram], producers: list[ProducerProgram]) -> None:
        self._world.checks.clear()
        for program in (*readers, *producers):
            program.end()
        cluster.close()
        try:
            cluster.check_nothing_left()
        except AssertionError as exc:
            self.ledger.fail(str(exc))

    def remove_files(self) -> None:
        if self._cluster is not None:
            self._cluster.remove_files()
