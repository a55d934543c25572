"""The controller of `adaptive_rdy` round by round: what a round's time does to the burst, and trials."""

from __future__ import annotations

import pytest

from gnsq_like.policy.adaptive_rdy import (
    FLOOD_PATIENCE,
    FLOOD_PATIENCE_MAXIMUM,
    LOOKS,
    PATIENCE_MINIMUM,
    PATIENCE_ROUND_TRIPS,
    TRIAL_EVERY,
    TRIAL_EVERY_MAXIMUM,
    AdaptiveRdy,
)

#: Binary fractions, so that sums of times are exact.
ROUND_TRIP = 1 / 512
PATIENCE = PATIENCE_ROUND_TRIPS * ROUND_TRIP

#: A round in a process that reads late: more than twice the patience whatever the burst.
LATE = 0.005


class Line:
    """A connection whose messages are answered as they arrive; nsqd always has some, and sends a burst in a round."""

    def __init__(self, round_trip: float = ROUND_TRIP, *, share: int = 200, burst: int = 1) -> None:
        self.level = AdaptiveRdy(round_trip)
        self.now = 0.0
        self.share = share
        while self.level.burst < burst:
            self.round(0.0)
        self.ask()

    @property
    def burst(self) -> int:
        return self.level.burst

    def ask(self, in_flight: int = 0, after: float = 0.0) -> int:
        self.now += after
        rdy = self.level.target(in_flight, self.share, self.now)
        if rdy != self.level.rdy:
            self.level.sent(rdy, self.now)
        return rdy

    def receive(self, count: int, after: float) -> None:
        """All answers before have gone, so these are all in flight."""
        self.now += after
        self.level.received(count, count, self.now)

    def round(self, seconds: float) -> int:
        """Returns the burst after it."""
        self.ask()
        self.receive(self.burst, seconds)
        return self.burst

    def look(self, times: int = LOOKS, turn: float = 0.0) -> None:
        """The timer for `due` is called so often, after turns that take so many seconds, and nothing has arrived."""
        self.ask()
        for _ in range(times):
            due = self.level.due
            assert due is not None
            self.now = max(due, self.now + turn)
            self.level.quiet(self.now)


# --- a round


def test_a_round_within_patience_doubles_the_burst_up_to_the_share() -> None:
    line = Line(share=10)
    assert [line.round(PATIENCE) for _ in range(5)] == [2, 4, 8, 10, 10]


def test_a_round_of_up_to_twice_that_leaves_it() -> None:
    line = Line(burst=8)
    assert [line.round(PATIENCE * times) for times in (1.125, 1.5, 2.0)] == [8, 8, 8]


@pytest.mark.parametrize(("arrived", "left"), [(0, 1), (1, 1), (12, 6), (15, 7)])
def test_one_unfinished_after_that_in_three_turns_cuts_it_to_what_came_in_time(arrived: int, left: int) -> None:
    line = Line(burst=16)
    if arrived:
        line.receive(arrived, PATIENCE / 2)
    line.look()
    assert line.burst == left
    assert line.ask(in_flight=arrived) == arrived + left


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_one_that_is_over_before_the_third_doubles_it_because_the_process_was_late(looks: int) -> None:
    line = Line(burst=16)
    line.look(looks, turn=0.75 * PATIENCE)
    line.receive(16, 2.25 * PATIENCE)
    assert line.burst == 32
    line.look(LOOKS - 1)
    assert line.burst == 32, "each round is looked for anew"


@pytest.mark.parametrize(("turn", "left"), [(0.0, 8), (0.25 * PATIENCE, 8), (0.5 * PATIENCE, 32)])
def test_it_halves_it_if_the_hub_was_prompt(turn: float, left: int) -> None:
    line = Line(burst=16)
    line.look(2, turn)
    line.receive(16, 1.25 * PATIENCE)
    assert line.burst == left


def test_looks_begin_after_patience_and_end_after_twice_that() -> None:
    line, due = Line(burst=16), []
    for _ in range(LOOKS):
        due.append(line.level.due)
        line.look(1)
    assert due == [PATIENCE, PATIENCE, 2 * PATIENCE]


def test_messages_that_were_late_raise_no_burst_that_was_cut() -> None:
    line = Line(burst=16)
    line.look()
    line.ask()
    line.receive(16, 2.5 * PATIENCE)
    assert line.burst == 1


@pytest.mark.parametrize(
    ("round_trip", "burst", "patience"),
    [
        (0.0, 1, PATIENCE_MINIMUM),
        (0.0, 16, PATIENCE_MINIMUM),
        (0.0, 64, 64 * FLOOD_PATIENCE),
        (0.0, 1024, FLOOD_PATIENCE_MAXIMUM),
        (0.002, 1, 0.002 * PATIENCE_ROUND_TRIPS),
        (0.002, 1024, FLOOD_PATIENCE_MAXIMUM),
    ],
)
def test_patience(round_trip: float, burst: int, patience: float) -> None:
    assert Line(round_trip, share=5000, burst=burst).round(0.99 * patience) == 2 * burst
    assert Line(round_trip, share=5000, burst=burst).round(1.01 * patience) == burst
    due = Line(round_trip, share=5000, burst=burst).level.due
    assert due is None if burst == 1 else due == pytest.approx(patience)


