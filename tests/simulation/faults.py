"""The faults of a scenario, each a function of its own: what it does, and how it is undone."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import gevent

import gnsq_like
from gnsq_like import errors
from gnsq_like.server.broker.message import made_at_ns
from gnsq_like.server.broker.queues import MemoryQueue
from gnsq_like.server.storage.queue_files import DATA_FILE
from gnsq_like.server.storage.records import HEADER, HEADER_BYTES, SIZE_BYTES
from tests.simulation.cluster import Cluster, Daemon
from tests.simulation.disk import Disk
from tests.simulation.ledger import Ledger
from tests.simulation.network import HOST, Connection
from tests.simulation.oracles import Oracles
from tests.simulation.process import Killed, Process
from tests.simulation.programs import CHANNEL, ProducerProgram, ReaderProgram
from tests.simulation.scenario import Fault, Scenario

#: The second line of a disk queue's metadata.
_READ_POSITION = re.compile(rb"[0-9]+\n([0-9]+),([0-9]+)\n")
_BODY = re.compile(rb"#[0-9]+\|x*")
#: Virtual seconds in which a connection that is to be cut after some bytes may send them; then the fault is over.
CUT_WITHIN = 5.0
#: Virtual seconds after which a supervisor starts an nsqd again that could not start.
_RESTART_AFTER = 1.0


class Faults:
    """Makes the faults of one run happen."""

    def __init__(
        self,
        cluster: Cluster,
        scenario: Scenario,
        ledger: Ledger,
        oracles: Oracles,
        readers: list[ReaderProgram],
        producers: list[ProducerProgram],
    ) -> None:
        self._cluster = cluster
        self._network = cluster.world.network
        self._options = scenario.options
        self._latency = scenario.options["latency"]
        self._slow_networks = 0
        self._ledger = ledger
        self._oracles = oracles
        self._readers = readers
        self._producers = producers
        #: Whether a topic was deleted at an nsqlookupd.
        self._is_unlisted = False
        self._kinds: dict[str, Callable[[Random], None]] = {
            "cut": self._cut,
            "cut after bytes": self._cut_after_bytes,
            "half-open": self._half_open,
            "partition": self._partition,
            "stand still": self._stand_still,
            "busy": self._be_busy,
            "restart nsqd": self._restart_nsqd,
            "kill nsqd": lambda random: self._end_nsqd(random, "kill"),
            "crash nsqd": lambda random: self._end_nsqd(random, "crash"),
            "disk": self._disk,
            "nsqlookupd": self._nsqlookupd,
            "lie": self._lie,
            "port": self._port,
            "clock": self._clock,
            "slow network": self._slow_network,
            "round trip": self._round_trip,
            "dns": self._dns,
            "steer": self._steer,
            "stop reader": self._stop_reader,
            "change producer": self._change_producer,
            "delete topic": self._delete_topic,
            "pause channel": self._pause_channel,
        }

    def happen(self, fault: Fault) -> None:
        """Make it happen, and undo it; returns when it is undone."""
        self._oracles.tally[f"fault: {fault.kind}"] += 1
        self._kinds[fault.kind](Random(fault.seed))

    @contextmanager
    def _disturbing(self) -> Iterator[None]:
        """While RDY and messages may be on their way for longer than usual."""
        self._oracles.disturbances += 1
        try:
            yield
        finally:
            self._oracles.disturbances -= 1
            self._oracles.disturbed_at = self._cluster.now

    # -- the network -----------------------------------------------------------------------------------

    def _connection(self, random: Random) -> Connection | None:
        connections = self._network.open_connections()
        return random.choice(connections) if connections else None

    def _cut(self, random: Random) -> None:
        if (connection := self._connection(random)) is not None:
            connection.cut(random.choice([0, 104]))

    def _cut_after_bytes(self, random: Random) -> None:
        if (connection := self._connection(random)) is not None:
            direction = random.choice([connection.up, connection.down])
            direction.cut_after = random.randrange(300)
            gevent.sleep(CUT_WITHIN)
            if direction.cut_after is not None and direction.cut_after >= 0:
                direction.cut_after = None

    def _half_open(self, random: Random) -> None:
        with self._disturbing():
            if (connection := self._connection(random)) is not None:
                connection.become_half_open(random.choice(["client", "server", "none"]))

    def _partition(self, random: Random) -> None:
        one, other = self._nsqd(random).process, random.choice(self._programs())
        directions = random.choice([[(one, other)], [(other, one)], [(one, other), (other, one)]])
        with self._disturbing():
            for source, target in directions:
                self._network.part(source, target)
            gevent.sleep(random.choice([0.2, 2, 10, 40]))
            for source, target in directions:
                self._network.join(source, target)

    def _port(self, random: Random) -> None:
        """An nsqd's port refuses connections, or its backlog is full."""
        port = int(self._nsqd(random).tcp_address.rpartition(":")[2])
        ports = random.choice([self._network.refused, self._network.full])
        ports[port] = None
        gevent.sleep(random.random() * 10)
        ports.pop(port, None)

    def _slow_network(self, random: Random) -> None:
        """Everything takes longer for a while."""
        with self._disturbing():
            self._slow_networks += 1
            self._set_latency()
            gevent.sleep(random.random() * 5)
            self._slow_networks -= 1
            self._set_latency()

    def _round_trip(self, random: Random) -> None:
        """From now on, everything takes longer or less long; a Reader with traffic knows it after three seconds."""
        latency = random.choice([50e-6, 0.001, 0.01, 0.05])
        if latency > self._latency:
            self._oracles.became_slower()
        with self._disturbing():
            self._latency = latency
            self._options["latency"] = max(self._options["latency"], latency)
            self._set_latency()
            gevent.sleep(3.0)

    def _set_latency(self) -> None:
        self._network.latency = self._latency * 10 + 0.05 if self._slow_networks else self._latency

    def _dns(self, random: Random) -> None:
        resolver = gevent.get_hub().resolver
        resolver.fails, resolver.delay = random.random() < 0.5, random.random() * 3
        gevent.sleep(random.random() * 10)
        resolver.fails, resolver.delay = False, 0.0

    # -- processes -------------------------------------------------------------------------------------

    def _programs(self) -> list[Process]:
        return [program.process for program in (*self._readers, *self._producers)]

    def _running(self) -> list[Process]:
        """The processes of all programs and daemons."""
        daemons = [daemon.process for daemon in (*self._cluster.nsqds, *self._cluster.nsqlookupds) if daemon.is_running]
        return [*daemons, *self._programs()]

    def _stand_still(self, random: Random) -> None:
        process = random.choice(self._running())
        seconds = random.random() ** 3 * self._options["standing_still"]
        with self._disturbing():
            process.stand_still(seconds)
            gevent.sleep(seconds)

    def _be_busy(self, random: Random) -> None:
        """Each turn of a hub takes long, as on a machine with too few processors, so much is due in the same turn."""
        process = random.choice(self._programs() if random.random() < 0.7 else self._running())
        most = random.choice([0.01, 0.1, 0.3])
        with self._disturbing():
            process.turn_seconds = lambda: random.random() * most
            gevent.sleep(random.random() * 20)
            process.turn_seconds = None

    def _clock(self, random: Random) -> None:
        """A wall clock is set, or a monotonic clock jumps forward."""
        daemons = [daemon.process for daemon in self._cluster.nsqds if daemon.is_running]
        process = random.choice([*daemons, *self._programs()])
        if random.random() < 0.7:
            process.set_wall_clock(random.choice([-3600.0, -5.0, 5.0, 3600.0]))
        else:
            seconds = random.random() * 20
            with self._disturbing():
                process.jump(seconds)

    # -- nsqds -----------------------------------------------------------------------------------------

    def _nsqd(self, random: Random) -> Daemon:
        return random.choice(self._cluster.nsqds)

    def _restart_nsqd(self, random: Random) -> None:
        daemon = self._nsqd(random)
        if not daemon.is_running:
            return
        with suppress(Killed):
            daemon.process.run(self._stop_nsqd, daemon)
        gevent.sleep(random.random() * 12)
        self._start(daemon)

    def _stop_nsqd(self, daemon: Daemon) -> None:
        """In its process. It accepts messages until its connections are closed; then it writes what it has."""
        broker = daemon.daemon.broker
        write = broker.close

        def excuse_and_write() -> int:
            self._excuse(daemon, keep_files=True, stops=True)
            return write()

        broker.close = excuse_and_write
        daemon.daemon.stop()
        self._excuse(daemon, keep_files=True, stops=True)  # without a disk, it has written nothing

    def _end_nsqd(self, random: Random, how: str) -> None:
        daemon = self._nsqd(random)
        if not daemon.is_running:
            return
        self._excuse(daemon, keep_files=how == "kill")
        with self._disturbing():
            getattr(daemon, how)()
        gevent.sleep(random.random() * 12)
        if daemon.disk is not None and random.random() < 0.5:
            self._flip_bits(daemon.disk, random)
        self._start(daemon)

    def _flip_bits(self, disk: Disk, random: Random) -> None:
        """Damage data files. Who reads them may miss what the damage covers, and get bodies that it has made."""
        names = sorted(path.name for path in disk.directory.glob("*.diskqueue.0*.dat"))
        for name in random.sample(names, min(len(names), random.choice([1, 1, 3]))):
            content = Path(disk.directory, name).read_bytes()
            if not content:
                continue
            spans = _spans(content)
            at, bit = random.randrange(len(content)), random.randrange(8)
            disk.flip(name, at, bit)
            damaged = Path(disk.directory, name).read_bytes()
            for begin, end in spans:
                if not _is_sure(content, begin):  # made while the clock was wrong: the search does not find it
                    self._ledger.excused.add(content[begin + HEADER_BYTES : end])
                if begin <= at < end:
                    stop = begin + SIZE_BYTES + int.from_bytes(damaged[begin : begin + SIZE_BYTES])
                    # The limit: a size that leads exactly to a later record, or to the end, makes one body of all.
                    covered = [
                        each for each in spans if begin <= each[0] < (stop if stop in dict(spans).values() else end)
                    ]
                    self._ledger.excused |= {content[b + HEADER_BYTES : e] for b, e in covered}
                    self._ledger.damaged.add(damaged[begin + HEADER_BYTES : stop])

    def _start(self, daemon: Daemon) -> None:
        while not daemon.is_running:
            try:
                daemon.start()
            except OSError:  # its disk may be full
                gevent.sleep(_RESTART_AFTER)

    def _excuse(self, daemon: Daemon, *, keep_files: bool, stops: bool = False) -> None:
        """What an nsqd loses by this end, as NSQ's own does."""
        held = _bodies_in_memory(daemon.daemon, self._options["topics"])
        self._ledger.doubtful |= held
        if daemon.disk is None:
            self._ledger.excused |= held
        elif stops and not daemon.disk.is_full:
            return
        elif keep_files:
            self._ledger.excused |= held
        else:
            survive = set.intersection(*map(_unread_bodies, daemon.disk.least_survivors()))
            written = set()
            for path in daemon.disk.directory.glob("*.dat"):
                written |= set(_BODY.findall(path.read_bytes()))
            self._ledger.excused |= held | (written - survive)

    def _disk(self, random: Random) -> None:
        """The disk is full, slow, or does not sync, for a while."""
        daemon = self._nsqd(random)
        disk = daemon.disk
        if disk is None:
            return
        x = random.random()
        if x < 0.3:
            disk.is_full = True
        elif x < 0.6:
            disk.fails_to_sync = True
        else:
            daemon.process.disk_delay = random.random() * 3
        gevent.sleep(random.random() * 10)
        disk.is_full = disk.fails_to_sync = False
        daemon.process.disk_delay = 0.0

    def _delete_topic(self, random: Random) -> None:
        """Delete a topic at nsqds and nsqlookupds, in any order; it is made again by who uses it."""
        topic = random.choice(self._options["topics"])
        steps: list[Callable[[], None]] = []
        if random.random() < 0.7:
            steps.append(lambda: self._delete_at_nsqds(topic, random))
        if random.random() < 0.7:
            steps.append(lambda: self._delete_at_nsqlookupds(topic))
        random.shuffle(steps)
        for step in steps:
            step()
            gevent.sleep(random.choice([0, 0.1, 3]))

    def _delete_at_nsqds(self, topic: str, random: Random) -> None:
        for daemon in self._cluster.nsqds:
            if daemon.is_running and topic in daemon.daemon.broker.topics:
                with suppress(Killed):
                    daemon.process.run(self._delete_at_nsqd, daemon, topic)
                if random.random() < 0.3:
                    gevent.sleep(random.random())

    def _delete_at_nsqd(self, daemon: Daemon, topic: str) -> None:
        """In its process, which may have stood still before."""
        self._ledger.excused |= _bodies_in_memory(daemon.daemon, [topic])
        if daemon.disk is not None:
            for path in daemon.disk.directory.glob("*.dat"):
                self._ledger.excused |= set(_BODY.findall(path.read_bytes()))
        if topic in daemon.daemon.broker.topics:
            daemon.daemon.delete_topic(daemon.daemon.broker.topics[topic])

    def undo_what_lasts(self) -> None:
        """At the end of a phase with faults: what would go on after them."""
        if self._is_unlisted:
            # A topic that was deleted at an nsqlookupd only is not listed again before its nsqds connect anew.
            self._is_unlisted = False
            for daemon in self._cluster.nsqlookupds:
                daemon.restart(1.0)
        for nsqd in self._cluster.nsqds:
            topics = list(nsqd.daemon.broker.topics.values())
            for channel in [channel for topic in topics for channel in topic.channels.values()]:
                if channel.paused:  # the nsqd was killed before the end of the pause was stored
                    nsqd.process.run(nsqd.daemon.set_channel_paused, channel, False)

    def _delete_at_nsqlookupds(self, topic: str) -> None:
        self._is_unlisted = True
        for daemon in self._cluster.nsqlookupds:
            if daemon.is_running:
                with suppress(errors.HTTPError), gnsq_like.LookupdClient(daemon.http_address) as client:
                    client.delete_topic(topic)

    def _pause_channel(self, random: Random) -> None:
        daemon, topic = self._nsqd(random), random.choice(self._options["topics"])
        if daemon.is_running and topic in daemon.daemon.broker.topics:
            found = daemon.daemon.broker.topics[topic].channels.get(CHANNEL)
            if found is not None:
                process, pause = daemon.process, daemon.daemon.set_channel_paused
                with suppress(Killed):  # it may have stored the pause
                    process.run(pause, found, True)
                gevent.sleep(random.random() * 10)
                while not daemon.is_running:
                    gevent.sleep(0.5)
                again = daemon.daemon.broker.topics.get(topic)
                if again is not None and CHANNEL in again.channels:
                    with suppress(Killed):  # undo_what_lasts
                        daemon.process.run(daemon.daemon.set_channel_paused, again.channels[CHANNEL], False)

    # -- nsqlookupds -----------------------------------------------------------------------------------

    def _nsqlookupd(self, random: Random) -> None:
        """One is gone for a while, or has forgotten everything, or answers slowly."""
        if not self._cluster.nsqlookupds:
            return
        daemon = random.choice(self._cluster.nsqlookupds)
        if not daemon.is_running:
            return
        if random.random() < 0.3:
            daemon.process.stand_still(random.random() * 10)
            return
        daemon.stop()
        gevent.sleep(random.random() * 20)
        self._start(daemon)

    def _lie(self, random: Random) -> None:
        """An nsqlookupd lists an nsqd that does not exist, or that is something else."""
        running = [each for each in self._cluster.nsqlookupds if each.is_running]
        if not running:
            return
        http_port = int(self._nsqd(random).http_address.rpartition(":")[2])
        host, port = random.choice([(HOST, 1), ("nowhere.invalid", 4150), (HOST, http_port)])
        nsqd = {"broadcast_address": host, "hostname": host, "tcp_port": port, "http_port": 1, "version": "1.3.0"}
        body = json.dumps(nsqd).encode()
        register = b"REGISTER %s %s\n" % (random.choice(self._options["topics"]).encode(), CHANNEL.encode())
        address = random.choice(running).tcp_address.rpartition(":")
        with suppress(OSError), socket.create_connection((address[0], int(address[2]))) as registered:
            registered.sendall(b"  V1IDENTIFY\n" + len(body).to_bytes(4, "big") + body + register)
            gevent.sleep(random.random() * 20)

    # -- programs --------------------------------------------------------------------------------------

    def _steer(self, random: Random) -> None:
        random.choice(self._readers).steer(random)

    def _stop_reader(self, random: Random) -> None:
        random.choice(self._readers).stop_for_a_while(random)

    def _change_producer(self, random: Random) -> None:
        random.choice(self._producers).change(random)


