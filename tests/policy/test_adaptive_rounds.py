"""The controller of `adaptive_rdy` round by round: what a round's time does to the burst, and trials."""

from __future__ import annotations

import pytest

from gnsq_like.policy.adaptive_rdy import (
    FLOOD_PATIENCE,
    FLOOD_PATIENCE_MAXIMUM,
    PATIENCE_MINIMUM,
    PATIENCE_ROUND_TRIPS,
    TRIAL_BELIEVED,
    TRIAL_DOUBTS,
    TRIAL_EVERY,
    TRIAL_EVERY_MAXIMUM,
    TRIAL_ROUNDS,
    TRIAL_SLACK,
    AdaptiveRdy,
)

#: Binary fractions, so that sums of times are exact.
ROUND_TRIP = 1 / 512
PATIENCE = PATIENCE_ROUND_TRIPS * ROUND_TRIP

#: A round in a process that reads late: slow whatever the burst, and more than twice the patience without trials.
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

    def quiet(self) -> None:
        """Nothing arrives before `due`."""
        self.ask()
        due = self.level.due
        assert due is not None
        self.now = due
        self.level.quiet(due)


def believing(share: int = 16) -> Line:
    """A line on which a trial has shown that rounds are late whatever the burst."""
    line = Line(0.0, share=share)
    for _ in range(TRIAL_EVERY + TRIAL_ROUNDS):
        line.round(LATE)
    return line


# --- a round


def test_a_round_within_patience_doubles_the_burst_up_to_the_share() -> None:
    line = Line(share=10)
    assert [line.round(PATIENCE) for _ in range(5)] == [2, 4, 8, 10, 10]


def test_a_round_of_up_to_twice_that_leaves_it() -> None:
    line = Line(burst=8)
    assert [line.round(PATIENCE * times) for times in (1.125, 1.5, 2.0)] == [8, 8, 8]


@pytest.mark.parametrize(("arrived", "left"), [(15, 6), (10, 4), (2, 1)])
def test_a_longer_one_cuts_it_to_what_came_within_patience(arrived: int, left: int) -> None:
    line = Line(burst=16)
    line.receive(arrived, 2.5 * PATIENCE)
    assert line.burst == left
    line.ask()
    assert line.level.rdy == left


def test_silence_cuts_it_to_what_came_within_patience_too() -> None:
    line = Line(burst=16)
    line.receive(12, PATIENCE / 2)
    line.quiet()
    assert line.burst == 6


def test_messages_that_were_late_raise_no_burst_that_was_cut() -> None:
    line = Line(burst=16)
    line.quiet()
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
    assert due is None if burst == 1 else due == pytest.approx(2 * patience)


def test_a_burst_that_comes_in_parts_is_a_round_and_time_in_handlers_is_no_part_of_it() -> None:
    line = Line(burst=16)
    line.receive(4, PATIENCE / 4)
    assert line.level.due == line.now + 1.75 * PATIENCE
    line.ask(after=PATIENCE / 8)
    assert line.level.due == line.now + 1.75 * PATIENCE, "nsqd is waited for from when the handlers have run"
    line.receive(6, PATIENCE / 2)
    line.ask(after=PATIENCE / 8)
    line.receive(6, PATIENCE / 4)
    assert line.burst == 32


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
    assert line.level.due == line.now + 2 * PATIENCE, "another round"
    assert line.round(PATIENCE) == 16


def test_a_full_connection_is_not_waited_for() -> None:
    line = Line(burst=8)
    line.receive(8, 1.5 * PATIENCE)
    assert line.level.due is None
    line.level.target(8, 200, line.now)  # RDY 16, which is not sent
    assert line.level.due is None
    line.ask(in_flight=7, after=1.0)
    assert line.level.due == line.now + 2 * PATIENCE


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


def test_a_trial_shows_that_rounds_are_late_whatever_the_burst() -> None:
    line = Line(0.0, share=16)
    bursts = [line.round(LATE) for _ in range(TRIAL_EVERY + TRIAL_ROUNDS + 4)]
    assert bursts == [1] * (TRIAL_EVERY - 1) + [2] * (TRIAL_ROUNDS + 1) + [4, 8, 16, 16]


def test_a_trial_begins_with_larger_bursts_too() -> None:
    line = Line(burst=4, share=16)
    bursts = [line.round(1.5 * PATIENCE) for _ in range(TRIAL_EVERY + TRIAL_ROUNDS + 1)]
    assert bursts == [4] * (TRIAL_EVERY - 1) + [8] * (TRIAL_ROUNDS + 1) + [16]