def test_a_burst_that_comes_in_parts_is_a_round() -> None:
    line = Line(burst=16)
    due = line.level.due
    for part in (4, 6, 6):
        assert line.level.due == due
        line.receive(part, PATIENCE / 4)
        line.ask()
    assert line.burst == 32


def test_time_in_handlers_before_a_round_is_no_part_of_it() -> None:
    line = Line(burst=8)
    line.receive(8, 1.5 * PATIENCE)
    line.ask(after=PATIENCE)
    assert line.level.due == line.now + PATIENCE


def test_the_parts_of_a_burst_may_take_its_patience_together() -> None:
    line = Line(burst=16)
    for _ in range(2):
        line.receive(8, 0.75 * PATIENCE)
        line.ask()
    assert line.burst == 16


def test_to_ask_again_prolongs_no_round() -> None:
    line = Line(burst=16)
    due = line.level.due
    line.ask(after=PATIENCE / 2)
    assert line.level.due == due
    line.receive(4, PATIENCE / 4)
    line.ask()
    due = line.level.due
    line.ask(after=PATIENCE / 2)
    assert line.level.due == due


def test_a_round_in_which_nsqd_could_send_less_than_a_burst_says_nothing() -> None:
    line = Line(burst=8)
    line.receive(8, 1.5 * PATIENCE)
    line.ask(in_flight=4)
    assert line.level.rdy == 8, "the room of half a burst is no reason for a command"
    line.receive(4, PATIENCE / 2)
    line.ask()
    assert line.level.due == line.now + PATIENCE, "another round"
    assert line.round(PATIENCE) == 16


def test_a_full_connection_is_not_waited_for() -> None:
    line = Line(burst=8)
    line.receive(8, 1.5 * PATIENCE)
    assert line.level.due is None
    line.level.target(8, 200, line.now)  # RDY 16, which is not sent
    assert line.level.due is None
    line.ask(in_flight=7, after=1.0)
    assert line.level.due == line.now + PATIENCE


@pytest.mark.parametrize(
    ("rdy", "in_flight", "share", "asked"),
    [
        (8, 0, 200, 8),
        (8, 4, 200, 8),  # 4 messages of room
        (8, 5, 200, 13),
        (12, 0, 200, 12),
        (13, 0, 200, 8),
        (12, 0, 12, 12),
        (12, 0, 11, 8),  # above the share
        (10, 4, 12, 12),  # the burst reaches the share
        (10, 3, 12, 10),
    ],
)
def test_no_command_for_a_deviation_of_half_a_burst(rdy: int, in_flight: int, share: int, asked: int) -> None:
    line = Line(burst=8)
    line.level.sent(rdy, line.now)
    assert line.level.target(in_flight, share, line.now) == asked


def test_another_burst_is_worth_one_at_once() -> None:
    line = Line(burst=8)
    line.level.sent(12, line.now)
    line.receive(8, PATIENCE)
    assert line.burst == 16
    assert line.level.target(0, 200, line.now) == 16, "although 12 messages of room are not far from it"
    line.level.sent(16, line.now)
    assert line.level.target(4, 200, line.now) == 16


# --- trials


def test_after_a_trial_late_rounds_double_the_burst() -> None:
    line = Line(0.0, share=16)
    bursts = [line.round(LATE) for _ in range(TRIAL_EVERY + 4)]
    assert bursts == [1] * (TRIAL_EVERY - 1) + [2, 4, 8, 16, 16]


def test_a_trial_begins_with_larger_bursts_too() -> None:
    line = Line(burst=4, share=16)
    bursts = [line.round(1.5 * PATIENCE) for _ in range(2 * TRIAL_EVERY)]
    assert bursts == [4] * (TRIAL_EVERY - 1) + [8] * TRIAL_EVERY + [16]


def test_looks_end_the_trials_of_sparse_messages_which_become_rare() -> None:
    line = Line(0.0)
    for every in (8, 16, 32, 64, 64):
        bursts = [line.round(LATE) for _ in range(every)]
        assert bursts == [1] * (every - 1) + [2]
        line.look()
        assert line.burst == 1


def test_after_a_success_trials_are_as_frequent_as_at_first() -> None:
    line = Line(0.0)
    for _ in range(TRIAL_EVERY):
        line.round(LATE)
    line.look()
    for _ in range(2 * TRIAL_EVERY):
        line.round(LATE)
    assert line.round(0.0) == 4
    line.look()
    bursts = [line.round(LATE) for _ in range(TRIAL_EVERY)]
    assert bursts == [1] * (TRIAL_EVERY - 1) + [2]


def test_quick_rounds_that_come_to_nothing_do_not_begin_the_count_of_slow_ones_anew() -> None:
    line = Line(0.0)
    for _ in range(TRIAL_EVERY_MAXIMUM - 1):
        assert line.round(LATE) == 1
        assert line.round(0.0) == 2
        line.look()
    assert line.round(LATE) == 2
