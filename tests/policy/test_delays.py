"""Waiting times: their values, their bounds, and that none overflows."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.delays import (
    SEARCH_BASE,
    SEARCH_CLOSE,
    first_poll_delay,
    poll_delay,
    redial_delay,
    requeue_delay,
    search_delay,
)
from tests.support.scale import examples


def test_requeue_delay_grows_with_the_attempts() -> None:
    assert [requeue_delay(attempts) for attempts in (1, 2, 9, 10, 11, 65535)] == [90, 180, 810, 900, 900, 900]
    assert requeue_delay(3, default=0.0) == 0
    assert requeue_delay(3, default=2.0, maximum=5.0) == 5.0
    assert requeue_delay(0) == 90
    assert requeue_delay(3, default=-1.0) == 0


def test_redial_delay_doubles_from_the_first_failure_on() -> None:
    assert [redial_delay(failures, lambda: 1.0) for failures in range(1, 9)] == [1, 2, 4, 5, 5, 5, 5, 5]
    assert redial_delay(3, lambda: 0.0) == 2.0
    assert redial_delay(2, lambda: 0.5, base=3.0, maximum=100.0) == 4.5
    assert redial_delay(-1, lambda: 1.0) == 1
    assert redial_delay(100, lambda: 1.0, base=1.0, maximum=2.0**70) == 2.0**60


def test_poll_delay_is_the_interval_on_average() -> None:
    rng = random.Random(1)
    drawn = [poll_delay(60.0, 0.3, rng.random) for _ in range(2000)]
    assert min(drawn) == pytest.approx(51, abs=0.2)
    assert max(drawn) == pytest.approx(69, abs=0.2)
    assert sum(drawn) / len(drawn) == pytest.approx(60, abs=0.5)
    assert poll_delay(60.0, 0.0, rng.random) == 60.0
    assert [poll_delay(60.0, 0.5, lambda drawn=drawn: drawn) for drawn in (0.0, 0.5, 1.0)] == [45, 60, 75]  # type: ignore[misc]


@examples(5)
@given(st.integers(-5, 10**9), st.floats(0, 1, exclude_max=True))
def test_no_number_of_failures_overflows(failures: int, chance: float) -> None:
    assert 0 < redial_delay(failures, lambda: chance) <= 5
    assert 0 <= requeue_delay(failures) <= 900


def test_readers_that_start_together_spread_over_the_interval() -> None:
    assert [first_poll_delay(60.0, 0.3, lambda drawn=drawn: drawn) for drawn in (0.0, 0.25, 0.75)] == [60, 45, 15]  # type: ignore[misc]
    assert first_poll_delay(60.0, 0.0, lambda: 0.25) == 60.0


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0.001, 3600))
def test_a_search_slows_down_to_the_interval(seconds: float, more: float, interval: float) -> None:
    assert 0 < search_delay(seconds, interval) <= search_delay(seconds + more, interval) <= interval
    assert search_delay(4 * interval + SEARCH_CLOSE, interval) == interval


def test_a_restarted_nsqd_is_found_within_a_second_and_a_dead_one_costs_few_rounds() -> None:
    assert search_delay(0.0, 60.0) == search_delay(14.9, 60.0) == SEARCH_BASE < 0.8
    now, rounds = 0.0, 0
    while (delay := search_delay(now, 60.0)) < 60.0:
        now, rounds = now + delay, rounds + 1
    assert (rounds, round(now)) == (35, 280)
