from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.campaign import COUNTS
from tests.faults.schedule import KINDS, OURS_ONLY, Fault, make_schedule


@given(st.integers(0, 2**32), st.floats(0, 600), st.sampled_from(["ours", "real"]))
def test_a_schedule_is_in_order_ends_in_time_and_follows_from_its_seed(seed: int, seconds: float, nsq: str) -> None:
    faults = make_schedule(seed, seconds, COUNTS, nsq)
    assert faults == make_schedule(seed, seconds, COUNTS, nsq)
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    by_target: dict[tuple[str, int], list[Fault]] = defaultdict(list)
    for fault in faults:
        assert 0 <= fault.at <= fault.ends_at <= seconds
        assert 0 <= fault.lasts <= KINDS[fault.sort][fault.kind]
        assert 0 <= fault.draw < 1
        assert 0 <= fault.target < COUNTS[fault.sort]
        by_target[fault.sort, fault.target].append(fault)
    for one_by_one in by_target.values():
        assert all(before.ends_at <= after.at for before, after in zip(one_by_one, one_by_one[1:], strict=False))


def test_seeds_differ() -> None:
    assert make_schedule(1, 60, COUNTS) != make_schedule(2, 60, COUNTS)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("nsq", ["ours", "real"])
def test_two_minutes_have_every_kind_and_every_target(seed: int, nsq: str) -> None:
    faults = make_schedule(seed, 120, COUNTS, nsq)
    kinds = {(sort, kind) for sort in KINDS for kind in KINDS[sort]}
    assert {(fault.sort, fault.kind) for fault in faults} == (kinds if nsq == "ours" else kinds - OURS_ONLY)
    assert {(fault.sort, fault.target) for fault in faults} == {
        (sort, target) for sort, count in COUNTS.items() for target in range(count)
    }
