"""The RDY plan for one moment, ``rdy.py`` with ``board.py``: examples, and every promise on random snapshots."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.rdy import Charge, Mode, Plan, Settings, deal, deal_to_groups, lift, plan
from tests.support.plans import check_plan
from tests.support.scale import LONG, examples

pytestmark = LONG

SETTINGS = Settings()
LONG_AGO = -1000.0


def charge(key: object, *, rdy: int = 0, in_flight: int = 0, seen: float = 0.0, **attributes: object) -> Charge[Any]:
    """A slot opened long ago whose turn began and whose last message came at `seen`."""
    made = Charge(key, LONG_AGO, SETTINGS)
    made.rdy, made.in_flight = rdy, in_flight
    made.turn_at = seen
    made.idle_since = made.last_message_at = made.full_at = seen
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def ask(
    charges: list[Charge[Any]], max_in_flight: int, now: float = 0.0, mode: Mode = Mode.FLOWING, seed: int = 1
) -> Plan[Any]:
    return plan(
        charges,
        max_in_flight=max_in_flight,
        now=now,
        modes={None: mode},
        settings=SETTINGS,
        draw=random.Random(seed).random,
    )


def changes(charges: list[Charge[Any]], max_in_flight: int, **more: object) -> dict[object, int]:
    return dict(ask(charges, max_in_flight, **more).changes)  # type: ignore[arg-type]


# --- equal shares


def test_equal_shares_with_the_remainder_dealt_out() -> None:
    got = changes([charge("a"), charge("b"), charge("c")], 11)
    assert sorted(got.values()) == [3, 4, 4]


def test_without_need_for_room_there_is_no_plan_when_lowered_rdy_has_settled() -> None:
    got = ask([charge("a", rdy=10)], 5)
    assert (got.changes, got.next_at) == ([("a", 5)], None)


def test_chance_decides_who_gets_the_remainder() -> None:
    winners = {max(got, key=got.get) for got in (changes([charge("a"), charge("b")], 3, seed=n) for n in range(20))}  # type: ignore[arg-type]
    assert winners == {"a", "b"}


def test_never_above_what_nsqd_allows_and_the_rest_goes_to_others() -> None:
    assert changes([charge("a", max_rdy=10), charge("b", max_rdy=2500)], 100) == {"a": 10, "b": 90}


def test_a_new_connection_starts_at_rdy_1_and_has_its_share_when_that_worked() -> None:
    new = Charge("new", 0.0, SETTINGS)
    first = ask([new], 10)
    assert first.changes == [("new", 1)]
    assert first.next_at == pytest.approx(0.005)
    new.sent(1, 0.0)
    assert ask([new], 10, now=0.004).changes == []
    assert ask([new], 10, now=0.005).changes == [("new", 10)]


def test_the_first_message_of_a_new_connection_brings_its_share() -> None:
    new = Charge("new", 0.0, SETTINGS)
    new.sent(1, 0.0)
    assert new.received(1, 0.001)
    assert changes([new], 10, now=0.001) == {"new": 10}


def test_a_new_connection_waits_while_the_window_is_full() -> None:
    old, new = charge("old", rdy=10, in_flight=10), Charge("new", 0.0, SETTINGS)
    asked = ask([old, new], 10)
    assert asked.changes == [("old", 9)]
    old.sent(9, 0.0)
    assert old.answered(1, 0.0), "an answer that frees something says so"
    assert changes([old, new], 10) == {"new": 1}


def test_lowering_a_connection_that_is_not_full_frees_after_the_settling_time() -> None:
    old, other = charge("old", rdy=10), charge("other")
    asked = ask([old, other], 10)
    assert asked.changes == [("old", 5)]
    assert asked.next_at == pytest.approx(0.005)
    assert asked.grows
    old.sent(5, 0.0)
    assert changes([old, other], 10, now=0.0049) == {}
    assert changes([old, other], 10, now=0.005) == {"other": 5}


def test_what_is_free_already_is_granted_at_once() -> None:
    asked = ask([charge("old", rdy=8), charge("other")], 10)
    assert asked.changes == [("old", 5), ("other", 2)]
    assert asked.grows
    assert asked.next_at == pytest.approx(0.005)


@pytest.mark.parametrize("seed", range(4))
def test_the_last_place_is_for_one_without_rdy_and_then_for_the_longest_waiting(seed: int) -> None:
    gone, holder = charge("gone", rdy=1), charge("holder", rdy=1, in_flight=1)
    gone.close(0.0)
    waiting = charge("waiting", in_flight=1)
    assert changes([gone, holder, waiting], 4, seed=seed) == {"waiting": 2}
    holder.rdy, holder.waiting_since = 0, -1.0
    assert changes([gone, holder, waiting], 4, seed=seed) == {"holder": 1, "waiting": 2}


def test_a_message_that_comes_while_settling_stays_charged() -> None:
    old, other = charge("old", rdy=10), charge("other")
    old.sent(5, 0.0)
    old.received(7, 0.004)
    assert changes([old, other], 10, now=0.005) == {"other": 3}


def test_nobody_lends_when_all_are_idle() -> None:
    assert changes([charge("a", rdy=50, seen=-99.0), charge("b", rdy=50, seen=-99.0)], 100) == {}


def test_a_connection_with_a_running_handler_is_not_idle() -> None:
    assert changes([charge("a", rdy=50, seen=-99.0, in_flight=1), charge("b", rdy=50)], 100) == {}


@pytest.mark.parametrize("max_in_flight", [2, 100])
def test_the_time_of_lending_is_announced(max_in_flight: int) -> None:
    half = max_in_flight // 2
    both = [charge("a", rdy=half, seen=-4.0), charge("b", rdy=half, in_flight=1)]
    assert ask(both, max_in_flight).next_at == pytest.approx(6.0)


# --- silent connections beside busy ones


def silent(key: object, *, rdy: int = 0, since: float = -20.0, round_trip: float = 0.0) -> Charge[Any]:
    """A connection without a message for ten seconds of RDY 1, that has waited for its next turn since ``since``."""
    made = charge(key, rdy=rdy, seen=-40.0, quiet=10.0, waiting_since=since, turn_at=since - 0.025)
    made.round_trip = round_trip
    return made


def test_silent_connections_keep_1_each_where_that_is_cheap() -> None:
    asked = changes([charge("busy", rdy=20, in_flight=20), silent("a"), silent("b"), silent("c")], 20)
    assert asked == {"busy": 17}


def test_many_silent_connections_take_turns_on_few_seats() -> None:
    """A round of 99 turns of 33 ms takes 1.7 seconds on two seats; the busy one has the rest."""
    others = [silent(n) for n in range(99)]
    assert changes([charge("busy", rdy=100, in_flight=94), *others], 100) == {"busy": 98}
    got = changes([charge("busy", rdy=98, in_flight=94), *others], 100)
    assert sorted(got.values()) == [1] * 2


def test_first_turns_do_not_wait_for_the_pace() -> None:
    """A round of 99 turns of 30 ms in half a second takes 6 seats."""
    others = [Charge(n, -1.0, SETTINGS) for n in range(99)]
    asked = ask([charge("busy", rdy=94, in_flight=94), *others], 100)
    assert sorted(rdy for _, rdy in asked.changes) == [1] * 6
    for key, rdy in asked.changes:
        others[int(str(key))].sent(rdy, 0.0)
    assert asked.turns is not None
    assert asked.turns.next_at(0.0) == pytest.approx(0.025)


def test_while_busy_ones_do_not_use_all_their_rdy_each_silent_one_keeps_1() -> None:
    others = [silent(n) for n in range(99)]
    asked = ask([charge("busy", rdy=198, in_flight=3, full_at=-9.0), *others], 200)
    assert [rdy for _, rdy in asked.changes] == [1] * 2
    assert asked.next_at == pytest.approx(1.0), "when it is hungry no longer"
    fed = charge("busy", rdy=200, in_flight=3, full_at=-10.0)
    asked = ask([fed, *others], 200)
    assert asked.changes == [("busy", 101)]
    fed.sent(101, 0.0)
    asked = ask([fed, *others], 200, now=0.006)
    assert sorted(rdy for _, rdy in asked.changes) == [1] * 99
    assert asked.turns is not None
    for key, rdy in asked.changes:
        others[int(str(key))].sent(rdy, 0.006)
    assert asked.turns.next_at(0.006) is None, "nobody waits for a turn"


def test_with_too_few_places_for_that_half_of_them_are_seats() -> None:
    fed = [charge(f"busy {n}", rdy=5, full_at=-20.0) for n in range(10)]
    others = [silent(n) for n in range(90)]
    got = changes([*fed, *others], 50)
    assert sum(got.get(each.key, each.rdy) for each in fed) == 25
    got = changes([*[charge(f"busy {n}", rdy=2, full_at=-20.0) for n in range(15)], *others], 50)
    assert sum(got.values()) == len(got) == 20
    assert not any(str(key).startswith("busy") for key in got), "busy ones keep 2 each"


def test_places_that_slow_handlers_hold_are_not_given_to_the_silent() -> None:
    others = [silent(n) for n in range(9)]
    assert changes([charge("busy", rdy=9, in_flight=5, full_at=-20.0), *others], 10).get("busy") is None
    assert changes([charge("busy", rdy=9, in_flight=4, full_at=-20.0), *others], 10)["busy"] == 5
    assert changes([charge("busy", rdy=9, in_flight=5, reserved=1, full_at=-20.0), *others], 10)["busy"] == 5


def test_places_that_slow_handlers_hold_are_a_connections_own_again_without_room() -> None:
    """Its share was less while another was busy: no handler ends that could make room."""
    others = [silent("turn", rdy=1), *[silent(n) for n in range(8)]]
    assert changes([charge("busy", rdy=5, in_flight=9), *others], 10).get("busy") == 9
    assert changes([charge("busy", rdy=5, in_flight=10), *others], 10).get("busy") is None


def test_the_message_that_fills_a_connection_makes_it_hungry() -> None:
    fed = charge("busy", rdy=10, in_flight=8, full_at=-20.0)
    assert not fed.received(1, 0.0)
    assert not fed.is_hungry(0.0)
    assert fed.received(1, 0.0), "plan"
    assert fed.is_hungry(9.9)
    assert not fed.is_hungry(10.0)
    fed.answered(1, 1.0)
    assert fed.is_hungry(10.9), "it was full until then"
    assert not fed.received(1, 2.0), "no other plan while it stays full"
    assert fed.is_hungry(11.9)


def test_one_message_after_a_silence_makes_no_connection_hungry() -> None:
    quiet = silent("quiet", rdy=1)
    assert quiet.received(1, 0.0)
    quiet.answered(1, 0.0)
    assert not quiet.is_hungry(0.0)


def test_their_seats_are_at_most_15_percent() -> None:
    others = [silent(n, round_trip=0.1) for n in range(99)]
    assert changes([charge("busy", rdy=20, in_flight=17), *others], 20)["busy"] == 17


def test_the_turn_of_a_silent_connection_is_short_and_the_longest_waiting_is_next() -> None:
    busy = charge("busy", rdy=9, in_flight=9)
    holder, early, late = silent("holder", rdy=1), silent("early", since=-2.0), silent("late", since=-1.0)
    holder.turn_at = 0.0
    asked = ask([busy, holder, late, early], 10, now=0.02)
    assert asked.changes == []
    assert asked.turns is not None
    assert asked.turns.next_at(0.02) == pytest.approx(0.025)
    assert changes([busy, holder, late, early], 10, now=0.025) == {"holder": 0}
    holder.sent(0, 0.025)
    assert changes([busy, holder, late, early], 10, now=0.029) == {}, "the seat is free when RDY 0 is in force"
    assert changes([busy, holder, late, early], 10, now=0.031) == {"early": 1}


def test_a_connection_that_never_had_a_turn_is_next() -> None:
    busy, waiting, new = charge("busy", rdy=9, in_flight=9), silent("waiting"), Charge("new", 0.0, SETTINGS)
    assert changes([busy, waiting, new], 10) == {"new": 1}


def test_the_turn_is_one_and_a_half_round_trips_at_least() -> None:
    busy, holder, other = charge("busy", rdy=9, in_flight=9), silent("h", rdy=1, round_trip=0.1), silent("o")
    holder.turn_at = 0.0
    assert changes([busy, holder, other], 10, now=0.149) == {}
    assert changes([busy, holder, other], 10, now=0.151) == {"h": 0}


def test_a_message_makes_a_silent_connection_busy() -> None:
    busy, holder, other = charge("busy", rdy=9, in_flight=9), silent("holder", rdy=1), silent("other")
    assert holder.received(1, 0.0)
    assert changes([busy, holder, other], 10) == {"busy": 5}
    assert not holder.is_silent(0.0)


@pytest.mark.parametrize(("max_in_flight", "rest"), [(2, 1), (4, 3), (6, 5)])
def test_where_one_seat_is_a_large_part_it_is_theirs_for_a_turn_in_each_round(max_in_flight: int, rest: int) -> None:
    busy = charge("busy", rdy=max_in_flight, in_flight=rest, max_rdy=2500)
    holder, other = silent("holder", since=-0.4), silent("other", since=-0.3)
    asked = ask([busy, holder, other], max_in_flight)
    assert asked.changes == []
    assert asked.next_at == pytest.approx(0.1)
    assert changes([busy, holder, other], max_in_flight, now=0.1) == {"busy": rest}
    busy.sent(rest, 0.1)
    asked = ask([busy, holder, other], max_in_flight, now=0.106)
    assert asked.changes == [("holder", 1)]
    holder.sent(1, 0.106)
    assert changes([busy, holder, other], max_in_flight, now=0.132) == {"holder": 0}
    assert asked.turns is not None
    assert asked.turns.tick(0.132) == [(holder, 0)]
    assert asked.turns.tick(0.138) == [], "the other one is not due yet"
    holder.sent(0, 0.132)
    assert changes([busy, holder, other], max_in_flight, now=0.138) == {"busy": max_in_flight}


def test_time_at_rdy_0_is_no_silence() -> None:
    waiting = charge("waiting", seen=-99.0, waiting_since=-98.0)
    assert not waiting.is_silent(0.0)
    waiting.sent(1, 0.0)
    assert not waiting.is_silent(9.9)
    assert waiting.silent_at(9.5) == pytest.approx(10.0)
    assert waiting.is_silent(10.0)


def test_silence_adds_up_over_turns_and_a_message_ends_it() -> None:
    held = charge("held", rdy=1, seen=0.0)
    held.sent(0, 6.0)
    held.sent(1, 100.0)
    assert not held.is_silent(103.9)
    assert held.is_silent(104.0)
    held.received(1, 104.0)
    held.answered(1, 104.0)
    assert not held.is_silent(113.9)


def test_lower_rdy_prolongs_no_silence() -> None:
    held = charge("held", rdy=5, seen=0.0)
    held.sent(2, 6.0)
    assert not held.is_silent(9.9)
    assert held.is_silent(10.0)


def test_many_short_turns_are_no_long_silence() -> None:
    held = charge("held", seen=-1.0)
    for number in range(50):
        held.sent(1, number)
        held.sent(0, number + 0.03)
    assert not held.is_silent(50.0)


def test_time_in_which_the_process_stood_still_is_no_silence() -> None:
    held = charge("held", rdy=1, seen=0.0)
    held.excuse(8.0, 12.0)
    assert not held.is_silent(17.9)
    assert held.is_silent(18.0)


# --- more in flight than max_in_flight


def test_after_lowering_no_answer_brings_another_message() -> None:
    four = [charge(n, rdy=5, in_flight=5) for n in range(4)]
    assert changes(four, 3) == {0: 0, 1: 0, 2: 0, 3: 0}


def test_rdy_is_what_would_be_left_if_the_whole_excess_were_answered_there() -> None:
    late, other = charge("late", rdy=2, in_flight=3), charge("other", rdy=2, in_flight=2)
    assert changes([late, other], 4) == {"other": 1}


def test_late_messages_take_rdy_that_others_do_not_use() -> None:
    assert changes([charge("late", rdy=5, in_flight=8), charge("other", rdy=5)], 10) == {"other": 2}


def test_while_places_are_exceeded_a_holder_keeps_rdy_1_only_if_it_brings_nothing() -> None:
    """Not even if all of the excess is answered there."""
    for at_work, expected in ((1, {"holder": 0}), (2, {})):
        holder, answers = charge("holder", rdy=1, in_flight=at_work), charge("answers", in_flight=3 - at_work)
        assert changes([holder, answers, charge("waiting")], 2) == expected


def test_holders_without_a_message_have_no_more_seats_than_there_are_places_left() -> None:
    for at_work, expected in ((1, 1), (2, 2)):
        holders = [charge(n, rdy=1) for n in range(2)]
        assert list(changes([*holders, charge("at work", in_flight=at_work)], 2).values()) == [0] * expected


# --- a handler past its deadline


def test_an_overdue_handler_keeps_its_slot() -> None:
    late = charge("late", rdy=3, in_flight=3)
    late.reserve(1, 0.0)
    assert late.rdy == 2
    assert changes([late], 3) == {}
    late.answered(2, 1.0)
    assert late.cost == 3
    assert changes([late], 3, now=1.0) == {}
    assert late.answered(1, 2.0, reserved=1)
    assert changes([late], 3, now=2.0) == {"late": 3}


def test_an_overdue_handler_at_max_in_flight_1_stops_everything() -> None:
    late, other = charge("late", rdy=1, in_flight=1), charge("other")
    late.reserve(1, 0.0)
    assert late.rdy == 0
    assert changes([late, other], 1) == {}
    assert changes([late, other], 1, now=100.0) == {}
    late.answered(1, 101.0, reserved=1)
    assert changes([late, other], 1, now=101.0) == {"other": 1}


def test_what_hung_handlers_leave_is_shared_by_all() -> None:
    late, *others = (charge(name, rdy=10) for name in "abc")
    late.in_flight = 10
    late.reserve(10, 0.0)
    got = changes([late, *others], 30)
    assert set(got) == {"b", "c"}, "there is room for its own when these have settled"
    for each, rdy in zip(others, sorted(got.values()), strict=True):
        each.sent(rdy, 0.0)
    assert sorted([*got.values(), *changes([late, *others], 30, now=0.006).values()]) == [6, 7, 7]


def test_where_others_are_full_one_with_hung_handlers_gets_its_share_as_they_answer() -> None:
    late, busy = charge("late", rdy=4, in_flight=4), charge("busy", rdy=4, in_flight=4)
    late.reserve(4, 0.0)
    assert changes([late, busy], 8) == {"busy": 2}
    busy.sent(2, 0.0)
    for expected in (1, 2):
        assert busy.answered(1, 1.0)
        assert changes([late, busy], 8, now=1.0) == {"late": expected}
        late.sent(expected, 1.0)
    assert not busy.answered(1, 1.0), "what is within RDY frees nothing"


def test_a_connection_with_nothing_but_hung_handlers_lends_like_an_idle_one() -> None:
    late, busy = charge("late", rdy=8, in_flight=2, seen=-20.0), charge("busy", rdy=8, in_flight=8)
    late.reserve(2, 0.0)
    assert changes([late, busy], 16) == {"late": 1}


def test_handlers_of_a_lost_connection_leave_its_successor_a_share() -> None:
    gone, other, again = charge("gone", rdy=5, in_flight=5), charge("other", rdy=5), Charge("again", 0.0, SETTINGS)
    gone.lost(0.0)
    assert changes([gone, other, again], 10) == {"other": 4}
    other.sent(4, 0.0)
    assert changes([gone, other, again], 10, now=0.005) == {"again": 1}
    again.sent(1, 0.005)
    again.received(1, 0.006)
    assert changes([gone, other, again], 10, now=0.006) == {"other": 3}


def test_where_hung_handlers_leave_less_than_one_each_they_take_turns() -> None:
    late, b, c = charge("late", in_flight=1, reserved=1), charge("b", rdy=1, seen=-0.1), charge("c", rdy=1, seen=-2.0)
    assert changes([late, b, c], 3) == {"c": 0}
    c.sent(0, 0.0)
    assert changes([late, b, c], 3, now=0.004) == {}
    assert changes([late, b, c], 3, now=0.005) == {"late": 1}


# --- turns


def test_one_slot_each_and_the_longest_waiting_first() -> None:
    charges = [charge(name, waiting_since=since) for name, since in (("a", -1.0), ("b", -3.0), ("c", -2.0))]
    assert changes(charges, 2) == {"b": 1, "c": 1}


def test_ties_are_broken_by_chance() -> None:
    first = {next(iter(changes([charge("a"), charge("b"), charge("c")], 1, seed=n))) for n in range(30)}
    assert first == {"a", "b", "c"}


def test_a_silent_holder_gives_up_after_the_probe_timeout_while_there_is_traffic() -> None:
    holder, other = charge("holder", rdy=1, seen=-0.24), charge("other", seen=-20.0)
    asked = ask([holder, other], 1)
    assert asked.changes == []
    assert asked.next_at == pytest.approx(0.01)
    assert changes([holder, other], 1, now=0.0100001) == {"holder": 0}


def test_the_probe_timeout_is_at_least_four_round_trips() -> None:
    holder, other = charge("holder", rdy=1, seen=-0.5, round_trip=0.2), charge("other", seen=-20.0)
    assert changes([holder, other], 1) == {}
    assert changes([holder, other], 1, now=0.31) == {"holder": 0}


def test_silent_connections_alone_have_long_turns_too() -> None:
    four = [silent(n, rdy=int(n < 2), since=0.0) for n in range(4)]
    asked = ask(four, 2)
    assert asked.turns is not None
    assert asked.turns.next_at(0.0) == pytest.approx(2.5, abs=0.2)


def test_a_turn_that_goes_on_because_an_answer_will_free_a_seat_is_looked_at_again() -> None:
    """The answer may take longer than one waits for it, which is no event."""
    holder, slow = charge("holder", rdy=1, seen=-1.0), charge("slow", in_flight=1, waiting_since=-2.0)
    for now, again_at in ((-0.75, -0.5), (0.0, 0.25)):
        asked = ask([holder, slow, charge("other")], 2, now=now)
        assert asked.changes == []
        assert asked.next_at == pytest.approx(again_at)


def test_a_busy_holder_gives_up_after_low_rdy_timeout_and_is_charged_until_then() -> None:
    holder, other = charge("holder", rdy=1, in_flight=1, turn_at=-30.0), charge("other")
    assert changes([holder, other], 1) == {"holder": 0}
    holder.sent(0, 0.0)
    assert changes([holder, other], 1, now=5.0) == {}
    assert holder.answered(1, 5.0)
    assert changes([holder, other], 1, now=5.0) == {"other": 1}


def test_a_busy_holder_within_its_slice_stays() -> None:
    assert changes([charge("holder", rdy=1, in_flight=1, turn_at=-0.9), charge("other")], 1) == {}


def test_slices_are_shorter_with_many_connections_for_a_seat() -> None:
    for count, lasts in ((10, 1.0), (20, 0.5), (100, 0.1), (300, 0.1)):
        others = [charge(n, in_flight=1, reserved=1) for n in range(count - 1)]
        holder = charge("holder", rdy=1, in_flight=1, turn_at=0.01 - lasts)
        asked = ask([holder, *others], count)
        assert asked.changes == []
        assert asked.next_at == pytest.approx(0.01)
        assert changes([holder, *others], count, now=0.0101) == {"holder": 0}


def test_a_slow_message_is_not_waited_for() -> None:
    holder, other = charge("holder", rdy=1, in_flight=1, turn_at=-1.0), charge("other")
    slow = charge("slow", in_flight=1)
    assert changes([slow, holder, other], 2) == {}, "its answer makes room for the other one"
    slow.reserve(1, 0.0, slow=1)
    assert changes([slow, holder, other], 2) == {"holder": 0}


def test_only_as_many_give_up_as_others_wait() -> None:
    holders = [charge(n, rdy=1, in_flight=1, turn_at=-31.0 - n) for n in range(5)]
    assert changes([*holders, charge("other")], 5) == {4: 0}
    holders[4].sent(0, 0.0)
    assert changes([*holders, charge("other")], 5, now=1.0) == {}, "the slot under way is enough"


def test_a_holder_without_a_message_gives_up_before_one_at_work() -> None:
    at_work, idle = charge("at work", rdy=1, in_flight=1, turn_at=-60.0), charge("idle", rdy=1, seen=-0.3)
    assert changes([at_work, idle, charge("other")], 2) == {"idle": 0}
    at_work.turn_at, at_work.waiting_since = -1.0, -2.0
    assert changes([at_work, idle, charge("other")], 2) == {"idle": 0}, "the answer there will free no seat"


def test_fewer_seats_than_before_leave_those_at_work_their_rdy() -> None:
    charges = [charge(n, rdy=2, in_flight=int(n == 2)) for n in range(4)]
    assert changes(charges, 1) == {0: 0, 1: 0, 2: 1, 3: 0}


# --- modes


def test_a_probe_without_a_message_moves_to_the_longest_waiting() -> None:
    probe, b, c = charge("probe", rdy=1, seen=-0.25), charge("b", waiting_since=-1.0), charge("c", waiting_since=-2.0)
    assert changes([probe, b, c], 50, mode=Mode.PROBING) == {"probe": 0}
    probe.sent(0, 0.0)
    assert changes([probe, b, c], 50, mode=Mode.PROBING, now=0.004) == {}, "one test message at a time"
    assert changes([probe, b, c], 50, mode=Mode.PROBING, now=0.005) == {"c": 1}


def test_a_probe_moves_on_although_handlers_run_elsewhere() -> None:
    probe, at_work = charge("probe", rdy=1, seen=-0.25), charge("at work", in_flight=1, waiting_since=-1.0)
    assert changes([probe, at_work, charge("b")], 50, mode=Mode.PROBING) == {"probe": 0}


def test_a_probe_with_its_message_stays_however_long_it_takes() -> None:
    probe = charge("probe", rdy=1, seen=-999.0, in_flight=1)
    assert changes([probe, charge("b")], 50, mode=Mode.PROBING) == {}


def test_the_only_connection_tests_without_further_plans() -> None:
    assert ask([charge("probe", rdy=1)], 50, mode=Mode.PROBING) == Plan()


def test_a_probe_may_go_beside_an_overdue_handler() -> None:
    late = charge("late", in_flight=1, reserved=1)
    assert changes([late], 10, mode=Mode.PROBING) == {"late": 1}
    late.sent(1, 0.0)
    assert changes([late], 10, mode=Mode.PROBING, now=9.0) == {}
    late.received(1, 9.0)
    assert changes([late], 10, mode=Mode.PROBING, now=9.0) == {}, "two in flight, one of them for nsqd"
    assert late.cost == 2


def test_a_probe_whose_test_message_is_overdue_has_the_next_one_while_there_is_room() -> None:
    for max_in_flight, expected in ((1, {}), (2, {"late": 1})):
        late = charge("late", rdy=1, in_flight=1)
        late.reserve(1, 0.0)
        assert changes([late], max_in_flight, mode=Mode.PROBING) == expected


def test_a_probe_prefers_nothing_in_flight_among_those_that_waited_as_long() -> None:
    for seed in range(10):
        late, free = charge("late", in_flight=1, reserved=1), charge("free")
        late.waiting_since = free.waiting_since = -1.0
        assert changes([late, free], 10, mode=Mode.PROBING, seed=seed) == {"free": 1}
        late.waiting_since = -2.0
        assert changes([late, free], 10, mode=Mode.PROBING, seed=seed) == {"late": 1}


def test_a_probe_beside_an_overdue_handler_moves_on_like_any_other() -> None:
    late, free = charge("late", rdy=1, in_flight=1, reserved=1, seen=-0.25), charge("free")
    assert changes([late, free], 10, mode=Mode.PROBING) == {"late": 0}
    late.sent(0, 0.0)
    assert changes([late, free], 10, mode=Mode.PROBING, now=0.004) == {}
    assert changes([late, free], 10, mode=Mode.PROBING, now=0.005) == {"free": 1}


# --- every promise, on snapshots nobody would think of


@st.composite
def snapshots(draw: st.DrawFn) -> tuple[list[Charge[Any]], int, Mode, int]:
    """Slots as events could have left them, or worse; times around 0."""
    rng = random.Random(draw(st.integers(0, 1 << 48)))
    count = draw(st.integers(0, 12))
    charges = []
    for key in range(count):
        made = Charge(key, -rng.choice([0.0, 0.003, 1.0, 40.0]), SETTINGS)
        made.max_rdy = rng.choice([1, 3, 2500])
        made.round_trip = rng.choice([0.0, 0.0002, 0.05])
        if rng.random() < 0.8:
            made.turn_at = -rng.choice([0.0, 0.002, 0.1, 9.0, 29.0, 31.0])
            made.rdy = min(made.max_rdy, rng.choice([0, 0, 1, 1, 2, 7, 100]))
        made.in_flight = rng.choice([0, 0, 0, 1, 2, 6, 120])
        made.reserved = rng.randint(0, made.in_flight) if rng.random() < 0.2 else 0
        made.idle_since = max(made.turn_at, made.idle_since) - rng.choice([0.0, 0.1, 0.26, 11.0])
        if made.in_flight or rng.random() < 0.6:
            made.last_message_at = made.idle_since
        if rng.random() < 0.3:
            made.coming = rng.randint(0, 5)
            made.settled_at = rng.choice([-0.01, 0.002, 0.05])
        made.closing = rng.random() < 0.1
        if made.closing:
            made.rdy = 0
        charges.append(made)
    max_in_flight = draw(st.integers(0, 16) | st.sampled_from([50, 300, 5000]))
    return charges, max_in_flight, draw(st.sampled_from([Mode.FLOWING, Mode.FLOWING, *Mode])), draw(st.integers(0, 99))


@examples(60)
@given(snapshots())
def test_every_promise_on_random_snapshots(snapshot: tuple[list[Charge[Any]], int, Mode, int]) -> None:
    charges, max_in_flight, mode, seed = snapshot
    check_plan(charges, max_in_flight=max_in_flight, now=0.0, mode=mode, settings=SETTINGS, rng=random.Random(seed))


@examples(5)
@given(snapshots())
def test_when_all_but_hung_handlers_answered_what_they_leave_is_used(
    snapshot: tuple[list[Charge[Any]], int, Mode, int],
) -> None:
    charges, max_in_flight, _, seed = snapshot
    for each in charges:
        each.in_flight = each.reserved
        each.coming = 0
        each.last_message_at = each.idle_since = -1.0
    open_slots = [each for each in charges if not each.closing]
    limit = max_in_flight - sum(each.reserved for each in charges)
    now, used = 0.0, []
    for _ in range(8):
        asked = check_plan(
            charges, max_in_flight=max_in_flight, now=now, mode=Mode.FLOWING, settings=SETTINGS, rng=random.Random(seed)
        )
        used.append(sum(each.rdy for each in open_slots))
        now = min(now + 0.11, asked.next_at or now + 0.11)
    if len(open_slots) <= limit:  # else they take turns, and check_plan looks whether a seat is empty for nothing
        assert max(used) == min(limit, sum(each.max_rdy for each in open_slots))
        assert all(each.rdy for each in open_slots)


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
