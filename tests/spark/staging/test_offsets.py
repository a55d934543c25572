"""Offsets: Spark gets back what it was given, and a plan always has the same parts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.spark.staging.errors import StagingError
from gnsq_like.spark.staging.offsets import Offset, Part, Share

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


@pytest.mark.parametrize("value", [{}, {"v": 1}, {"v": 2, "log": "x"}, {"v": 1, "log": "x", "batch": 1, "plan": [3]}])
def test_anything_else_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(StagingError, match="checkpoint"):
        Offset.from_dict(value)
