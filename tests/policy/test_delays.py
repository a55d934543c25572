"""Waiting times: their values, their bounds, and that none overflows."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.delays import (
    ExtraRounds,
    first_poll_delay,
    fruitless_delay,
    missing_delay,
    poll_delay,
    redial_delay,
    requeue_delay,
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


def test_an_extra_round_comes_half_a_second_to_three_seconds_after_a_loss() -> None:
    assert ExtraRounds().ask(100.0, lambda: 0.0) == 100.5
    assert ExtraRounds().ask(100.0, lambda: 0.999999) == pytest.approx(103.0, abs=0.01)


def test_losses_meanwhile_share_the_round() -> None:
    extra = ExtraRounds()
    due = extra.ask(100.0, lambda: 0.5)
    assert [extra.ask(100.0 + n / 10, lambda: 0.9) for n in range(10)] == [due] * 10
    extra.began(due)
    assert extra.due is None


def test_a_round_of_another_cause_postpones_no_extra_round() -> None:
    extra = ExtraRounds()
    extra.began(100.0)
    assert extra.ask(100.1, lambda: 0.0) == pytest.approx(100.6)
    extra.began(100.6)
    assert extra.ask(100.7, lambda: 0.0) == pytest.approx(105.6)


@examples(5)
@given(st.lists(st.tuples(st.floats(0, 4), st.floats(0, 1, exclude_max=True)), max_size=40))
def test_at_most_one_extra_round_in_five_seconds(losses: list[tuple[float, float]]) -> None:
    extra, now = ExtraRounds(), 0.0
    rounds: list[float] = []
    for gap, chance in losses:
        now += gap
        while extra.due is not None and extra.due <= now:
            rounds.append(extra.due)
            extra.began(extra.due)
        due = extra.ask(now, lambda chance=chance: chance)  # type: ignore[misc]
        assert now < due <= now + 5.5
    assert all(later - earlier >= 5 - 1e-9 for earlier, later in zip(rounds, rounds[1:], strict=False))


@given(st.integers(1, 10_000), st.floats(0.001, 3600))
def test_a_search_that_finds_nothing_slows_down_to_the_interval(rounds: int, interval: float) -> None:
    first, later = fruitless_delay(rounds, interval), fruitless_delay(rounds + 1, interval)
    assert 0 < first <= later <= interval
    assert fruitless_delay(60, interval) == interval


def test_a_search_that_finds_nothing_begins_with_short_intervals() -> None:
    assert [fruitless_delay(rounds, 60.0) for rounds in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


@given(st.integers(1, 10_000), st.floats(0.001, 3600))
def test_a_search_for_a_missing_nsqd_slows_down_to_the_interval(rounds: int, interval: float) -> None:
    assert 0 < missing_delay(rounds, interval) <= missing_delay(rounds + 1, interval) <= interval
    assert missing_delay(60, interval) == interval


def test_a_search_for_a_missing_nsqd_takes_four_rounds() -> None:
    assert [missing_delay(rounds, 60.0) for rounds in range(1, 6)] == [5, 10, 20, 40, 60]
