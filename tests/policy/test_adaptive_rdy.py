"""RDY that follows the traffic: what it promises event by event, and the latency and throughput it gives with
nsqd's output buffer simulated."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.adaptive_rdy import AdaptiveRdy
from tests.support.scale import LONG, examples, scaled, share_of
from tests.support.simulation import Connection, Reader
from tests.support.virtual_nsqd import Clock, Message, Nsqd

pytestmark = LONG

SHARE = 200


class Bench:
    """One nsqd, one Reader with a share of 200, and a publisher."""

    def __init__(
        self,
        *,
        seconds: float = 0.0,
        jitter: float = 0.0,
        adaptive: bool = True,
        quiet_timer: bool = True,
        round_trip: float = 0.0002,
        lag: float = 0.0,
        share: int = SHARE,
        seed: int = 1,
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.clock = Clock()
        self.nsqd = Nsqd(self.clock, "n", ticker_phase=0.025 * rng.random())
        late: Callable[[], float] | None = (lambda: lag * (0.5 + rng.random())) if lag else None

        def handle(_message: Message) -> tuple[float, str]:
            return seconds * (1 + jitter * (rng.random() - 0.5)), "finish"

        self.reader = Reader(
            self.clock,
            rng,
            max_in_flight=share,
            adaptive=adaptive,
            handle=handle,
            quiet_timer=quiet_timer,
            lag=late,
        )
        self.connection: Connection = self.reader.connect(
            self.nsqd, delay=lambda: round_trip / 2, round_trip=round_trip
        )
        self.clock.run(0.1)
        self.reader.rdys_sent = 0

    def trickle(self, rate: float, seconds: float, at_once: int = 1) -> Bench:
        end = self.clock.now + seconds

        def publish() -> None:
            self.nsqd.publish(at_once)
            wait = self.rng.expovariate(rate / at_once)
            if self.clock.now + wait < end:
                self.clock.after(wait, publish)

        publish()
        self.clock.run(seconds + 1.0)
        return self

    def latencies(self) -> list[float]:
        return sorted(message.received_at - message.published_at for _, _, message in self.reader.log)

    def quantile(self, part: float) -> float:
        ordered = self.latencies()
        return ordered[int(part * len(ordered))]

    @property
    def rdys_per_message(self) -> float:
        return self.reader.rdys_sent / len(self.reader.log)


# --- latency


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.05])
@pytest.mark.parametrize("rate", [20, 100, 1000, 3000])
@pytest.mark.parametrize("quiet_timer", [True, False])
def test_messages_that_trickle_come_at_once(rate: int, seconds: float, quiet_timer: bool) -> None:
    for seed in range(2):
        bench = Bench(seconds=seconds, quiet_timer=quiet_timer, seed=seed).trickle(rate, max(1.0, 500 / rate))
        assert bench.quantile(0.5) < 0.001
        assert bench.quantile(0.99) < (0.005 if quiet_timer and rate > 20 else 0.02)
        assert bench.latencies()[-1] < 0.0255
        assert bench.rdys_per_message < (2.2 if seconds else 0.8)


@pytest.mark.parametrize("rate", [10_000, 20_000, 25_000, 60_000])
def test_many_messages_a_second_hardly_wait_for_each_other(rate: int) -> None:
    """As long as they are handled as fast as they come."""
    bench = Bench().trickle(rate, 15_000 / rate)
    assert bench.quantile(0.5) < 0.0015
    assert bench.quantile(0.99) < 0.0035


def test_without_the_controller_they_lie_in_nsqds_buffer() -> None:
    bench = Bench(adaptive=False).trickle(100, 5.0)
    assert bench.quantile(0.5) > 0.01, "the simulated nsqd shows what is to be cured"


def test_small_heaps_come_within_two_milliseconds_for_most() -> None:
    bench = Bench(seconds=0.005).trickle(200, 10.0, at_once=10)
    assert bench.quantile(0.5) < 0.002
    assert bench.quantile(0.99) < 0.006


def test_after_a_flood_the_trickle_comes_at_once_again() -> None:
    bench = Bench(seconds=0.005)
    bench.nsqd.publish(20000)
    bench.clock.run(1.0)
    assert len(bench.reader.log) == 20000
    bench.reader.log.clear()
    bench.trickle(100, 5.0)
    assert bench.quantile(0.5) < 0.001
    assert bench.quantile(0.99) < 0.01


# --- throughput


def burst_at(rate: float, share: int, *, deflated: bool) -> int:
    """The burst after a while in which nsqd always has messages, and sends so many a second."""
    controller, now = AdaptiveRdy(round_trip=0.0002, deflated=deflated), 0.0
    for _ in range(300):
        rdy = controller.target(0, share, now)
        if rdy != controller.rdy:
            controller.sent(rdy, now)
        count = min(controller.burst, controller.rdy)
        now += count / rate
        controller.received(count, count, now)
    return controller.burst


def test_bursts_reach_the_share_in_a_flood_that_nsqd_sends_slowly() -> None:
    """With deflate a burst of 500 may take 20 ms. In lesser floods they stay at what comes in a millisecond or two."""
    assert burst_at(25000.0, 500, deflated=True) == 500
    assert burst_at(10000.0, 500, deflated=True) <= 32
    assert burst_at(60000.0, 500, deflated=False) == 500
    assert burst_at(25000.0, 500, deflated=False) <= 64


def flood(count: int, **how: float) -> tuple[float, int]:
    """Seconds until `count` waiting messages were handled, and the RDYs sent."""
    bench = Bench(**how)  # type: ignore[arg-type]
    start = bench.clock.now
    bench.nsqd.publish(count)
    while bench.nsqd.finished_count < count:
        bench.clock.run(0.01)
        assert bench.clock.now - start < 60
    return bench.reader.log[-1][0] - start, bench.reader.rdys_sent


@scaled
@pytest.mark.parametrize("round_trip", [0.0002, 0.002, 0.02])
@pytest.mark.parametrize(("seconds", "count"), [(0.0, share_of(40000)), (0.005, share_of(20000)), (0.05, 8000)])
def test_a_flood_runs_as_fast_as_without_the_controller(round_trip: float, seconds: float, count: int) -> None:
    how = {"seconds": seconds, "jitter": 1.0, "round_trip": round_trip}
    adaptive, rdys = flood(count, **how)
    fixed, _ = flood(count, adaptive=False, **how)
    # Ten round trips of a run-up are no loss of throughput.
    assert adaptive - 10 * round_trip < fixed / 0.95
    assert rdys < 0.05 * count, "hardly any RDY is sent"


@pytest.mark.parametrize("lag", [0.002, 0.01])
@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_a_flood_in_a_process_that_reads_late_reaches_the_share_too(lag: float, seconds: float) -> None:
    adaptive, _ = flood(40000 if seconds == 0 else 12000, seconds=seconds, jitter=0.5, lag=lag)
    fixed, _ = flood(40000 if seconds == 0 else 12000, seconds=seconds, jitter=0.5, lag=lag, adaptive=False)
    # Some forty passes until a trial has shown that it is us; then as fast as ever.
    assert adaptive - 40 * lag < fixed / 0.9


def test_a_flood_reaches_the_share_within_a_dozen_round_trips() -> None:
    for seconds in (0.0, 0.005, 0.05):
        bench = Bench(seconds=seconds)
        bench.nsqd.publish(100000)
        bench.clock.run(12 * 0.0002)
        assert bench.connection.level.rdy == SHARE
        bench.reader.rdys_sent = 0
        bench.clock.run(0.04)
        assert bench.reader.rdys_sent == 0


def test_a_batch_fills_up_though_nothing_is_answered() -> None:
    bench = Bench(seconds=1000.0, share=100).trickle(200, 2.0)
    assert bench.connection.charge.in_flight == 100
    assert bench.connection.level.rdy == 100


# --- event by event


def test_it_starts_with_one() -> None:
    assert AdaptiveRdy().target(0, 200, 0.0) == 1


def test_in_flight_and_one_while_messages_trickle() -> None:
    level, now = AdaptiveRdy(0.0002), 0.0
    level.sent(1, now)
    for in_flight in range(1, 8):
        now += 0.01
        level.received(1, in_flight, now)
        assert level.target(in_flight, 200, now) == in_flight + 1
        level.sent(in_flight + 1, now)
    for in_flight in range(7, -1, -1):
        assert level.target(in_flight, 200, now) == in_flight + 1
        level.sent(in_flight + 1, now)


def test_doubled_while_nsqd_fills_it_in_a_round_trip() -> None:
    level, now, in_flight = AdaptiveRdy(0.0002), 0.0, 0
    level.sent(1, now)
    seen = []
    while level.rdy < 200:
        now += 0.0002
        new, in_flight = level.rdy - in_flight, level.rdy
        level.received(new, in_flight, now)
        rdy = level.target(in_flight, 200, now)
        seen.append(rdy)
        level.sent(rdy, now)
    assert seen[:5] == [2, 5, 11, 23, 47] or len(seen) <= 8


def test_silence_cuts_the_burst() -> None:
    level = AdaptiveRdy(0.0002)
    level.sent(1, 0.0)
    for n in range(4):
        level.target(0, 200, n * 0.0002)
        level.received(level.burst, 0, (n + 1) * 0.0002)
    assert level.burst > 4
    level.target(0, 200, 0.0008)
    due = level.due
    assert due is not None
    level.quiet(due - 0.0001)
    assert level.burst > 4
    level.quiet(due)
    assert level.burst == 1
    assert level.target(0, 200, due) == 1
    assert level.due is None


def test_a_far_nsqd_gets_the_whole_share() -> None:
    assert AdaptiveRdy(round_trip=0.05).target(0, 200, 0.0) == 200
    assert AdaptiveRdy(round_trip=0.05, buffer_timeout=1.0).target(0, 200, 0.0) == 1
    assert AdaptiveRdy(buffer_timeout=0.0).target(0, 200, 0.0) == 200


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["message", "answer", "quiet", "share"]),
        st.integers(0, 300),
        st.sampled_from([0.0, 0.0001, 0.001, 0.01, 0.3]),
    ),
    max_size=60,
)


@examples(20)
@given(EVENTS, st.sampled_from([0.0, 0.0002, 0.003, 0.1]))
def test_never_above_the_share_and_never_without_room(events: list[tuple[str, int, float]], round_trip: float) -> None:
    level, now, in_flight, share = AdaptiveRdy(round_trip), 0.0, 0, 10
    for name, number, gap in events:
        now += gap
        if name == "message":
            number = min(number, max(0, level.rdy - in_flight))
            if number:
                in_flight += number
                level.received(number, in_flight, now)
        elif name == "answer":
            in_flight -= min(number, in_flight)
        elif name == "quiet":
            level.quiet(now)
        else:
            share = number
        rdy = level.target(in_flight, share, now)
        assert 0 <= rdy <= share
        assert rdy > in_flight or in_flight >= share, "else nsqd could send nothing"
        assert rdy <= max(in_flight + 2 * level.burst, 1) or rdy == share
        if rdy != level.rdy:
            level.sent(rdy, now)
        assert level.target(in_flight, share, now) == rdy, "asked twice"
        assert level.burst >= 1


def test_time_at_the_full_share_does_not_count_against_nsqd() -> None:
    level = AdaptiveRdy(0.0002)
    level.sent(4, 0.0)
    level.target(0, 4, 0.0)
    for n in range(1, 4):
        level.received(level.burst, 0, n * 0.0002)
        level.target(0, 4, n * 0.0002)
    assert level.burst == 4
    level.received(4, 4, 0.001)
    level.received(1, 4, 1.0)  # one was answered a moment ago, and nobody asked for the target
    assert level.burst == 4
