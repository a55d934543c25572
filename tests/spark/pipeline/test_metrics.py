"""The metrics of a batch, from counts; without Spark."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.spark.pipeline.metrics import (
    CLASSES,
    COLUMNS,
    MOST_ATTEMPTS,
    Counting,
    Group,
    MinuteMetrics,
    as_rows,
    fold,
)

SEEN_AT = datetime(2026, 11, 21, 13, 0, 30, tzinfo=UTC)

#: (microseconds of latency, attempts, whether it fits, bytes)
MESSAGES = st.lists(
    st.tuples(st.integers(-5_000_000, 10**10), st.integers(1, 40), st.booleans(), st.integers(1, 1000)),
    min_size=1,
    max_size=60,
)


def groups_of(messages: list[tuple[int, int, bool, int]]) -> list[Group]:
    """Count messages one by one."""
    alike: dict[tuple[int, int, int, bool], list[tuple[int, int]]] = {}
    seen_us = int(SEEN_AT.timestamp() * 1e6)
    for latency, attempts, fits, size in messages:
        minute = (seen_us - latency) // 60_000_000 * 60
        key = (minute, min(attempts, MOST_ATTEMPTS), CLASSES.index(latency / 1e6), fits)
        alike.setdefault(key, []).append((latency, size))
    return [
        Group(*key, len(each), sum(size for _, size in each), min(each)[0], max(each)[0]) for key, each in alike.items()
    ]


def folded(messages: list[tuple[int, int, bool, int]]) -> list[MinuteMetrics]:
    written_at = SEEN_AT + timedelta(seconds=2)
    return fold(groups_of(messages), batch_number=7, seen_at=SEEN_AT, written_at=written_at, depth=5)


def test_each_topic_has_rows_of_its_own() -> None:
    [group] = groups_of([(1000, 1, True, 10)])
    both = [replace(group, topic="a"), replace(group, topic="b", fits=False)]
    rows = fold(both, batch_number=1, seen_at=SEEN_AT, written_at=SEEN_AT, depth=None)
    assert [(row.topic, row.messages, row.rejected) for row in rows] == [("a", 1, 0), ("b", 1, 1)]


@given(MESSAGES)
def test_nothing_is_left_out(messages: list[tuple[int, int, bool, int]]) -> None:
    rows = folded(messages)
    assert len({row.minute for row in rows}) == len(rows)
    assert sum(row.messages for row in rows) == len(messages)
    assert sum(row.rejected for row in rows) == sum(not fits for _, _, fits, _ in messages)
    assert sum(row.bytes for row in rows) == sum(size for *_, size in messages)
    for name in ("attempts", "latencies"):
        total = sum((Counter(getattr(row, name)) for row in rows), Counter())
        assert total.total() == len(messages)
    assert min(row.latency_min for row in rows) == min(messages)[0] / 1e6 == rows[0].lag
    assert max(row.latency_max for row in rows) == max(messages)[0] / 1e6


@given(MESSAGES)
def test_a_minute_has_what_was_published_in_it(messages: list[tuple[int, int, bool, int]]) -> None:
    for row in folded(messages):
        published = [SEEN_AT - timedelta(microseconds=latency) for latency, *_ in messages]
        inside = [at for at in published if row.minute <= at < row.minute + timedelta(minutes=1)]
        assert row.messages == len(inside)
        assert row.latency_min <= row.latency_p50 <= row.latency_p95 <= row.latency_p99 <= row.latency_max


@given(MESSAGES, MESSAGES)
def test_classes_of_two_batches_can_be_added(
    first: list[tuple[int, int, bool, int]], second: list[tuple[int, int, bool, int]]
) -> None:
    def classes(messages: list[tuple[int, int, bool, int]]) -> Counter[int]:
        return sum((Counter(row.latencies) for row in folded(messages)), Counter())

    assert classes(first) + classes(second) == classes(first + second)


def test_the_table_has_the_fields() -> None:
    [row] = folded([(1000, 1, True, 10)])
    [made] = as_rows([row]).to_pylist()
    assert tuple(made) == COLUMNS
    assert (made["minute"], made["batch_number"], made["seen_at"]) == (SEEN_AT.replace(second=0), 7, SEEN_AT)
    assert (made["attempts"], made["depth"]) == ([(1, 1)], 5)


@given(MESSAGES)
def test_tasks_count_the_same_groups(messages: list[tuple[int, int, bool, int]]) -> None:
    seen_us = int(SEEN_AT.timestamp() * 1e6)
    counting = Counting()
    for some in (messages[: len(messages) // 2], messages[len(messages) // 2 :]):
        kept = {
            "timestamp": pa.array([seen_us - latency for latency, *_ in some], pa.timestamp("us", "UTC")),
            "seen_at": pa.array([seen_us] * len(some), pa.timestamp("us", "UTC")),
            "attempts": pa.array([attempts for _, attempts, *_ in some], pa.int32()),
        }
        sizes = pa.array([size for *_, size in some], pa.int32())
        counting.add("", kept, sizes, pa.array([fits for _, _, fits, _ in some], pa.bool_()))
    # Logarithms may differ in the last bit, at the edge of a class.
    edges = {CLASSES.index(latency / 1e6 * by) for latency, *_ in messages for by in (1 - 1e-9, 1, 1 + 1e-9)}
    assert {group.latency_class for group in counting.groups()} <= edges

    def without_class(groups: list[Group]) -> Counter[tuple[int, int, bool]]:
        return Counter({(each.minute, each.attempts, each.fits): 0 for each in groups}) + sum(
            (Counter({(each.minute, each.attempts, each.fits): each.messages}) for each in groups), Counter()
        )

    assert without_class(counting.groups()) == without_class(groups_of(messages))
    assert sum(each.bytes for each in counting.groups()) == sum(size for *_, size in messages)
    assert min(each.shortest_us for each in counting.groups()) == min(messages)[0]
    assert max(each.longest_us for each in counting.groups()) == max(messages)[0]


@pytest.mark.parametrize(("attempts", "counted"), [(1, 1), (MOST_ATTEMPTS, MOST_ATTEMPTS), (65535, MOST_ATTEMPTS)])
def test_very_many_attempts_are_counted_together(attempts: int, counted: int) -> None:
    [row] = folded([(1000, attempts, True, 10)])
    assert row.attempts == {counted: 1}
