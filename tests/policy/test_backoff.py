"""Backoff: every change of state, and that nothing else ever changes it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.backoff import STALE, Backoff, Mode, Strategy, exponential, full_jitter, guarded
from tests.support.scale import LONG, examples

pytestmark = LONG


def blocked(level: int = 1, **options: float) -> Backoff:
    """A machine that has seen `level` failures in a row; blocked since 0.0."""
    backoff = Backoff(exponential(), **options)
    backoff.failure(backoff.epoch, 0.0)
    for _ in range(level - 1):
        probing(backoff)
        backoff.failure(backoff.stamp("a", True), 0.0)
    return backoff


def probing(backoff: Backoff) -> Backoff:
    assert backoff.until is not None
    assert backoff.time_is_up(backoff.until)
    return backoff


def test_a_failure_blocks() -> None:
    backoff = Backoff(exponential())
    assert backoff.failure(backoff.epoch, 10.0)
    assert (backoff.mode, backoff.level, backoff.until) == (Mode.BLOCKED, 1, 12.0)


def test_the_block_ends_at_its_time_and_not_before() -> None:
    backoff = blocked()
    assert not backoff.time_is_up(1.999)
    assert backoff.time_is_up(2.0)
    assert (backoff.mode, backoff.until) == (Mode.PROBING, None)
    assert not backoff.time_is_up(3.0)


def test_the_test_message_is_the_first_of_a_connection_with_rdy() -> None:
    backoff = probing(blocked())
    assert backoff.stamp("late", False) == STALE
    assert backoff.stamp("a", True) == backoff.epoch
    assert backoff.stamp("a", True) == STALE


def test_success_at_level_1_is_full_throttle() -> None:
    backoff = probing(blocked())
    assert backoff.success(backoff.stamp("a", True), 5.0)
    assert (backoff.mode, backoff.level, backoff.until) == (Mode.FLOWING, 0, None)


def test_success_above_level_1_steps_down_and_blocks_again() -> None:
    backoff = probing(blocked(3))
    assert backoff.success(backoff.stamp("a", True), 100.0)
    assert (backoff.mode, backoff.level, backoff.until) == (Mode.BLOCKED, 2, 104.0)


def test_failure_of_the_test_message_steps_up() -> None:
    backoff = probing(blocked())
    assert backoff.failure(backoff.stamp("a", True), 100.0)
    assert (backoff.mode, backoff.level, backoff.until) == (Mode.BLOCKED, 2, 104.0)


def test_a_test_message_without_a_verdict_makes_the_next_one_the_test() -> None:
    backoff = probing(blocked())
    first = backoff.stamp("a", True)
    assert backoff.inconclusive(first, 3.0)
    assert backoff.mode is Mode.PROBING
    second = backoff.stamp("a", True)
    assert second not in (first, STALE)
    assert not backoff.success(first, 4.0), "its late answer is no verdict either"
    assert backoff.success(second, 4.0)


def test_losing_the_testing_connection_makes_the_next_message_the_test() -> None:
    backoff = probing(blocked())
    first = backoff.stamp("a", True)
    assert not backoff.lost("b", 3.0)
    assert backoff.lost("a", 3.0)
    assert not backoff.failure(first, 4.0)
    assert backoff.success(backoff.stamp("b", True), 4.0)


def test_off() -> None:
    backoff = Backoff(exponential(), max_duration=0)
    assert not backoff.failure(backoff.epoch, 0.0)
    assert backoff.mode is Mode.FLOWING


def test_exponential_up_to_the_maximum() -> None:
    backoff = Backoff(exponential(), max_duration=50.0)
    lengths = []
    now = 0.0
    backoff.failure(backoff.epoch, now)
    for _ in range(8):
        assert backoff.until is not None
        lengths.append(backoff.until - now)
        now = backoff.until
        backoff.time_is_up(now)
        backoff.failure(backoff.stamp("a", True), now)
    assert lengths == [2, 4, 8, 16, 32, 50, 50, 50]
    assert backoff.level == backoff.highest_level == 6


@pytest.mark.parametrize(("maximum", "highest"), [(1.0, 1), (2.0, 1), (2.5, 2), (4.0, 2), (120.0, 7)])
def test_the_level_stops_rising_where_the_maximum_is_reached(maximum: float, highest: int) -> None:
    assert blocked(9, max_duration=maximum).level == highest


def test_the_multiplier_scales() -> None:
    assert [exponential(0.5)(level) for level in (1, 2, 3)] == [1.0, 2.0, 4.0]


def test_full_jitter_is_anything_up_to_exponential() -> None:
    rng = random.Random(1)
    strategy = full_jitter(rng.random, 1.0, 120.0)
    drawn = [strategy(3) for _ in range(1000)]
    assert min(drawn) < 0.5 < 7.5 < max(drawn) <= 8.0
    assert max(strategy(30) for _ in range(100)) <= 120.0
    assert [full_jitter(lambda: 0.5)(level) for level in (1, 3, 30)] == [1.0, 4.0, 60.0]


def test_ones_own_strategy_is_kept_within_bounds() -> None:
    for value, expected in ((-5.0, 0.0), (7.0, 7.0), (1e9, 120.0)):
        backoff = Backoff(lambda _level, value=value: value)  # type: ignore[misc]
        backoff.failure(backoff.epoch, 0.0)
        assert backoff.until == expected


def divided(level: int) -> float:
    return level / 0


@pytest.mark.parametrize(
    ("strategy", "report"),
    [
        (divided, "raised ZeroDivisionError('division by zero') at level 3"),
        (lambda _level: "soon", "raised ValueError(\"could not convert string to float: 'soon'\") at level 3"),
        (lambda _level: -0.5, "returned -0.5 at level 3"),
        (lambda _level: float("inf"), "returned inf at level 3"),
        (lambda _level: float("nan"), "returned nan at level 3"),
    ],
)
def test_a_strategy_that_fails_is_reported_and_replaced(strategy: Strategy, report: str) -> None:
    reports: list[str] = []
    assert guarded(strategy, lambda level: 10.0 * level, reports.append)(3) == 30.0
    assert reports == [report]


def test_a_strategy_that_works_is_left_alone() -> None:
    reports: list[str] = []
    assert [guarded(lambda level: level, lambda _: -1.0, reports.append)(level) for level in (0, 1, 5)] == [0, 1, 5]
    assert reports == []


@pytest.mark.parametrize("multiplier", [1e-300, 0.0, 1.0, 1e300])
def test_years_of_failures_overflow_nothing(multiplier: float) -> None:
    backoff = Backoff(exponential(multiplier), multiplier=multiplier)
    backoff.failure(backoff.epoch, 0.0)
    for _ in range(3000):
        probing(backoff)
        backoff.failure(backoff.stamp("a", True), 0.0)
    assert backoff.level <= 60
    assert backoff.until is not None
    assert backoff.until <= 120.0


@examples(20)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["message", "message", "success", "failure", "inconclusive", "lost", "time"]),
            st.integers(0, 9),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_only_the_test_message_ever_steers(events: list[tuple[str, int, bool]]) -> None:
    backoff, now = Backoff(exponential()), 0.0
    messages: list[tuple[int, int]] = []  # (stamp, connection)
    test: tuple[int, int] | None = None
    for name, number, granted in events:
        mode, level, epoch = backoff.mode, backoff.level, backoff.epoch
        now += number
        if name == "message":
            connection = number % 3
            stamp = backoff.stamp(connection, granted)
            messages.append((stamp, connection))
            if mode is Mode.PROBING and stamp != STALE:
                assert test is None, "one test message"
                test = (stamp, connection)
            changed = False
        elif name == "time":
            changed = backoff.time_is_up(now)
            assert not changed or mode is Mode.BLOCKED
        elif name == "lost":
            changed = backoff.lost(number % 3, now)
            assert changed == (mode is Mode.PROBING and test is not None and test[1] == number % 3)
        else:
            if not messages:
                continue
            message = messages.pop(number % len(messages))
            changed = getattr(backoff, name)(message[0], now)
            if changed and mode is Mode.FLOWING:
                assert name == "failure"
            elif changed:
                assert mode is Mode.PROBING
                assert message == test
        if changed:
            test = None
            assert backoff.epoch == epoch + 1
        else:
            assert (backoff.mode, backoff.level, backoff.epoch) == (mode, level, epoch)
        assert (backoff.until is not None) == (backoff.mode is Mode.BLOCKED)
        assert (backoff.level == 0) == (backoff.mode is Mode.FLOWING)
        assert abs(backoff.level - level) <= 1
