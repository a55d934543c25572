"""Quantiles from buckets, against a sorted list."""

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.runtime.quantiles import Buckets

values = st.floats(1e-3, 1e15)
all_buckets = st.builds(Buckets, growth=st.floats(1.005, 3), least=st.floats(1e-3, 10))


@given(all_buckets, st.lists(values, min_size=1, max_size=200), st.floats(0.001, 1))
def test_a_quantile_is_right_within_half_a_bucket(buckets: Buckets, measured: list[float], share: float) -> None:
    exact = sorted(measured)[max(1, math.ceil(share * len(measured))) - 1]
    found = buckets.quantile(Counter(map(buckets.index, measured)), share)
    if exact < buckets.least:
        assert found == buckets.least / 2
    else:
        assert exact / buckets.growth**0.51 <= found <= exact * buckets.growth**0.51


@given(all_buckets, st.lists(values), st.lists(values), st.floats(0.001, 1))
def test_counts_can_be_added(buckets: Buckets, one: list[float], other: list[float], share: float) -> None:
    added = Counter(map(buckets.index, one)) + Counter(map(buckets.index, other))
    assert buckets.quantile(added, share) == buckets.quantile(Counter(map(buckets.index, one + other)), share)


@given(all_buckets, values, values)
def test_buckets_keep_the_order(buckets: Buckets, one: float, other: float) -> None:
    least, most = sorted((one, other))
    assert buckets.index(least) <= buckets.index(most)
    assert buckets.middle(buckets.index(least)) <= buckets.middle(buckets.index(most))


def test_what_is_below_the_least_is_not_told_apart() -> None:
    buckets = Buckets(growth=1.05, least=0.001)
    assert buckets.index(-3.0) == buckets.index(0.0) == buckets.index(0.0009) == 0
    assert buckets.index(0.001) == 1
    assert 0 < buckets.middle(0) < 0.001 < buckets.middle(1) < 0.001 * 1.05


def test_no_values_have_the_quantile_zero() -> None:
    assert Buckets(growth=1.05, least=0.001).quantile({}, 0.5) == 0.0
