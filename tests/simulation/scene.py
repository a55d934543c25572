"""A scene: one Reader on some nsqds, steered step by step, for tests of how RDY, backoff and turns behave over time.

::

    @scenario
    def test_survivors_are_raised_at_once(cluster: Cluster) -> None:
        scene = Scene(cluster, 3, 90)
        scene.nsqds[0].lose()
        scene.run(SOON)
        assert scene.rdys == [0, 45, 45]

At each moment it must hold, as the nsqds see it:

- The window: the sum of max(RDY, in flight) over all connections, with the handlers of lost ones, which still run, is
  within max_in_flight. After max_in_flight was lowered, the sum never grows until it fits again, and nothing is sent
  while more is in flight. If segments take different times, an answer may arrive after the RDY that another nsqd got
  for its place: then a message does not count from when its handler has ended.
- While backoff blocks, nothing is sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gevent

from gnsq_like import Message, Reader, Requeue
from gnsq_like.policy.places import Places
from tests.simulation import simulated
from tests.simulation.cluster import Cluster, Daemon

#: Virtual seconds: several round trips and settling times.
SOON = 0.05
#: Seconds within which a Reader adapts to another round trip.
_ADAPTS = 3.0
#: Seconds after which a command has certainly arrived, beside the latency.
_ARRIVED = 0.001
#: Bytes of a body, so that as many messages fit into nsqd's output buffer as usual.
_BODY_BYTES = 100
#: A connection is tried again after this at most: nsqds that join are found soon.
_REDIAL = 0.1
CHANNEL = "c"

#: Decorates a test that makes a Scene.
scenario = simulated(nsqds=0, mem_queue_size=1_000_000)


class Nsqd:
    """An nsqd of the scene, as it sees the Reader."""

    def __init__(self, scene: Scene, daemon: Daemon) -> None:
        self._scene = scene
        self.daemon = daemon
        self.address = daemon.tcp_address
        #: Messages whose handlers have finished them.
        self.finished = 0
        #: Messages whose handlers have ended, those of lost connections not included.
        self.answered = 0
        #: Handlers that run, those of lost connections not included.
        self.running = 0
        #: Raised when its connection is lost.
        self.epoch = 0
        #: When it got which RDY, in the order of their times.
        self.rdy_log: list[tuple[float, int]] = []
        #: RDY, messages in flight, and max(RDY, in flight), of all consumers; and messages ever sent.
        self.rdy = self.in_flight = self.used = self.sent = 0
        #: Of its process, as it was looked at.
        self.turn = -1

    def __repr__(self) -> str:
        return f"<nsqd {self.daemon.tcp_address} rdy={self.rdy} in_flight={self.in_flight}>"

    def look(self) -> bool:
        """Look at it again; whether something has changed."""
        self.turn = self.daemon.process.last_turn
        rdy = in_flight = used = 0
        if self.daemon.is_running:
            for client in self.daemon.daemon.clients:
                consumer = client.consumer
                if consumer is not None:
                    rdy += consumer.ready_count
                    in_flight += consumer.in_flight_count
                    used += max(consumer.ready_count, consumer.in_flight_count)
        sent = self._sent()
        changed = (rdy, in_flight, used, sent) != (self.rdy, self.in_flight, self.used, self.sent)
        if rdy != self.rdy:
            self.rdy_log.append((self._scene.now, rdy))
        self.rdy, self.in_flight, self.used, self.sent = rdy, in_flight, used, sent
        return changed

    def held(self, connections: Mapping[str, Any]) -> int:
        """What it may have delivered unanswered; answers, and a lower RDY before them, count once they are sent.

        :param connections: those of the Reader's statistics
        """
        on_its_way = max(0, self.answered - (self.sent - self.in_flight))
        connection = connections.get(self.address, {"rdy": 0})
        unread = self.rdy - on_its_way if self.in_flight < self.rdy else 0
        return max(min(self.rdy, connection["rdy"]), self.in_flight - on_its_way, unread)

    def _sent(self) -> int:
        # What has left the queues; requeued messages leave them again.
        return sum(
            channel.message_count
            + channel.requeue_count
            + channel.timeout_count
            - channel.depth
            - len(channel.deferred)
            for channel in self._channels()
        )

    def _channels(self) -> list[Any]:
        topics = self.daemon.daemon.broker.topics.values()
        return [topic.channels[CHANNEL] for topic in topics if CHANNEL in topic.channels]

    @property
    def waiting(self) -> int:
        """Messages that wait or are deferred."""
        return sum(channel.depth + len(channel.deferred) for channel in self._channels())

    @property
    def timed_out(self) -> int:
        return sum(channel.timeout_count for channel in self._channels())

    def publish(self, count: int = 1, topic: str | None = None, delay: float = 0.0) -> None:
        """Put messages into its queue, deferred by so many seconds; each says when it is due."""
        body = f"{self._scene.now + delay!r}|".encode().ljust(_BODY_BYTES, b"x")
        name = self._scene.topics[0] if topic is None else topic

        def publish() -> None:
            found = self.daemon.daemon.broker.topic(name)
            found.publish([body] * count, delay, time.monotonic(), time.time_ns())

        self.daemon.process.run(publish)

    def keep_busy(self, count: int = 200, topic: str | None = None) -> None:
        """Let it always have messages."""

        def refill() -> None:
            while True:
                if self.waiting < count:
                    self.publish(2 * count, topic)
                gevent.sleep(0.1)

        self._scene.cluster.closing.append(gevent.spawn(refill).kill)

    def lose(self) -> None:
        """Its connections are lost, and it cannot be reached any more."""
        network = self._scene.cluster.world.network
        network.refused[int(self.address.rpartition(":")[2])] = None
        for connection in network.open_connections([self.daemon.process]):
            connection.cut()
        self._scene.lost(self)


class Scene:
    """A Reader on some nsqds.

    :param spare: how many more may join
    :param seconds: how long a handler takes
    :param topics: those that it reads; each nsqd has all of them, unless nsqlookupds list them
    :param listed: with nsqlookupds: the topics of each nsqd
    :param options: of the Reader
    """

    def __init__(
        self,
        cluster: Cluster,
        nsqds: int,
        max_in_flight: int,
        *,
        spare: int = 0,
        seconds: float = 0.01,
        backoff: bool = False,
        adaptive: bool = False,
        topics: Iterable[str] = ("t",),
        listed: Iterable[str] = (),
        **options: Any,
    ) -> None:
        self.cluster = cluster
        self.topics = list(topics)
        self.seconds = seconds
        #: What the next handlers do; they finish when it is empty.
        self.verdicts: list[str] = []
        #: Seconds until a requeued message comes again.
        self.requeue_delay = 1.0
        #: Of a message: how long its handler takes, and what it does then: "finish", "requeue", or "quiet", which
        #: requeues without backoff.
        self.handle: Callable[[Message], tuple[float, str]] = self.usual
        #: When each handler began, the nsqd, and the message.
        self.log: list[tuple[float, Nsqd, Message]] = []
        self.running = self.most_running = 0
        #: Handlers of lost connections.
        self.stray = 0
        self.most_used = 0
        self.level = 0
        self._blocked_at = self._blocked_until = -1.0
        #: Messages sent so far, at the last look while backoff blocks, and while more is in flight than max_in_flight.
        self._sent_in_block: int | None = None
        self._sent_in_excess: int | None = None
        daemons = [cluster.add_nsqd() for _ in range(nsqds + spare)]
        self.spare = daemons[nsqds:]
        for daemon in self.spare:
            daemon.stop()
        self.nsqds = [Nsqd(self, daemon) for daemon in daemons[:nsqds]]
        for nsqd, names in zip(self.nsqds, listed, strict=False):
            for name in names:
                nsqd.daemon.process.run(nsqd.daemon.daemon.broker.topic, name)
        self._by_address = {nsqd.address: nsqd for nsqd in self.nsqds}
        self._limit = self._allowed = max_in_flight
        self._lowered_at = -1.0
        #: When the network changed last, and place-seconds above max_in_flight since.
        self._changed_at = -_ADAPTS
        self.excess = 0.0
        self._looked_at, self._was_above = 0.0, 0
        cluster.world.checks.append(self._look)
        self.reader: Reader = cluster.reader(
            self.topics if len(self.topics) > 1 else self.topics[0],
            CHANNEL,
            self._handle,
            **{
                **({} if cluster.nsqlookupds else {"nsqd_tcp_addresses": [each.tcp_address for each in daemons]}),
                "max_in_flight": max_in_flight,
                "max_attempts": 0,
                "max_redial_delay": _REDIAL,
                "max_backoff_duration": 120.0 if backoff else 0.0,
                "backoff_strategy": "exponential",
                "adaptive_rdy": adaptive,
                "on_backoff": self._backoff_changed,
                **options,
            },
        )
        connections = sum(map(len, listed)) or nsqds * len(self.topics)
        cluster.wait(lambda: len(self.reader.stats()["connections"]) == connections)
        self.run(SOON)

    # -- steering --------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.cluster.now

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        gevent.sleep(seconds)

    def join(self, messages: int = 0) -> Nsqd:
        """One more nsqd starts, with this backlog; returns when the Reader is connected."""
        daemon = self.spare.pop(0)
        daemon.start()
        nsqd = Nsqd(self, daemon)
        self._by_address[nsqd.address] = nsqd
        self.nsqds.append(nsqd)
        if messages:
            nsqd.publish(messages)
        self.cluster.wait(lambda: any(client.consumer is not None for client in daemon.daemon.clients))
        return nsqd

    def lost(self, nsqd: Nsqd) -> None:
        """The connection of this nsqd is lost; its handlers still run."""
        nsqd.epoch += 1
        self.stray += nsqd.running
        nsqd.running = 0

    def set_max_in_flight(self, value: int) -> None:
        if value < self._limit:
            self._lowered_at = self.now
        self._limit = value
        self._allowed = max(self._allowed, value)
        self.reader.max_in_flight = value

    def change_network(self, latency: float) -> None:
        """From now on, the network is so slow or fast; for three seconds, up to twice max_in_flight may be used."""
        self.cluster.world.network.latency = latency
        self._changed_at, self.excess = self.now, 0.0

    @property
    def rdys(self) -> list[int]:
        """RDY as the nsqds know it."""
        return [nsqd.rdy for nsqd in self.nsqds]

    @property
    def in_flight(self) -> int:
        """As the nsqds count it."""
        return sum(nsqd.in_flight for nsqd in self.nsqds)

    @property
    def rdys_sent(self) -> int:
        """Changes of RDY that have arrived."""
        return sum(len(nsqd.rdy_log) for nsqd in self.nsqds)

    @property
    def handled(self) -> int:
        return len(self.log)

    @property
    def finished(self) -> int:
        return sum(nsqd.finished for nsqd in self.nsqds)

    @property
    def times(self) -> list[float]:
        """When handlers began."""
        return [at for at, _, _ in self.log]

    @property
    def delays(self) -> list[float]:
        """For each message handled, the seconds since it was published, in order of size."""
        return sorted(at - float(message.body.partition(b"|")[0]) for at, _, message in self.log)

    # -- backoff ---------------------------------------------------------------------------------------

    @property
    def mode(self) -> str:
        """Of backoff: "flowing", "blocked" or "probing"."""
        if not self.level:
            return "flowing"
        return "blocked" if self.now < self._blocked_until else "probing"

    def until(self, mode: str, seconds: float = 10.0) -> None:
        """Wait for this mode of backoff, and until the nsqds have heard of it."""
        if mode == "probing" and self.mode != "probing":
            self.until("blocked", seconds)
            self.run(self._blocked_until - self.now)
        else:
            self.cluster.wait(lambda: self.mode == mode, seconds)
            self.run(self._travel)

    def _backoff_changed(self, level: int, seconds: float, _topic: str = "") -> None:
        self.level = level
        self._blocked_at, self._blocked_until = self.now, self.now + seconds
        self._sent_in_block = None

    # -- handling --------------------------------------------------------------------------------------

    def usual(self, _message: Message) -> tuple[float, str]:
        return self.seconds, self.verdicts.pop(0) if self.verdicts else "finish"

    def _handle(self, message: Message) -> None:
        nsqd = self._by_address[message.nsqd_address]
        epoch = nsqd.epoch
        nsqd.running += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.log.append((self.now, nsqd, message))
        seconds, verdict = self.handle(message)
        try:
            if seconds:
                gevent.sleep(seconds)
        finally:
            self.running -= 1
            if epoch == nsqd.epoch:
                nsqd.running -= 1
                nsqd.answered += 1
            else:
                self.stray -= 1
        if verdict != "finish":
            raise Requeue(self.requeue_delay, backoff=verdict == "requeue")
        nsqd.finished += 1

    # -- what must hold --------------------------------------------------------------------------------

    def _look(self) -> None:
        ran = [nsqd for nsqd in self.nsqds if nsqd.turn != nsqd.daemon.process.last_turn]
        if sum([nsqd.look() for nsqd in ran]):
            self._check_window()
            self._check_block()

    def _check_window(self) -> None:
        varies = self.cluster.world.network.jitter > 0 or self._changed_at >= 0
        used = self.stray + sum([nsqd.used for nsqd in self.nsqds])
        if varies and used >= self._limit:
            connections = self.reader.stats()["connections"]
            used = self.stray + sum([nsqd.held(connections) for nsqd in self.nsqds])
        self.most_used = max(self.most_used, used)
        self.excess += self._was_above * (self.now - self._looked_at)
        self._looked_at, self._was_above = self.now, max(0, used - self._limit)
        adapts = self.now < self._changed_at + _ADAPTS
        # Two places have been seen lent three times over, in a process whose turns take as long as a settling time.
        if used > (max(2 * self._allowed, self._allowed + 3) if adapts else self._allowed):
            raise AssertionError(f"at {self.now:.6f} s: {used} of {self._allowed} used; {self.nsqds}")
        if self._allowed > self._limit and self.now > self._lowered_at + self._travel:
            self._allowed = max(self._limit, used)
            sent, in_flight = sum([nsqd.sent for nsqd in self.nsqds]), self.stray + self.in_flight
            if self._sent_in_excess is not None and sent > self._sent_in_excess and in_flight > self._limit:
                raise AssertionError(f"at {self.now:.6f} s: a message while {in_flight} are in flight; {self.nsqds}")
            self._sent_in_excess = sent
        else:
            self._sent_in_excess = None

    def _check_block(self) -> None:
        if not self._blocked_at + self._travel < self.now < self._blocked_until:
            return
        sent = sum(nsqd.sent for nsqd in self.nsqds)
        if self._sent_in_block is not None and sent > self._sent_in_block:
            raise AssertionError(f"at {self.now:.6f} s: a message while backoff blocks")
        self._sent_in_block = sent

    @property
    def _travel(self) -> float:
        return self.cluster.world.network.latency + _ARRIVED


def counted_plans() -> Callable[[], int]:
    """Count the plans from now on."""
    count, plan = 0, Places.plan

    def counting(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        return plan(*arguments)

    Places.plan = counting  # type: ignore[method-assign,assignment]  # this process ends with the test
    return lambda: count
