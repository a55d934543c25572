"""How max_in_flight is dealt out, and the delays before restarts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.tools.supervisor.shares import restart_delay, share, shares

processes_ = st.integers(1, 50)


@given(st.integers(0, 5000), processes_, st.integers(0, 100))
def test_the_shares_are_even_and_add_up(total: int, processes: int, position: int) -> None:
    found = [share(total, processes, position + slot) for slot in range(processes)]
    assert max(found) - min(found) <= 1
    if total >= processes or total == 0:
        assert sum(found) == total
    else:
        assert found == [1] * processes


def test_the_remainders_of_several_readers_go_to_different_processes() -> None:
    dealt = [shares([5, 5, 5], 4, slot) for slot in range(4)]
    assert dealt == [[2, 1, 1], [1, 1, 1], [1, 1, 2], [1, 2, 1]]


@pytest.mark.parametrize(("failures", "seconds"), [(1, 0), (2, 1), (3, 2), (4, 4), (6, 16), (7, 30), (10_000, 30)])
def test_a_process_that_dies_again_and_again_waits_longer(failures: int, seconds: float) -> None:
    assert restart_delay(failures) == seconds
