"""Turns of silent connections: examples, and the promises of any sequence of ticks."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.charge import NEVER, Charge, Settings
from gnsq_like.policy.turns import SilentTurns, count_seats, due_at, shared_round
from tests.support.scale import examples

SETTINGS = Settings()


def silent(key: object, waiting_since: float = -1.0, round_trip: float = 0.0) -> Charge[Any]:
    charge = Charge(key, waiting_since, SETTINGS, round_trip=round_trip)
    charge.turn_at = waiting_since - 0.025
    return charge


def run(turns: SilentTurns[Any], until: float) -> list[tuple[float, object, int]]:
    """(time, key, RDY) of all ticks until then."""
    log: list[tuple[float, object, int]] = []
    now: float | None = 0.0
    while now is not None and now <= until:
        for charge, rdy in turns.tick(now):
            charge.sent(rdy, now)
            log.append((now, charge.key, rdy))
        now = turns.next_at(now)
    return log


@pytest.mark.parametrize(
    ("silent_ones", "most", "seats"), [(3, 3, 3), (9, 1, 1), (30, 4, 2), (99, 15, 2), (999, 150, 6), (999, 3, 3)]
)
def test_seats(silent_ones: int, most: int, seats: int) -> None:
    assert count_seats([silent(n) for n in range(silent_ones)], most, SETTINGS, 0.0) == seats


def test_the_longest_waiting_is_next_and_a_new_connection_before_all() -> None:
    new = Charge("new", -0.1, SETTINGS)
    charges = [silent("b", -2.0), silent("a", -3.0), new]
    log = run(SilentTurns(charges, 1, shared=0.0, now=0.0, draw=random.random), 0.1)
    assert [key for _, key, rdy in log if rdy] == ["new", "a", "b", "new"]


def test_a_seat_is_free_when_rdy_0_is_in_force() -> None:
    log = run(SilentTurns([silent("a", -2.0), silent("b")], 1, shared=0.0, now=0.0, draw=random.random), 0.031)
    assert [(key, rdy) for _, key, rdy in log] == [("a", 1), ("a", 0), ("b", 1)]
    assert [when for when, _, _ in log] == pytest.approx([0.0, 0.025, 0.03])


def test_a_turn_goes_on_while_no_other_waits() -> None:
    turns = SilentTurns([silent("a"), silent("b")], 2, shared=0.0, now=0.0, draw=random.random)
    assert len(run(turns, 10.0)) == 2
    assert turns.next_at(10.0) is None


def test_only_as_many_turns_end_as_others_wait() -> None:
    charges = [silent(n, n - 4.0) for n in range(4)]
    turns = SilentTurns(charges, 3, shared=0.0, now=0.0, draw=random.random)
    assert [charge.key for charge, _ in turns.tick(0.0)] == [0, 1, 2]
    for each in charges[:3]:
        each.sent(1, 0.0)
    assert turns.tick(0.1) == [(charges[0], 0)]


def test_a_shared_seat_is_given_back_after_the_turn() -> None:
    turns = SilentTurns([silent("a", -0.6), silent("b", -0.2)], 1, shared=0.5, now=0.0, draw=random.random)
    assert [(key, rdy) for _, key, rdy in run(turns, 10.0)] == [("a", 1), ("a", 0)]
    assert turns.occupied == 0
    assert turns.next_at(0.1) is None, "the busy may have it: another plan is due"


def test_when_a_connection_on_a_shared_seat_is_due() -> None:
    for count, limit, due in ((30, 2, 0.3), (120, 2, 1.8), (10, 1, 3.55), (1, 1, 0.3)):
        a_round = shared_round([silent("a", -0.2)] * count, limit, SETTINGS)
        assert due_at(silent("a", -0.2), a_round) == pytest.approx(due)
    assert due_at(Charge("new", 0.0, SETTINGS), 100) == NEVER


def test_while_none_is_busy_each_has_a_turn_within_half_of_low_rdy_idle_timeout() -> None:
    turns = SilentTurns([silent("a", -2.0), silent("b")], 1, shared=0.0, now=0.0, draw=random.random, idle=True)
    log = run(turns, 10.0)
    assert [(key, rdy) for _, key, rdy in log] == [("a", 1), ("a", 0), ("b", 1), ("b", 0)] * 2 + [("a", 1)]
    assert 4.5 < log[4][0] < 5.0


def test_while_none_is_busy_many_turns_end_together() -> None:
    charges = [silent(n, -random.Random(n).random()) for n in range(1000)]
    for each in charges[:200]:
        each.sent(1, each.waiting_since)  # at different times
    turns = SilentTurns(charges, 200, shared=0.0, now=0.0, draw=random.random, idle=True)
    times = [when for when, _, _ in run(turns, 5.0)]
    assert len(times) > 2 * 5 * 195
    assert len(set(times)) <= 1 + 5 / 0.05


def test_a_first_turn_does_not_wait_for_others() -> None:
    """Also while none is busy: turns are short until each connection had one."""
    charges = [Charge(n, 0.0, SETTINGS) for n in range(20)]
    log = run(SilentTurns(charges, 2, shared=0.0, now=0.0, draw=random.random, idle=True), 10 * 0.03)
    assert {key for _, key, rdy in log if rdy} == set(range(20))


def test_the_room_limits_what_begins() -> None:
    turns = SilentTurns([silent(n) for n in range(5)], 3, shared=0.0, now=0.0, draw=random.random)
    assert len(turns.tick(0.0, room=2)) == 2


@examples(20)
@given(
    count=st.integers(1, 30),
    seats=st.integers(1, 5),
    round_trips=st.lists(st.sampled_from([0.0, 0.001, 0.02]), min_size=30, max_size=30),
    idle=st.booleans(),
)
def test_never_more_than_the_seats_and_everyone_within_a_round(
    count: int, seats: int, round_trips: list[float], idle: bool
) -> None:
    charges = [silent(n, -random.Random(n).random(), round_trips[n]) for n in range(count)]
    turns = SilentTurns(charges, seats, shared=0.0, now=0.0, draw=random.Random(1).random, idle=idle)
    pace = SETTINGS.pace(count, seats, idle=idle)
    spans = [max(pace, SETTINGS.silent(c.round_trip) + SETTINGS.settling(c.round_trip)) for c in charges]
    a_round = 1.5 * sum(spans) / seats + 2 * max(spans)  # longer turns may bunch on one seat
    begun: dict[object, float] = {charge.key: 0.0 for charge in charges}
    now: float | None = 0.0
    while now is not None and now < 3 * a_round:
        for charge, rdy in turns.tick(now):
            charge.sent(rdy, now)
            if rdy:
                assert now - begun[charge.key] <= a_round
                begun[charge.key] = now
        assert sum(charge.cost for charge in charges) <= seats
        now = turns.next_at(now)
    assert all(charge.turn_at >= 0 for charge in charges)
