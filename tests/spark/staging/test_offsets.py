"""Offsets: Spark gets back what it was given, and a plan always has the same parts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.spark.staging.offsets import Offset, Offsets, Part, Share, TopicChannel
from gnsq_like.spark.staging.store import StagingError

shares = st.integers(1, 8).flatmap(
    lambda splits: st.builds(Share, st.integers(splits, 10**6), st.just(splits), st.integers(0, 10**9))
)
plans = st.dictionaries(st.text(min_size=1, max_size=3), shares, max_size=8)


@given(plans)
def test_parts_make_up_the_plan(plan: dict[str, Share]) -> None:
    parts = Offset("log", 1, plan).parts()
    assert {part.address for part in parts} == set(plan)
    for address, share in plan.items():
        own = [part for part in parts if part.address == address]
        assert [part.split for part in own] == list(range(share.splits))
        assert sum(part.messages for part in own) == share.messages
        assert all(part.messages for part in own)
        assert sum(part.bytes for part in own) >= share.bytes
        assert all(bool(part.bytes) == bool(share.bytes) for part in own)


def test_a_part_knows_its_batch() -> None:
    assert Offset("log", 7, {"a": Share(3, 2)}).parts() == [Part("log", 7, "a", 0, 2), Part("log", 7, "a", 1, 1)]


@given(plans)
def test_spark_hands_back_the_same(plan: dict[str, Share]) -> None:
    offset = Offset("log", 1, plan)
    assert Offset.from_dict(json.loads(json.dumps(offset.to_dict()))) == offset


names = st.sampled_from(["clicks", "orders.new", "a#ephemeral", "x_y-z"])
topic_channels = st.builds(TopicChannel, names, names)
offsets = st.builds(
    Offset, st.sampled_from(["one", "two"]), st.integers(0, 10**9), st.just({"a:1": Share(5, 2)}) | st.just({})
)


@given(st.dictionaries(topic_channels, offsets, max_size=4), st.integers(0, 2**60))
def test_spark_hands_back_the_same_of_several_topics(logs: dict[TopicChannel, Offset], at_us: int) -> None:
    value = json.loads(json.dumps(Offsets(logs, at_us).to_dict()))
    assert Offsets.from_dict(value) == Offsets(logs, at_us)


@given(st.dictionaries(topic_channels, offsets, max_size=4), st.dictionaries(topic_channels, offsets, max_size=4))
def test_a_batch_goes_on_with_its_logs_and_leaves_the_others(
    before: dict[TopicChannel, Offset], ends: dict[TopicChannel, Offset]
) -> None:
    end = Offsets(before, 1).after(ends, 2)
    assert end.at_us == 2
    after = end.logs
    assert set(after) == {*before, *ends}
    for of, offset in after.items():
        assert offset == ends[of] if of in ends else (offset.batch, offset.plan) == (before[of].batch, {})


def test_an_offset_of_version_1_is_that_of_the_only_topic() -> None:
    of = TopicChannel("clicks", "table")
    old = {"v": 1, "log": "x", "batch": 2, "plan": {"a:1": {"messages": 3, "splits": 1, "bytes": 0}}, "at": 5}
    assert Offsets.from_dict(old, [of]) == Offsets({of: Offset("x", 2, {"a:1": Share(3)})}, 5)
    with pytest.raises(StagingError, match="once more with that one alone"):
        Offsets.from_dict(old, [of, TopicChannel("more", "table")])


@pytest.mark.parametrize(
    "value", [{"v": 2}, {"v": 2, "logs": []}, {"v": 2, "logs": {"a/b": 3}}, {"v": 3, "logs": {}}, {}, {"v": 1}]
)
def test_anything_else_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(StagingError, match="checkpoint"):
        Offsets.from_dict(value, [TopicChannel("a", "b")])
