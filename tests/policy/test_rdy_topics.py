"""The RDY plan with several topics: level among them, backoff by topic, and the promises on random snapshots."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.rdy import Charge, Mode, Plan, Settings, plan
from tests.support.scale import LONG, examples

pytestmark = LONG

SETTINGS = Settings()
FLOWING, BLOCKED, PROBING = Mode.FLOWING, Mode.BLOCKED, Mode.PROBING
ALL_FLOW: Mapping[Any, Mode] = {}


def charge(topic: str, key: object, *, rdy: int = 0, in_flight: int = 0, seen: float | None = 0.0) -> Charge[Any]:
    """A connection opened long ago, whose last message came at `seen`, if any."""
    made = Charge(key, -1000.0, SETTINGS, topic=topic)
    made.rdy, made.in_flight = rdy, in_flight
    if seen is not None:
        made.turn_at = made.idle_since = made.last_message_at = seen
    return made


def connections(**counts: int) -> list[Charge[Any]]:
    return [charge(topic, f"{topic}{number}") for topic, count in counts.items() for number in range(count)]


def ask(charges: list[Charge[Any]], most: int, now: float, modes: Mapping[Any, Mode], seed: int = 1) -> Plan[Any]:
    draw = random.Random(seed).random
    return plan(charges, max_in_flight=most, now=now, modes=modes, settings=SETTINGS, draw=draw)


def apply(made: Plan[Any], charges: Iterable[Charge[Any]], now: float) -> None:
    table = {each.key: each for each in charges}
    for key, rdy in made.changes:
        table[key].sent(rdy, now)


def settle(charges: list[Charge[Any]], most: int, modes: Mapping[Any, Mode] = ALL_FLOW, seconds: float = 0.1) -> float:
    """Carry out plans for a while in which nothing else happens; returns the time then."""
    now = 0.0
    while now < seconds:
        apply(ask(charges, most, now, modes), charges, now)
        now += 0.01
    return now


def by_topic(charges: Iterable[Charge[Any]]) -> Counter[object]:
    """RDY, by topic."""
    counted: Counter[object] = Counter()
    for each in charges:
        counted[each.topic] += each.rdy
    return counted


def test_topics_have_equal_parts_whatever_their_connections() -> None:
    charges = connections(a=1, b=3)
    settle(charges, 12)
    assert [each.rdy for each in charges] == [6, 2, 2, 2]


def test_a_silent_topic_leaves_its_part_to_the_busy_ones() -> None:
    charges = connections(a=1, b=3)
    for each in charges[1:]:
        each.turn_at = each.idle_since = each.last_message_at = -60.0
        each.rdy = 1
    settle(charges, 20)
    assert charges[0].rdy >= 17


def test_no_connection_is_cut_off_for_levelness() -> None:
    charges = connections(a=1, b=5)
    settle(charges, 8)
    assert [each.rdy for each in charges] == [3, 1, 1, 1, 1, 1]


def test_with_few_seats_topics_have_equally_many() -> None:
    charges = connections(a=5, b=5)
    settle(charges, 6)
    assert by_topic(charges) == {"a": 3, "b": 3}


def test_with_fewer_seats_than_topics_each_has_one_at_most() -> None:
    charges = connections(a=5, b=5, c=1)
    settle(charges, 2)
    assert sorted(by_topic(charges).values()) == [0, 1, 1]


def test_a_blocked_topic_has_nothing_and_the_others_have_its_part() -> None:
    charges = connections(a=2, b=1, c=1)
    settle(charges, 9, {"a": BLOCKED, "b": FLOWING, "c": FLOWING})
    assert by_topic(charges) == {"a": 0, "b": 5, "c": 4} or by_topic(charges) == {"a": 0, "b": 4, "c": 5}


def test_a_topic_tests_with_one_message_beside_the_others() -> None:
    charges = connections(a=3, b=1)
    settle(charges, 10, {"a": PROBING, "b": FLOWING})
    assert by_topic(charges) == {"a": 1, "b": 9}


def test_two_topics_take_turns_on_one_seat_whatever_their_connections() -> None:
    charges = connections(a=1, b=2)
    for each, since in zip(charges, (-1.0, -3.0, -0.5), strict=True):
        each.waiting_since = since
    assert ask(charges, 1, 0.0, ALL_FLOW).changes == [("a0", 1)], "b had the seat half a second ago"
    charges[0].waiting_since = -0.4
    assert ask(charges, 1, 0.0, ALL_FLOW).changes == [("b0", 1)]


def test_a_topic_with_two_seats_gives_one_up_where_there_are_fewer_than_topics() -> None:
    charges = connections(a=2, b=1, c=1)
    for each, seen in zip(charges[:3], (0.0, -0.1, -0.2), strict=True):
        each.rdy, each.last_message_at = 1, seen
    assert ask(charges, 2, 0.0, ALL_FLOW).changes == [("a1", 0)]


@pytest.mark.parametrize("seed", range(3))
def test_a_topic_with_fewer_seats_than_before_leaves_them_to_those_at_work(seed: int) -> None:
    charges = connections(a=3, b=3)
    for each in (*charges[:3], charges[3]):
        each.rdy = 1
    charges[1].in_flight = 1
    lowered = ask(charges, 4, 0.0, ALL_FLOW, seed).changes
    assert [rdy for _, rdy in lowered if rdy == 0] == [0]
    assert ("a1", 0) not in lowered


def test_connections_at_work_take_turns_in_each_topic() -> None:
    charges = connections(a=2, b=2)
    for each in (charges[0], charges[2]):
        each.rdy, each.in_flight, each.turn_at = 1, 1, -31.0
    assert ask(charges, 2, 0.0, ALL_FLOW).changes == [("a0", 0), ("b0", 0)]


def test_one_test_message_at_a_time_in_a_topic() -> None:
    charges = connections(a=3, b=1)
    probe, free, _, other = charges
    modes = {"a": PROBING, "b": FLOWING}
    probe.rdy, other.rdy, other.in_flight, free.waiting_since = 1, 4, 4, -2000.0
    made = ask(charges, 5, 0.0, modes)
    assert made.changes == []
    assert made.next_at == pytest.approx(0.25)
    assert ask(charges, 5, 0.25, modes).changes == [("a0", 0)]
    probe.sent(0, 0.25)
    assert ask(charges, 5, 0.254, modes).changes == [], "the message may be on its way"
    assert ask(charges, 9, 0.254, modes).changes == [("b0", 8)], "with room for it, too"
    made = ask(charges, 5, 0.255, modes)
    assert made.changes == [("a1", 1)]
    assert made.next_at == pytest.approx(0.505), "when it moves on, if it gets none"
    free.in_flight = free.reserved = 1
    charges[2].waiting_since = -2000.0
    assert ask(charges, 6, 0.255, modes).changes == [("a2", 1)], "rather where no handler hangs"


def test_a_topic_that_begins_to_test_keeps_the_last_of_several_turns() -> None:
    charges = connections(a=3, b=1)
    for each, seen in zip(charges[:3], (-0.1, -0.05, -0.2), strict=True):
        each.rdy, each.turn_at = 2, seen
    made = ask(charges, 10, 0.0, {"a": PROBING, "b": FLOWING})
    assert {key: rdy for key, rdy in made.changes if key != "b0"} == {"a0": 0, "a1": 1, "a2": 0}


def test_a_topic_waits_for_the_handlers_of_its_connection_before_it_tests() -> None:
    charges = connections(a=1, b=1)
    charges[0].in_flight, charges[1].rdy = 1, 9
    assert ask(charges, 10, 0.0, {"a": PROBING, "b": FLOWING}).changes == []
    assert ask(charges, 20, 0.0, {"a": PROBING, "b": FLOWING}).changes == [("b0", 19)], "there is room for a test"


def test_a_test_that_cannot_move_yet_is_looked_at_again() -> None:
    """The end of a settling time is no event."""
    charges = connections(a=2, b=1)
    charges[0].rdy, charges[1].in_flight, charges[2].rdy = 1, 1, 8
    made = [ask(charges, 10, now, {"a": PROBING, "b": FLOWING}) for now in (0.1, 0.25, 1.0)]
    assert [each.changes for each in made] == [[], [], []]
    assert [each.next_at for each in made] == pytest.approx([0.25, 0.5, 1.25])


def test_a_topic_tests_while_another_ones_lowered_rdy_settles() -> None:
    charges = connections(a=1, b=1)
    charges[1].rdy = 3
    charges[1].sent(1, 0.0)
    assert ("a0", 1) in ask(charges, 10, 0.0, {"a": PROBING, "b": FLOWING}).changes


def test_a_test_message_may_be_handled_for_long_beside_other_topics() -> None:
    charges = connections(a=2, b=1)
    charges[0].rdy = charges[0].in_flight = 1
    charges[0].turn_at = -999.0
    assert all(key == "b0" for key, _ in ask(charges, 10, 0.0, {"a": PROBING, "b": FLOWING}).changes)


def test_a_test_that_gets_no_message_moves_on() -> None:
    charges = connections(a=3, b=1)
    charges[-1].in_flight = 1
    tested: set[object] = set()
    now = 0.0
    while now < 2.0:
        apply(ask(charges, 10, now, {"a": PROBING, "b": FLOWING}), charges, now)
        tested |= {each.key for each in charges[:3] if each.rdy}
        assert sum(each.rdy for each in charges[:3]) <= 1
        now += 0.02
    assert tested == {"a0", "a1", "a2"}


def test_silent_topics_in_backoff_do_not_take_the_places_of_the_busy() -> None:
    """100 topics that failed and then had no more messages: their tests wait for turns on the silent's few places."""
    charges = [charge(f"failed{number}", number, seen=-60.0) for number in range(100)]
    for each in charges:
        each.quiet = 60.0
    busy = charge("busy", "busy", in_flight=1)
    busy.full_at = 0.0
    settle([*charges, busy], 50, {**{f"failed{number}": PROBING for number in range(100)}, "busy": FLOWING})
    assert busy.rdy >= 42
    assert 0 < sum(each.rdy for each in charges) <= 8