def _spans(content: bytes) -> list[tuple[int, int]]:
    """Where the records of an undamaged file begin and end."""
    spans: list[tuple[int, int]] = []
    at = 0
    while at + HEADER_BYTES <= len(content):
        end = at + SIZE_BYTES + int.from_bytes(content[at : at + SIZE_BYTES])
        if end > len(content) or end < at + HEADER_BYTES:
            break
        spans.append((at, end))
        at = end
    return spans


def _is_sure(content: bytes, begin: int) -> bool:
    """Whether a record's id was made within a minute of its timestamp."""
    _, timestamp_ns, _, message_id = HEADER.unpack_from(content, begin)
    with suppress(ValueError):  # an end that a crash has zeroed
        return abs(made_at_ns(message_id) - timestamp_ns) <= 60e9
    return False


def _unread_bodies(files: dict[str, bytes]) -> set[bytes]:
    """The bodies that an nsqd finds in the files of its disk queues: what was read before is gone, also if it was
    queued again by a record that has not survived."""
    found: set[bytes] = set()
    for name, content in files.items():
        if (match := DATA_FILE.fullmatch(name)) and not match["bad"]:
            meta = _READ_POSITION.match(files.get(f"{match['queue']}.diskqueue.meta.dat", b""))
            file, position = (0, 0) if meta is None else map(int, meta.groups())
            if int(match["number"]) >= file:
                found |= set(_BODY.findall(content[position if int(match["number"]) == file else 0 :]))
    return found


def _bodies_in_memory(nsqd: Any, topics: list[str]) -> set[bytes]:
    """The bodies that an nsqd has in memory: waiting, in flight or deferred."""
    found: set[bytes] = set()
    for topic in nsqd.broker.topics.values():
        if topic.name not in topics:
            continue
        queues = [topic.queue]
        for channel in topic.channels.values():
            found |= {message.body for message in (*channel.in_flight.values(), *channel.deferred.values())}
            queues.append(channel.queue)
        for queue in queues:
            held = [queue] if isinstance(queue, MemoryQueue) else [queue._memory, queue._unsettled]
            found |= {message.body for each in held for message in each}
    return found
