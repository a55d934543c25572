"""A limit of messages a second: its tokens; what it allows is tested in `test_places`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.rate_limit import BURST, RateLimit

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