@st.composite
def snapshots(draw: st.DrawFn) -> tuple[list[Charge[Any]], int, dict[str, Mode], float]:
    now = 100.0
    most = draw(st.integers(1, 40))
    left = most
    charges: list[Charge[Any]] = []
    modes = {topic: draw(st.sampled_from([FLOWING, FLOWING, BLOCKED, PROBING])) for topic in "abcde"}
    for number in range(draw(st.integers(1, 14))):
        seen = draw(st.sampled_from([None, now, now - 1, now - 40]))
        made = charge(draw(st.sampled_from("abcde")), number, seen=seen)
        rdy = draw(st.integers(0, min(left, 12)))
        if rdy:
            made.sent(rdy, now - draw(st.sampled_from([0.001, 0.5, 20])))
            made.in_flight = 0 if seen is None else draw(st.integers(0, rdy))
            if made.in_flight and draw(st.booleans()):
                made.reserve(1, 0.0)
                rdy += 1
        if draw(st.integers(0, 9)) == 0:
            made.close(now - 0.002)
        left = max(0, left - rdy)
        charges.append(made)
    return charges, most, modes, now


@examples(100)
@given(snapshots(), st.integers(0, 3))
def test_the_promises_of_one_moment(snapshot: tuple[list[Charge[Any]], int, dict[str, Mode], float], seed: int) -> None:
    charges, most, modes, now = snapshot
    before = {each.key: each.rdy for each in charges}
    charged = sum(each.cost for each in charges)
    made = ask(charges, most, now, modes, seed)
    risen = False
    for key, rdy in made.changes:
        assert rdy != before[key]
        assert not (risen and rdy < before[key]), "decreases first"
        risen = risen or rdy > before[key]
    apply(made, charges, now)
    assert sum(each.cost for each in charges) <= max(most, charged), "the window"
    for topic, mode in modes.items():
        own = [each.rdy for each in charges if each.topic == topic and not each.closing]
        assert mode is FLOWING or sum(own) <= (1 if mode is PROBING else 0)
    # Planning again comes to an end: a testing topic whose connection has just lost its seat is counted no more, which
    # may leave a seat to others.
    for _ in modes:
        again = ask(charges, most, now, modes, seed + 1)
        assert all(mode is FLOWING for mode in modes.values()) <= (again.changes == []), "planning twice"
        apply(again, charges, now)
        assert sum(each.cost for each in charges) <= max(most, charged), "the window"
    assert ask(charges, most, now, modes, seed + 2).changes == [], "the plan settles"


@examples(30)
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 6), min_size=1),
    st.integers(1, 60),
    st.integers(0, 3),
)
def test_busy_topics_become_level(counts: dict[str, int], most: int, seed: int) -> None:
    charges = connections(**counts)
    now = 0.0
    while now < 0.1:  # seed: chance decides who has the remainder, and must not disturb
        apply(ask(charges, most, now, ALL_FLOW, seed), charges, now)
        now += 0.01
    rdys = by_topic(charges)
    assert sum(rdys.values()) == most
    if most >= len(charges):
        assert all(each.rdy for each in charges)
        raised = [rdys[topic] for topic, count in counts.items() if rdys[topic] > count]
        assert max(raised, default=0) - min(rdys.values()) <= 1 or not raised
    elif most >= len(counts):
        could = [rdys[topic] for topic, count in counts.items() if rdys[topic] < count]
        assert max(rdys.values()) - min(could) <= 1
    else:
        assert set(rdys.values()) == {0, 1}
