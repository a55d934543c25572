"""Percentiles over a window, against a sorted list."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.server.broker.latency import Latencies, percentiles_of

#: The widest that a bucket's middle is away from what is in it, with what floats add.
CLOSE = 1.006


class Clock:
    """Nanoseconds that the test moves."""

    def __init__(self) -> None:
        self.now = 10**18

    def __call__(self) -> int:
        return self.now


@given(
    st.lists(st.integers(1, 10**15), min_size=1, max_size=200),
    st.lists(st.floats(0.01, 1), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_a_percentile_is_near_the_message_of_that_rank(taken: list[int], percentiles: list[float], parts: int) -> None:
    clock = Clock()
    measured = [Latencies(600, clock) for _ in range(parts)]
    for number, each in enumerate(taken):
        measured[number % parts].add(clock.now - each)
    found = percentiles_of(measured, percentiles)
    assert found["count"] == len(taken)
    for percentile, shown in zip(percentiles, found["percentiles"], strict=True):
        exact = sorted(taken)[max(0, math.ceil(percentile * len(taken)) - 1)]
        assert shown["quantile"] == percentile
        assert exact / CLOSE <= shown["value"] <= exact * CLOSE


@given(st.lists(st.tuples(st.integers(0, 20 * 10**9), st.integers(1, 10**12)), max_size=100))
def test_the_window_holds_what_is_newer_than_its_half_and_nothing_older_than_itself(
    steps: list[tuple[int, int]],
) -> None:
    clock = Clock()
    window = 10 * 10**9
    measured = Latencies(10, clock)
    finished_at = []
    for pause, taken in steps:
        clock.now += pause
        measured.add(clock.now - taken)
        finished_at.append(clock.now)
        count = percentiles_of([measured], [0.5])["count"]
        assert sum(at > clock.now - window // 2 for at in finished_at) <= count
        assert count <= sum(at >= clock.now - window for at in finished_at)


def test_nothing_measured_is_zero() -> None:
    assert percentiles_of([Latencies(600)], [0.5]) == {"count": 0, "percentiles": [{"quantile": 0.5, "value": 0.0}]}


def test_a_clock_that_went_back_counts_as_the_least() -> None:
    clock = Clock()
    measured = Latencies(600, clock)
    measured.add(clock.now + 10**9)
    assert 1 <= percentiles_of([measured], [0.5])["percentiles"][0]["value"] <= CLOSE