@pytest.mark.parametrize("grows", [2.0, 4.0])
def test_where_twice_the_burst_takes_twice_as_long_trials_become_rare(grows: float) -> None:
    """Also where it takes so long that the round ends without the burst."""
    line = Line(0.0)
    trials: list[int] = []
    for number in range(600):
        before = line.burst
        if line.round(LATE if before == 1 else grows * LATE) > before:
            trials.append(number)
        assert line.burst <= 2
    gaps = [later - earlier - 1 for earlier, later in zip(trials, trials[1:], strict=False)]
    assert trials[0] == TRIAL_EVERY - 1
    assert gaps == [min(TRIAL_EVERY * 2 ** (n + 1), TRIAL_EVERY_MAXIMUM) for n in range(len(gaps))]
    assert gaps[-1] == TRIAL_EVERY_MAXIMUM


def test_a_trial_that_fails_leaves_the_burst_as_it_was() -> None:
    line = Line(burst=4)
    for _ in range(TRIAL_EVERY):
        line.round(1.5 * PATIENCE)
    assert line.burst == 8
    line.round(1.5 * PATIENCE * 1.01 * TRIAL_SLACK)
    rdy = line.ask()
    assert (rdy, type(rdy)) == (4, int)


def test_a_trial_has_to_succeed_in_all_its_rounds() -> None:
    line = Line(0.0)
    for _ in range(TRIAL_EVERY + TRIAL_ROUNDS - 1):
        line.round(LATE)
    assert line.burst == 2
    assert line.round(1.01 * TRIAL_SLACK * LATE) == 1
    assert line.round(LATE) == 1


def test_after_a_success_trials_are_as_frequent_as_at_first() -> None:
    line = Line(0.0, share=2)
    for _ in range(TRIAL_EVERY):
        line.round(LATE)
    assert line.round(4 * LATE) == 1
    for _ in range(2 * TRIAL_EVERY + TRIAL_ROUNDS):
        line.round(LATE)
    line.quiet()
    bursts = [line.round(LATE) for _ in range(TRIAL_EVERY)]
    assert bursts == [1] * (TRIAL_EVERY - 1) + [2]


def test_one_long_silence_before_a_trial_does_not_make_it_patient() -> None:
    line = Line(0.0)
    for _ in range(TRIAL_EVERY - 1):
        line.round(LATE)
    assert line.round(1.0) == 2
    assert line.level.due is None
    line.ask()
    usual = TRIAL_EVERY / ((TRIAL_EVERY - 1) / LATE + 1.0)
    assert line.level.due == pytest.approx(line.now + 2 * TRIAL_SLACK * usual)


def test_rounds_before_the_burst_was_another_do_not_count_for_a_trial() -> None:
    line = Line(burst=4)
    for _ in range(TRIAL_EVERY - 1):
        line.round(1.5 * PATIENCE)
    line.round(PATIENCE)
    assert line.burst == 8
    bursts = [line.round(1.75 * PATIENCE) for _ in range(TRIAL_EVERY)]
    assert bursts == [8] * (TRIAL_EVERY - 1) + [16]
    line.ask()
    due = line.level.due
    assert due == pytest.approx(line.now + 2 * TRIAL_SLACK * 1.75 * PATIENCE), "nor does the time they took"


def test_what_a_trial_found_is_used_for_a_number_of_rounds() -> None:
    line = believing()
    line.ask()
    assert line.level.due == pytest.approx(line.now + 2 * TRIAL_SLACK * LATE)
    bursts = [line.round(LATE) for _ in range(TRIAL_BELIEVED)]
    assert bursts[3:] == [16] * (TRIAL_BELIEVED - 3)
    line.ask()
    assert line.level.due == pytest.approx(line.now + 2 * PATIENCE_MINIMUM)
    assert line.round(LATE) < 16


def test_the_time_that_a_trial_found_is_that_of_its_last_round_if_that_was_longer() -> None:
    line = Line(0.0, share=16)
    for _ in range(TRIAL_EVERY + TRIAL_ROUNDS - 1):
        line.round(LATE)
    line.round(1.5 * LATE)
    line.ask()
    assert line.level.due == pytest.approx(line.now + 2 * TRIAL_SLACK * 1.5 * LATE)


def test_a_surplus_of_slow_rounds_ends_the_belief() -> None:
    line = believing()
    slow = 1.5 * TRIAL_SLACK * LATE
    for _ in range(5):
        line.round(LATE)
    for _ in range(TRIAL_DOUBTS):  # so few slow ones that no other trial begins
        line.round(slow)
        line.round(LATE)
    assert line.burst == 16, "each doubt was refuted"
    for _ in range(TRIAL_DOUBTS - 1):
        line.round(slow)
    line.round(LATE)
    line.round(slow)
    line.ask()
    assert line.level.due == pytest.approx(line.now + 2 * TRIAL_SLACK * LATE)
    line.round(slow)
    line.ask()
    assert line.level.due == pytest.approx(line.now + 2 * PATIENCE_MINIMUM)


def test_silence_ends_the_belief() -> None:
    line = believing()
    while line.burst < 16:
        line.round(LATE)
    line.quiet()
    assert line.burst == 1
    bursts = [line.round(LATE) for _ in range(TRIAL_EVERY)]
    assert bursts == [1] * (TRIAL_EVERY - 1) + [2]
