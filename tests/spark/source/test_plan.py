"""Plans: numbers in, numbers out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.spark.source.plan import Depth, Outstanding, apportion, limit_parts, make_plan
from gnsq_like.spark.staging.offsets import Part, Share

amounts = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 10**7), max_size=8)
depths = st.dictionaries(
    st.text(min_size=1, max_size=3),
    st.builds(Depth, st.integers(0, 10**6), st.just(0), st.floats(0, 1e6)),
    max_size=8,
)


@given(amounts, st.integers(1, 10**7))
def test_shares_are_proportional_and_use_the_cap(given_amounts: dict[str, int], cap: int) -> None:
    shares = apportion(given_amounts, cap)
    assert sum(shares.values()) == min(cap, sum(given_amounts.values()))
    assert all(0 < share <= given_amounts[key] for key, share in shares.items())
    total = sum(given_amounts.values())
    if total > cap:
        assert all(abs(shares.get(key, 0) - amount * cap / total) <= 1 for key, amount in given_amounts.items())


@given(
    depths,
    st.none() | st.integers(1, 10**6),
    st.none() | st.integers(1, 10**9),
    st.integers(1, 10),
    st.integers(1, 5000),
)
def test_a_plan_keeps_its_bounds(
    given_depths: dict[str, Depth], max_messages: int | None, max_bytes: int | None, partitions: int, segment: int
) -> None:
    plan = make_plan(
        given_depths,
        max_messages=max_messages,
        max_bytes=max_bytes,
        min_partitions=partitions,
        segment_messages=segment,
    )
    total = sum(share.messages for share in plan.values())
    assert bool(plan) == any(depth.messages for depth in given_depths.values())
    assert max_messages is None or total <= max_messages
    for address, share in plan.items():
        assert 0 < share.messages <= given_depths[address].messages
        assert share.splits == 1 or share.messages // share.splits >= segment


def test_a_plan_by_bytes() -> None:
    known = {"a": Depth(1000, 0, 200.0), "b": Depth(1000, 0, 200.0)}
    plan = make_plan(known, max_messages=None, max_bytes=40_000, min_partitions=1, segment_messages=100)
    assert plan == {"a": Share(100, 1, 20_000), "b": Share(100, 1, 20_000)}


@given(
    st.lists(st.builds(Part, st.just("log"), st.just(1), st.just("a"), st.just(0), st.integers(1, 10**7)), max_size=5),
    st.integers(1, 10**6),
    st.integers(1, 10**9),
)
def test_parts_of_a_batch_that_was_planned_larger(parts: list[Part], max_messages: int, max_bytes: int) -> None:
    limited = limit_parts(parts, max_messages, max_bytes)
    assert all(0 < each.messages <= part.messages for each, part in zip(limited, parts, strict=True))
    assert sum(part.messages for part in limited) <= max_messages + len(parts)
    assert sum(part.bytes for part in limited) <= max_bytes + len(parts)
    if sum(part.messages for part in parts) <= max_messages:
        assert [part.messages for part in limited] == [part.messages for part in parts]


def test_hints_split_what_is_worth_it() -> None:
    plan = make_plan(
        {"a": Depth(9000), "b": Depth(1000)},
        max_messages=None,
        max_bytes=None,
        min_partitions=4,
        segment_messages=1000,
    )
    assert plan == {"a": Share(9000, 4), "b": Share(1000, 1)}


def test_an_available_now_run_plans_no_later_messages() -> None:
    outstanding = Outstanding({"a": Depth(100), "b": Depth(0)})
    now = {"a": Depth(150, 5, 10.0), "b": Depth(20), "new": Depth(30)}
    assert outstanding.limited(now) == {"a": Depth(100, 0, 10.0), "b": Depth(0), "new": Depth(0)}
    outstanding.subtract({"a": 60})
    assert outstanding.limited(now)["a"].messages == 40
    assert outstanding
    outstanding.subtract({"a": 50})
    assert not outstanding


def test_an_nsqd_that_gives_nothing_three_times_in_a_row_is_given_up() -> None:
    outstanding = Outstanding({"a": Depth(100)})
    for taken in (0, 0, 1, 0, 0):
        assert outstanding.subtract({"a": taken}) == {}
        assert outstanding.keys == {"a"}
    assert outstanding.subtract({"a": 0}) == {"a": 99}
    assert not outstanding
    assert outstanding.keys == set()
