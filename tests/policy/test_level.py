"""The RDY on one connection: the share, a burst, a credit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.charge import FOREVER, SURE
from gnsq_like.policy.level import PATIENCE, ROUNDS, Burst, Level, Renewal
from gnsq_like.policy.line import Line

TICKER = 0.025
ROUND_TRIP = 0.0005


def line_of(level: Level, share: int) -> Line[str]:
    line = Line("one", level, 0.0, round_trip=ROUND_TRIP)
    line.grant(share, 0.0)
    command(line, 0.0)
    return line


def command(line: Line[str], now: float) -> int | None:
    before, rdy = line.rdy, line.level.command(line, now)
    if rdy is not None:
        line.sent(line.most if line.level.counts_down else rdy, now, 0.005)
        if line.rdy > before:
            line.level.raised(line, now)
    return rdy


def receive(line: Line[str], n: int, now: float, late: float = 0.0) -> None:
    line.received(n, now, late)
    line.level.received(line, n, now, late)


def rounds(line: Line[str], gaps: list[float], now: float = 0.0) -> float:
    """Messages that are answered at once, so long after each other; returns when the last one came."""
    for gap in gaps:
        now += gap
        receive(line, 1, now)
        line.answered(1, now)
        command(line, now)
    return now


def test_rdy_is_the_share():
    line = line_of(Level(), 7)
    assert line.rdy == 7
    line.grant(3, 1.0)
    assert command(line, 1.0) == 3
    assert command(line, 1.0) is None


def test_while_messages_are_sparse_rdy_is_one_more_than_those_in_flight():
    line = line_of(Burst(TICKER), 200)
    assert line.rdy == 1
    receive(line, 1, 0.3)
    assert command(line, 0.3) == 2
    line.answered(1, 0.4)
    assert command(line, 0.4) == 1


def test_rounds_that_take_alike_start_a_trial_and_quick_ones_double_the_burst():
    line = line_of(Burst(TICKER), 200)
    now = rounds(line, [ROUND_TRIP] * SURE)
    assert (line.rdy, line.level.burst) == (2, 2)
    for burst in (2, 4, 8, 16, 32, 64, 128):
        now += ROUND_TRIP
        receive(line, burst, now)
        line.answered(burst, now)
        command(line, now)
    assert line.rdy == 200


def slower(line: Line[str], now: float, counts: list[int]) -> float:
    """Rounds of so many messages in three times the round trip that was found; 0 for a full one."""
    for count in counts:
        now += 0.03
        receive(line, count or line.rdy, now)
        line.answered(count or line.in_flight, now)
        command(line, now)
    return now


def slow_line() -> tuple[Line[str], float]:
    """One whose round trip was found longer, 10 ms, and that doubts it."""
    line = line_of(Burst(TICKER), 200)
    now = rounds(line, [0.01] * SURE) + 0.01
    receive(line, 2, now)
    line.answered(2, now)
    command(line, now)
    assert line.rdy == 4
    assert line.round_trip.seconds == pytest.approx(0.01)
    return line, now


def test_full_rounds_of_three_doubtful_round_trips_let_the_burst_grow():
    """As when the round trip was found too short, because this process read late."""
    line, now = slow_line()
    slower(line, now, [0] * SURE)
    assert line.rdy == 200


def test_a_trial_of_more_that_fails_keeps_the_burst():
    line, now = slow_line()
    slower(line, now, [4, 4])
    assert line.rdy == 8
    assert command(line, line.level.cut_at) == 4


def test_a_trial_that_fails_makes_the_next_later():
    line = line_of(Burst(TICKER), 200)
    now = rounds(line, [0.01] * SURE)
    assert line.rdy == 2
    now = line.level.cut_at
    assert command(line, now) == 1
    now = rounds(line, [0.01] * (2 * SURE - 1), now)
    assert line.rdy == 1
    rounds(line, [0.01], now)
    assert line.rdy == 2


def test_rounds_that_differ_start_a_trial_after_many():
    line = line_of(Burst(TICKER), 200)
    now = rounds(line, [0.001, 0.01] * (ROUNDS // 2 - 1) + [0.001])
    assert line.rdy == 1
    rounds(line, [0.01], now)
    assert line.rdy == 2
    assert line.round_trip.seconds == ROUND_TRIP


def test_a_burst_that_does_not_come_is_cut_to_what_came():
    line = line_of(Burst(TICKER), 200)
    now = rounds(line, [ROUND_TRIP] * SURE)
    for burst in (2, 4, 8):
        now += ROUND_TRIP
        receive(line, burst, now)
        line.answered(burst, now)
        command(line, now)
    assert line.rdy == 16
    receive(line, 3, now + ROUND_TRIP)
    line.answered(3, now + ROUND_TRIP)
    command(line, now + ROUND_TRIP)
    assert line.level.cut_at == pytest.approx(now + max(PATIENCE, 4 * ROUND_TRIP))
    assert command(line, line.level.cut_at) == 3


def test_a_burst_that_the_share_cannot_double_is_kept():
    line = line_of(Burst(TICKER), 2)
    now = rounds(line, [ROUND_TRIP] * SURE)
    line.grant(3, now)
    line.round_trip.is_at_least(0.002, now)  # in doubt until messages agree with it
    for _ in range(SURE // 2):
        now += 0.005
        receive(line, 2, now)
        line.answered(2, now)
        command(line, now)
    command(line, line.level.cut_at)
    assert line.level.burst == 2


def test_messages_that_come_after_their_turns_show_the_round_trip():
    """It has become longer than a turn, so each message comes when RDY is 0 again."""
    line = line_of(Burst(TICKER), 0)
    for turn in range(SURE + 1):
        now = float(turn)
        line.grant(1, now)
        assert command(line, now) == 1
        line.grant(0, now + 0.03)
        line.level.fall_silent()
        assert command(line, now + 0.03) == 0
        receive(line, 1, now + 0.05)
        line.answered(1, now + 0.05)
    assert line.round_trip.seconds == pytest.approx(0.05)


def test_where_the_ticker_fires_within_a_few_round_trips_rdy_is_the_share():
    line = line_of(Burst(ROUND_TRIP), 200)
    assert line.rdy == 200


def test_a_rate_limit_takes_the_place_of_the_burst():
    line = line_of(Burst(TICKER), 200)
    line.allowed = 50
    assert command(line, 1.0) == 50


def test_rdy_that_is_counted_down_is_renewed_when_little_is_left():
    line = line_of(Renewal(), 10)
    receive(line, 7, 1.0)
    line.answered(7, 1.0)
    assert command(line, 1.0) is None
    receive(line, 1, 2.0)
    line.answered(1, 2.0)
    assert command(line, 2.0) == 8, "with the 2 that are left, all of the share"
    line.grant(3, 3.0)
    assert command(line, 3.0) == 3


@given(st.lists(st.tuples(st.floats(0, 0.1), st.integers(0, 9), st.integers(0, 9)), max_size=60), st.integers(0, 30))
def test_rdy_is_never_above_the_share(steps: list[tuple[float, int, int]], share: int):
    line, now = line_of(Burst(TICKER), share), 0.0
    for pause, arrive, answer in steps:
        now += pause
        if n := min(arrive, max(0, line.rdy - line.held)):
            receive(line, n, now)
        if n := min(answer, line.in_flight):
            line.answered(n, now)
        command(line, now)
        assert 0 <= line.rdy <= share
        assert line.level.burst == 1 or line.level.cut_at < FOREVER or line.held >= line.rdy
