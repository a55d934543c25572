"""Simulated runs with everything that happens to a Reader: the promises hold at every plan and every message
sent (`simulation.Cluster` looks), and afterwards no message is left behind."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.backoff import Backoff, exponential, full_jitter
from gnsq_like.policy.rdy import Mode, Settings
from tests.support.scale import LONG, examples
from tests.support.simulation import Cluster, Connection, Reader
from tests.support.virtual_nsqd import Clock, Message, Nsqd

pytestmark = LONG

#: Short times, so that much happens in few seconds.
HASTY = Settings(low_rdy_idle_timeout=1.0, low_rdy_timeout=2.0)

OPERATIONS = st.one_of(
    st.tuples(st.just("join"), st.integers(0, 30)),
    st.tuples(st.just("lose"), st.integers(0, 5)),
    st.tuples(st.just("leave"), st.integers(0, 5)),
    st.tuples(st.just("max_in_flight"), st.sampled_from([0, 1, 2, 3, 5, 10, 100])),
    st.tuples(st.just("publish"), st.integers(1, 40)),
    st.tuples(st.just("fail"), st.sampled_from([0, 3, 10])),
    st.tuples(st.just("slow"), st.sampled_from([0.0, 0.01, 0.3, 3.0])),
)
GAPS = st.sampled_from([0.0, 0.001, 0.004, 0.05, 0.3, 1.1, 2.5])


@dataclass
class World:
    cluster: Cluster
    rng: random.Random
    failing: int = 0
    slowness: float = 0.01
    msg_timeout: float = 60.0

    def handle(self, _message: Message) -> tuple[float, str]:
        seconds = self.slowness * self.rng.choice([0, 1, 1, 2])
        if self.rng.randrange(10) < self.failing:
            return seconds, self.rng.choice(["requeue", "requeue", "quiet"])
        return seconds, "finish"

    def delay(self) -> float:
        return 0.002 * self.rng.random()

    def join(self, messages: int) -> None:
        nsqd = Nsqd(self.cluster.clock, f"n{len(self.cluster.nsqds)}", msg_timeout=self.msg_timeout)
        self.cluster.add(nsqd, delay=self.delay, round_trip=0.004)
        nsqd.publish(messages)

    def pick(self, index: int) -> Connection | None:
        alive = [each for each in self.cluster.reader.connections if not each.charge.closing]
        return alive[index % len(alive)] if alive else None

    def do(self, name: str, argument: float) -> None:
        reader = self.cluster.reader
        if name == "join":
            if len(reader.connections) < 8:
                self.join(int(argument))
        elif name == "max_in_flight":
            reader.set_max_in_flight(int(argument))
        elif name == "fail":
            self.failing = int(argument)
        elif name == "slow":
            self.slowness = argument
        elif (connection := self.pick(int(argument))) is None:
            pass
        elif name == "lose":
            reader.lose(connection)
        elif name == "leave":
            reader.leave(connection)
        else:
            connection.nsqd.publish(int(argument))


def world(seed: int, max_in_flight: int, adaptive: bool, backoff: bool) -> World:
    rng = random.Random(seed)
    strategy = exponential(0.1) if seed % 2 else full_jitter(rng.random, 0.2, 1.0)
    reader = Reader(
        Clock(),
        rng,
        max_in_flight=max_in_flight,
        settings=HASTY,
        adaptive=adaptive,
        backoff=Backoff(strategy, max_duration=1.0 if backoff else 0.0, multiplier=0.1),
        requeue_delay=0.1,
    )
    made = World(Cluster(reader), rng)
    reader.handle = made.handle
    return made


@examples(30)
@given(
    seed=st.integers(0, 1 << 32),
    connections=st.integers(0, 6),
    max_in_flight=st.sampled_from([1, 2, 3, 4, 7, 30]),
    adaptive=st.booleans(),
    backoff=st.booleans(),
    events=st.lists(st.tuples(GAPS, OPERATIONS), max_size=12),
)
def test_whatever_happens(
    seed: int,
    connections: int,
    max_in_flight: int,
    adaptive: bool,
    backoff: bool,
    events: list[tuple[float, tuple[str, float]]],
) -> None:
    made = world(seed, max_in_flight, adaptive, backoff)
    cluster, clock = made.cluster, made.cluster.clock
    for _ in range(connections):
        made.join(seed % 20)
    clock.run(0.02)
    for gap, (name, argument) in events:
        made.do(name, argument)
        clock.run(gap)
    made.failing, made.slowness = 0, 0.01
    if not cluster.reader.max_in_flight:
        cluster.reader.set_max_in_flight(1)
    for _ in range(100):
        clock.run(3.0)
        connected = [each.nsqd for each in cluster.reader.connections if each.alive and not each.charge.closing]
        left = sum(len(nsqd.queue) + len(nsqd.in_flight) for nsqd in connected)
        if not left:
            break
    assert left == 0, "stalled"


@examples(5)
@given(
    seed=st.integers(0, 1 << 32),
    connections=st.integers(1, 4),
    share=st.sampled_from([2, 3, 10]),
    adaptive=st.booleans(),
    failing=st.sampled_from([1, 3, 10]),
    slowness=st.sampled_from([0.0, 0.01, 0.3]),
)
def test_hung_handlers_and_failures_never_stop_a_reader_that_has_room(
    seed: int, connections: int, share: int, adaptive: bool, failing: int, slowness: float
) -> None:
    max_in_flight = share * connections
    made = world(seed, max_in_flight, adaptive, backoff=True)
    made.msg_timeout, made.slowness = 1.0, slowness
    cluster, clock, reader = made.cluster, made.cluster.clock, made.cluster.reader
    stuck = max_in_flight - 1

    def handle(message: Message) -> tuple[float, str]:
        nonlocal stuck
        if stuck and made.rng.random() < 0.3:
            stuck -= 1
            return 1e6, "finish"
        return made.handle(message)

    reader.handle = handle
    for _ in range(connections):
        made.join(20)
    made.failing = failing
    clock.run(5.0)
    made.failing, made.slowness, stuck = 0, 0.01, 0
    for nsqd in cluster.nsqds:
        nsqd.publish(20)
    clock.run(60.0)
    assert sum(len(nsqd.queue) for nsqd in cluster.nsqds) == 0, "stalled"
    assert reader.backoff.mode is Mode.FLOWING
    assert reader.most_running <= max_in_flight


@examples(3)
@given(
    seed=st.integers(0, 1 << 32),
    connections=st.integers(2, 8),
    max_in_flight=st.integers(1, 7),
    rates=st.lists(st.sampled_from([0.0, 0.0, 0.3, 5.0, 100.0]), min_size=8, max_size=8),
    slowness=st.sampled_from([0.0, 0.01, 1.0, 4.0]),
)
def test_every_connection_gets_a_turn_in_bounded_time(
    seed: int, connections: int, max_in_flight: int, rates: list[float], slowness: float
) -> None:
    made = world(seed, max_in_flight, adaptive=True, backoff=False)
    made.slowness = slowness
    cluster, clock = made.cluster, made.cluster.clock
    for _ in range(connections):
        made.join(0)
    #: a turn, and the handlers that go on after it
    longest = HASTY.low_rdy_timeout + 2 * slowness + 0.1
    bound = longest * (connections + 1) / min(max_in_flight, connections) + longest
    for nsqd, rate in zip(cluster.nsqds, rates, strict=False):
        flow(clock, nsqd, rate, made.rng)
    for _ in range(60):
        clock.run(0.5)
        for each in cluster.reader.connections:
            charge = each.charge
            assert charge.rdy or charge.in_flight or clock.now - charge.waiting_since <= bound


def flow(clock: Clock, nsqd: Nsqd, rate: float, rng: random.Random) -> None:
    """Publish `rate` messages a second at random times, but let no backlog beyond 50 grow."""

    def publish() -> None:
        if len(nsqd.queue) < 50:
            nsqd.publish()
        clock.after(rng.expovariate(rate), publish)

    if rate:
        clock.after(rng.expovariate(rate), publish)
