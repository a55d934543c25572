"""A limit of messages a second: examples, and every promise on random snapshots."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.charge import Charge, Settings
from gnsq_like.policy.rate_limit import BURST, COMMANDS, RateLimit, within_tokens
from gnsq_like.policy.rdy import Plan, plan
from tests.support.plans import check_limited
from tests.support.scale import examples

# -- tokens -----------------------------------------------------------------------------------------


def test_tokens_come_at_the_rate_up_to_those_of_a_second():
    limit = RateLimit(10, 100.0)
    assert limit.tokens(100.0) == 1
    assert limit.tokens(100.5) == 6
    assert limit.tokens(200.0) == limit.capacity == 10 * BURST + 1
    limit.take(13, 200.0)
    assert limit.tokens(200.0) == -2
    assert limit.when(1, 200.0) == pytest.approx(200.3)
    assert limit.when(100, 200.0) == pytest.approx(201.3)  # when they are as many as they become
    assert limit.when(-5, 200.0) == 200.0


def test_another_rate_begins_with_the_tokens_that_there_are():
    limit = RateLimit(10, 0.0)
    limit.change(2, 0.5)
    assert limit.tokens(0.5) == limit.capacity == 3
    limit.change(100, 0.5)
    assert limit.tokens(0.6) == pytest.approx(13)


def test_raises_are_spread_evenly_over_the_second():
    """Not one after the other until the commands of a second have been used."""
    limit, times = RateLimit(1000, 0.0), [0.0]
    for _ in range(30):
        limit.sent(True, times[-1])
        limit.sent(False, times[-1] + 0.01)
        times.append(limit.next_raise_at(0, times[-1] + 0.01))
    assert {round(later - earlier, 6) for earlier, later in zip(times, times[1:], strict=False)} == {round(2 / 18, 6)}


def test_a_raise_leaves_enough_of_a_seconds_commands_to_lower_all_holders():
    limit = RateLimit(1000, 0.0)
    for number in range(COMMANDS):
        limit.sent(False, number / 100)
    for holders, oldest in ((0, 1), (3, 4), (7, 8), (100, 9)):
        assert limit.next_raise_at(holders, 0.2) == pytest.approx(oldest / 100 + 1.001)


def test_a_raise_waits_if_only_one_of_a_seconds_commands_is_left():
    """It would be followed by RDY 0."""
    limit = RateLimit(1000, 0.0)
    for number in range(COMMANDS - 2):
        limit.sent(False, number / 100)
    assert limit.next_raise_at(0, 0.5) < 0.5
    limit.sent(False, 0.2)
    assert limit.next_raise_at(0, 0.5) == pytest.approx(1.001)


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 5)), max_size=12), st.floats(0.1, 1000))
def test_no_more_are_taken_in_any_time_than_rate_and_burst_allow(steps, rate):
    limit, now, taken = RateLimit(rate, 0.0), 0.0, []
    for pause, count in steps:
        now += pause
        count = min(count, int(limit.tokens(now)))
        if count > 0:
            limit.take(count, now)
            taken.append((now, count))
    for index, (began, _) in enumerate(taken):
        for end, _ in taken[index:]:
            total = sum(count for at, count in taken if began <= at <= end)
            assert total <= limit.capacity + rate * (end - began) + 1e-6


# -- one moment -------------------------------------------------------------------------------------


def random_charges(rng: random.Random) -> list[Charge[Any]]:
    """Connections after some seconds of whatever may happen to them, until 80.0 at most."""
    made = []
    for number in range(rng.randint(1, 6)):
        charge = Charge(number, 0.0, Settings(), max_rdy=rng.choice([5, 2500]))
        now = 20 * rng.random()
        for _ in range(rng.randint(0, 5)):
            now += rng.choice([0.0, 0.001, 0.3, 11.0])
            step = rng.randint(0, 4)
            if step < 2:
                charge.sent(rng.randint(0, min(charge.max_rdy, 20)), now)
            elif step == 2 and charge.rdy > charge.in_time:
                charge.received(rng.randint(1, charge.rdy - charge.in_time), now)
            elif step == 3 and charge.in_time:
                charge.answered(rng.randint(1, charge.in_time), now)
            elif charge.in_time:
                charge.reserve(1, 0.0)
        if rng.random() < 0.1:
            charge.close(now)
        made.append(charge)
    return made


@given(st.integers(0, 2**32))
@examples(3)
def test_the_promises_of_one_moment(seed):
    """Those that `check_limited` checks, also after plans before."""
    rng, now = random.Random(seed), 80.0
    charges = random_charges(rng)
    limit = RateLimit(10 ** rng.uniform(-1, 3.7), now - 1)
    limit.take(rng.randint(-20, 100), now)
    max_in_flight = rng.randint(0, 60)
    for _ in range(3):
        check_limited(charges, limit, max_in_flight=max_in_flight, now=now, settings=Settings(), rng=rng)
        now += 3 * rng.random()


def test_answers_that_the_tokens_do_not_cover_are_seen_before():
    limit = RateLimit(1, 0.0)
    charge, other = Charge("one", 0.0, Settings()), Charge("other", 0.0, Settings())
    charge.sent(2, 0.0)
    charge.received(2, 0.0)
    assert not limit.overdraws([charge, other], charge, 1, 0.0)
    assert limit.overdraws([charge, other], charge, 2, 0.0)
    other.sent(1, 0.0)
    assert limit.overdraws([charge, other], charge, 1, 0.0)
    assert not limit.overdraws([charge, other], charge, 1, 1.0)
    charge.sent(0, 0.0)
    assert not limit.overdraws([charge, other], charge, 2, 0.0)  # RDY 0: none follows


# -- examples of one moment -------------------------------------------------------------------------

SETTINGS = Settings()
NOW = 100.0
SETTLED = NOW + SETTINGS.settle_minimum


def busy(key: object, *, rdy: int = 0, in_flight: int = 0, **attributes: object) -> Charge[Any]:
    """A connection whose turn and last message were a moment ago."""
    made = Charge(key, 0.0, SETTINGS)
    made.rdy, made.in_flight = rdy, in_flight
    made.turn_at = made.idle_since = made.last_message_at = NOW
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def silent(key: object, *, rdy: int = 0, since: float = NOW - 5.0) -> Charge[Any]:
    """A connection that never delivered a message; its turn began, or it has waited, since then."""
    made = Charge(key, since, SETTINGS)
    made.rdy, made.turn_at = rdy, since
    return made


def ask(*charges: Charge[Any], tokens: float = 50.0, rate: float = 100.0, max_in_flight: int = 10) -> Plan[Any]:
    limit = RateLimit(rate, NOW)
    limit.take(1 - tokens, NOW)  # type: ignore[arg-type]
    return limited(charges, limit, max_in_flight)


def limited(charges: Sequence[Charge[Any]], limit: RateLimit, max_in_flight: int, now: float = NOW) -> Plan[Any]:
    draw = random.Random(1).random
    tokens = int(limit.capacity)
    made = plan(charges, max_in_flight=max_in_flight, now=now, modes={}, settings=SETTINGS, draw=draw, tokens=tokens)
    return within_tokens(made, charges, limit, now=now, settings=SETTINGS, draw=draw)


def test_overdue_handlers_and_closed_connections_keep_their_places():
    gone, late = busy("gone", in_flight=3), busy("late", in_flight=3, reserved=3)
    gone.closing = True
    assert ask(gone, late, busy("free", waiting_since=-1.0)).changes == [("free", 2)]
    late.rdy = 2
    assert ask(gone, late, max_in_flight=6).changes == [("late", 0)]


def test_busy_connections_share_what_the_silent_leave():
    assert ask(busy("one"), busy("other", rdy=3), silent("a", rdy=1), silent("b", rdy=1)).changes == [("one", 4)]
    assert ask(busy("one"), busy("other", rdy=1), busy("third"), max_in_flight=2).changes[0][1] == 1


def test_a_raise_is_for_half_of_the_tokens_that_no_other_connection_may_use():
    """Whose answer to a single message then leaves enough of them."""
    assert ask(busy("one", rdy=2), tokens=6.9).changes == [("one", 4)]
    assert ask(busy("one", rdy=2, in_flight=2), tokens=6.9).changes == [("one", 5)]
    assert ask(busy("one"), busy("other", rdy=3, in_flight=1), tokens=5.9).changes == [("one", 2)]
    assert ask(busy("one", rdy=4), tokens=11.9).changes == [("one", 8)]
    assert ask(busy("one", rdy=4), tokens=10.9).changes == [], "less than twice as many are not worth a command"
    assert ask(busy("one", rdy=9), tokens=10.9).changes == [("one", 10)], "unless that is its goal"


def test_rdy_is_taken_back_where_tokens_are_too_few_the_largest_exposure_first():
    assert ask(busy("one", rdy=1), tokens=0.9).changes == [("one", 0)]
    assert ask(busy("one", rdy=5), busy("other", rdy=3), tokens=3.0).changes == [("one", 0)]
    assert ask(busy("one", rdy=5, in_flight=4), busy("other", rdy=3), tokens=1.0).changes == [("other", 0)]


def test_decreases_of_the_plan_come_alone_and_are_always_sent():
    asked = ask(busy("one", rdy=9), busy("other"), max_in_flight=10)
    assert asked.changes == [("one", 5)]
    assert asked.next_at == pytest.approx(SETTLED)


@pytest.mark.parametrize(("rate", "seats"), [(4, 2), (5, 3), (1, 1)])
def test_silent_connections_beside_a_busy_one_have_seats_for_half_of_the_tokens(rate, seats):
    worker = busy("busy", rdy=100 - seats, in_flight=99 - seats)
    holders = [silent(number, rdy=1, since=NOW) for number in range(seats - 1)]
    others = [silent(f"other {number}") for number in range(400)]
    [(key, rdy)] = ask(worker, *holders, *others, rate=rate, max_in_flight=100).changes
    assert (str(key)[:5], rdy) == ("other", 1)
    more = silent("more", rdy=1, since=NOW)
    assert ask(worker, *holders, more, *others, rate=rate, max_in_flight=100).changes == []


@pytest.mark.parametrize(("rate", "seconds"), [(1, 0.5), (100, 0.1)])
def test_the_next_raise_is_when_there_is_a_token_and_in_a_tenth_of_a_second(rate, seconds):
    assert ask(busy("one"), tokens=0.5, rate=rate).next_at == pytest.approx(NOW + seconds)
    asked = ask(busy("one"), busy("other"), rate=rate)
    assert asked.changes[0][1] == 5
    assert asked.next_at == pytest.approx(NOW + 0.1)


def test_one_that_never_had_a_turn_is_next():
    new = Charge("new", NOW, SETTINGS)
    assert ask(silent("waits"), new, silent("waits, too")).changes == [("new", 1)]


def test_where_there_are_fewer_places_than_busy_connections_each_has_one_at_most():
    assert [rdy for _, rdy in ask(*map(busy, "abcd"), max_in_flight=3, tokens=50.0).changes] == [1]


def test_the_longest_waiting_is_next():
    assert ask(silent("late", since=NOW - 1.0), silent("early", since=NOW - 9.0)).changes == [("early", 1)]
    assert ask(busy("has some", rdy=1), busy("has none", waiting_since=50.0)).changes == [("has none", 5)]


def test_silent_connections_alone_have_as_many_places_as_tokens():
    holders = [silent(number, rdy=1, since=NOW) for number in range(3)]
    assert ask(*holders, silent("next"), rate=3).changes == [("next", 1)]
    assert ask(*holders, silent("more", rdy=1, since=NOW), silent("next"), rate=3).changes == []
    assert ask(*holders, silent("next"), max_in_flight=3).changes == []


def test_a_place_that_a_closed_connection_leaves_is_used_when_its_rdy_has_settled():
    gone = busy("gone", rdy=5, in_flight=1)
    gone.close(NOW)
    for tokens in (50.0, 101.0):  # while more come, and while all are there
        asked = ask(gone, busy("other"), max_in_flight=5, tokens=tokens)
        assert asked.changes == []
        assert asked.next_at == pytest.approx(SETTLED)


def test_a_plan_of_many_connections_is_one_raise():
    limit, settings = RateLimit(100, 0.0), Settings()
    many = [Charge(number, 0.0, settings) for number in range(1000)]
    made = limited(many, limit, 2000, 10.0)
    assert [rdy for _, rdy in made.changes] == [1]
