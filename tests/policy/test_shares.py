"""Dealing out whole numbers: to members below caps, to groups, and up to a common level."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.shares import deal, deal_to_groups, lift

CAPS = st.lists(st.integers(1, 30), min_size=1, max_size=8)
GROUPS = st.lists(CAPS, min_size=1, max_size=6)


def test_equal_shares_and_the_first_get_the_remainder() -> None:
    assert deal(11, [9, 9, 9]) == [4, 4, 3]
    assert deal(11, [2, 9, 9]) == [2, 5, 4]
    assert deal(99, [2, 3]) == [2, 3]


def test_a_common_level_from_below() -> None:
    assert lift(4, [0, 3, 1], [9, 9, 9], lambda index: index) == [3, 0, 1]
    assert lift(4, [0, 3, 1], [1, 9, 9], lambda index: -index) == [1, 0, 3]
    assert lift(-1, [0], [5], lambda index: index) == [0]


def test_groups_have_equal_parts_whatever_their_size() -> None:
    assert deal_to_groups(12, [[99], [99, 99, 99]]) == [[6], [2, 2, 2]]


def test_a_member_always_has_one() -> None:
    assert deal_to_groups(6, [[99], [99, 99, 99, 99]]) == [[2], [1, 1, 1, 1]]


@given(st.integers(0, 300), CAPS)
def test_shares_are_level_below_their_caps(amount: int, caps: list[int]) -> None:
    shares = deal(amount, caps)
    assert sum(shares) == min(amount, sum(caps))
    below = [share for share, cap in zip(shares, caps, strict=True) if share < cap]
    assert all(share <= cap for share, cap in zip(shares, caps, strict=True))
    assert max(shares) - min(below, default=max(shares)) <= 1


@given(st.integers(0, 300), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=8))
def test_none_rises_above_one_that_could_still_rise(room: int, members: list[tuple[int, int]]) -> None:
    held, wants = [each[0] for each in members], [each[1] for each in members]
    gifts = lift(room, held, wants, lambda index: index)
    assert sum(gifts) == min(room, sum(wants))
    assert all(0 <= gift <= want for gift, want in zip(gifts, wants, strict=True))
    has = [one + two for one, two in zip(held, gifts, strict=True)]
    could = [level for level, gift, want in zip(has, gifts, wants, strict=True) if gift < want]
    risen = [level for level, gift in zip(has, gifts, strict=True) if gift]
    assert max(risen, default=0) - min(could, default=max(risen, default=0)) <= 1


@given(GROUPS, st.integers(0, 300))
def test_groups_are_level_unless_their_members_or_caps_forbid_it(groups: list[list[int]], more: int) -> None:
    amount = sum(map(len, groups)) + more
    dealt = deal_to_groups(amount, groups)
    totals = [sum(shares) for shares in dealt]
    assert sum(totals) == min(amount, sum(map(sum, groups)))
    for caps, shares in zip(groups, dealt, strict=True):
        assert all(1 <= share <= cap for share, cap in zip(shares, caps, strict=True))
        below = [share for share, cap in zip(shares, caps, strict=True) if share < cap]
        assert max(shares) - min(below, default=max(shares)) <= 1
    could = sorted(total for total, caps in zip(totals, groups, strict=True) if total < sum(caps))
    free = [total for total, caps in zip(totals, groups, strict=True) if total > len(caps)]
    assert not (could and free) or max(free) - could[0] <= 1
    assert all(one <= two for one, two in pairwise(could))
