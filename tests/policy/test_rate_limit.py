"""A limit of messages a second: its tokens, and when RDY may be raised; what it allows is tested in `test_places`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.rate_limit import BURST, COMMANDS, RateLimit

# -- tokens -----------------------------------------------------------------------------------------


def test_tokens_come_at_the_rate_up_to_those_of_a_second():
    limit = RateLimit(10, 100.0)
    assert limit.tokens(100.0) == 1
    assert limit.tokens(100.5) == 6
    assert limit.tokens(200.0) == limit.capacity == 10 * BURST + 1
    limit.take(13, 200.0)
    assert limit.tokens(200.0) == -2
    assert limit.when(1, 200.0) == pytest.approx(200.3)
    assert limit.when(100, 200.0) == pytest.approx(201.3)  # when they are as many as they become
    assert limit.when(-5, 200.0) == 200.0


def test_another_rate_begins_with_the_tokens_that_there_are():
    limit = RateLimit(10, 0.0)
    limit.change(2, 0.5)
    assert limit.tokens(0.5) == limit.capacity == 3
    limit.change(100, 0.5)
    assert limit.tokens(0.6) == pytest.approx(13)


def test_raises_are_spread_evenly_over_the_second():
    """Not one after the other until the commands of a second have been used."""
    limit, times = RateLimit(1000, 0.0), [0.0]
    for _ in range(30):
        limit.sent(True, times[-1])
        limit.sent(False, times[-1] + 0.01)
        times.append(limit.next_raise_at(0, times[-1] + 0.01))
    assert {round(later - earlier, 6) for earlier, later in zip(times, times[1:], strict=False)} == {round(2 / 18, 6)}


def test_a_raise_leaves_enough_of_a_seconds_commands_to_lower_all_holders():
    limit = RateLimit(1000, 0.0)
    for number in range(COMMANDS):
        limit.sent(False, number / 100)
    for holders, oldest in ((0, 1), (3, 4), (7, 8), (100, 9)):
        assert limit.next_raise_at(holders, 0.2) == pytest.approx(oldest / 100 + 1.001)


def test_a_raise_waits_if_only_one_of_a_seconds_commands_is_left():
    """It would be followed by RDY 0."""
    limit = RateLimit(1000, 0.0)
    for number in range(COMMANDS - 2):
        limit.sent(False, number / 100)
    assert limit.next_raise_at(0, 0.5) < 0.5
    limit.sent(False, 0.2)
    assert limit.next_raise_at(0, 0.5) == pytest.approx(1.001)


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 5)), max_size=12), st.floats(0.1, 1000))
def test_no_more_are_taken_in_any_time_than_rate_and_burst_allow(steps, rate):
    limit, now, taken = RateLimit(rate, 0.0), 0.0, []
    for pause, count in steps:
        now += pause
        count = min(count, int(limit.tokens(now)))
        if count > 0:
            limit.take(count, now)
            taken.append((now, count))
    for index, (began, _) in enumerate(taken):
        for end, _ in taken[index:]:
            total = sum(count for at, count in taken if began <= at <= end)
            assert total <= limit.capacity + rate * (end - began) + 1e-6
