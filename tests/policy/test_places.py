"""The plan: its promises, for whatever happens to any connections, and examples of one moment."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.backoff import Mode
from gnsq_like.policy.charge import SETTLE
from gnsq_like.policy.level import Burst, Level
from gnsq_like.policy.line import Line
from gnsq_like.policy.places import Places, Settings, level
from gnsq_like.policy.rate_limit import RateLimit
from tests.support.scale import examples

TICKER = 0.025


class World:
    """Connections to which anything happens, in the order in which nsqd sees it, and what must hold after each step.

    A message comes only if RDY, or one that was sent before, allows it: so no more than ``most`` are ever in flight,
    unless that was lowered.
    """

    def __init__(self, seed: int, *, limited: bool = False) -> None:
        self.rng = random.Random(seed)
        self.now = 100.0
        self.places: Places[int] = Places(Settings(), phase=1000 * self.rng.random())
        self.places.most = self.rng.choice([0, 1, 2, 5, 20, 200])
        if limited:
            self.places.set_limit(RateLimit(10 ** self.rng.uniform(-1, 3), self.now))
        self.modes: dict[Any, Mode] = {}
        self.made = 0
        self.topics = self.rng.choice([1, 1, 3])
        for _ in range(self.rng.randint(1, 8)):
            self.open()

    @property
    def lines(self) -> list[Line[int]]:
        return list(self.places.lines)

    def open(self) -> None:
        self.made += 1
        line = Line(
            self.made,
            self.rng.choice([Burst(TICKER), Level()]),
            self.now,
            topic=self.rng.randrange(self.topics),
            round_trip=self.rng.choice([0.0, 0.001, 0.05]),
            max_rdy=self.rng.choice([3, 2500]),
        )
        self.places.opened(line)
        self.plan()

    def plan(self) -> None:
        places, before = self.places, {line: line.rdy for line in self.places.lines}
        shares = {line: line.share for line in self.places.lines}
        for line in self.lines:
            if line.coming and self.now >= line.settled_at:
                line.coming = 0  # as the plan does, so that costs are comparable
        cost = sum(line.cost for line in self.lines)
        risen, sent = False, dict(before)
        for key, rdy in places.plan(self.now, self.modes):
            [line] = [each for each in self.lines if each.key == key]
            assert rdy != sent[line], "only real changes"
            lowered = rdy < sent[line] and line.share < shares[line]
            assert not (risen and lowered and places.limit is None), "decreases first"
            risen = risen or rdy > sent[line]
            sent[line] = rdy
        assert all(line.rdy == rdy for line, rdy in sent.items())
        assert places.plan_at > self.now
        if any(line.rdy > before[line] for line in self.lines):
            assert sum(line.cost for line in self.lines) <= max(places.most, cost), "the window"
        for line in self.lines:
            mode = self.modes.get(line.topic, Mode.FLOWING)
            assert 0 <= line.rdy <= line.max_rdy
            assert line.rdy <= line.share + line.slow
            assert not (line.rdy and (line.closing or mode is Mode.BLOCKED or not places.most))
        for topic in [topic for topic, mode in self.modes.items() if mode is Mode.PROBING]:
            assert sum(line.share for line in self.lines if line.topic == topic) <= 1
        if places.limit is None and places.plan(self.now, self.modes):
            # A turn that ended may leave its place to one that the first plan did not ask, for instance because backoff
            # was testing there.
            assert places.plan(self.now, self.modes) == [], "plans come to rest"

    def step(self) -> None:
        rng, places = self.rng, self.places
        self.now += rng.choice([0.0, 0.0003, 0.004, 0.03, 0.6, 12.0])
        if not self.lines:
            return self.open()
        line = rng.choice(self.lines)
        kind = rng.randrange(12)
        if kind < 4:
            if n := max(line.rdy - line.held, line.coming):
                places.received(line, rng.randint(1, n), self.now, 0.0)
        elif kind < 8:
            if line.in_time:
                places.answered(line, rng.randint(1, line.in_time), self.now)
        elif kind == 8:
            if line.slow and rng.random() < 0.7:
                if rng.random() < 0.5:
                    places.answered(line, 1, self.now, slow=1)
                else:
                    places.take_out(line, -1, 1, self.now)
            elif line.overdue:
                places.answered(line, 1, self.now, overdue=1)
            elif line.in_time:
                places.take_out(line, 1, 0, self.now)
            self.plan()
        elif kind == 9:
            if rng.random() < 0.3:
                places.closing(line, self.now)
            elif rng.random() < 0.3:
                line.lost()
                if not line.in_flight:
                    places.forget(line)
            else:
                self.open()
            self.plan()
        elif kind == 10:
            places.most = rng.choice([0, 1, 2, 5, 20, 200])
            self.plan()
        else:
            self.modes = {topic: rng.choice(list(Mode)) for topic in range(self.topics) if rng.random() < 0.3}
            self.plan()
        if line in places.lines and not line.closing:
            places.flush(line, self.now)
        if self.now >= places.cut_at:
            places.cut(self.now)
        if self.now >= places.plan_at:
            self.plan()


@given(st.integers(0, 2**32))
@examples(3)
def test_the_promises_hold_whatever_happens(seed: int):
    world = World(seed)
    for _ in range(60):
        world.step()


@given(st.integers(0, 2**32))
@examples(2)
def test_with_a_rate_limit_no_more_may_come_than_there_are_tokens(seed: int):
    world = World(seed, limited=True)
    limit = world.places.limit
    assert limit is not None
    for _ in range(40):
        before = sum(line.exposed for line in world.lines), limit.tokens(world.now)
        world.step()
        raised = sum(line.rdy - line.held for line in world.lines if line.rdy > line.held)
        assert raised <= max(limit.tokens(world.now), before[0], before[1], 1)


def busy(places: Places[int], key: int, now: float, topic: object = None) -> Line[int]:
    """A connection that holds as many messages as it may."""
    line = Line(key, Level(), now, topic=topic)
    places.opened(line)
    return line


def run(
    places: Places[int], seconds: float, backlog: set[int], handler: float = 0.01, step: float = 0.001
) -> dict[int, float]:
    """nsqds with a backlog, or with nothing, and handlers that take so long; place-seconds of each after a second."""
    used: dict[int, float] = {line.key: 0.0 for line in places.lines}
    now, ends = 0.0, seconds + 1.0
    due: list[tuple[float, Line[int]]] = []
    while now < ends:
        now += step
        for line in list(places.lines):
            if line.key in backlog and line.rdy > line.held:
                n = line.rdy - line.held
                places.received(line, n, now, 0.0)
                due += [(now + handler, line)] * n
        done, due = [each for each in due if each[0] <= now], [each for each in due if each[0] > now]
        for line in {line: None for _, line in done}:
            places.answered(line, sum(each is line for _, each in done), now)
        for line in places.lines:
            places.flush(line, now)
            used[line.key] += step * line.in_flight if now > 1.0 else 0.0
        if now >= places.plan_at:
            places.plan(now, {})
    return used


def places_of(most: int) -> Places[int]:
    places: Places[int] = Places(Settings())
    places.most = most
    return places


def test_one_with_a_backlog_has_what_the_silent_ones_leave():
    places = places_of(10)
    for key in range(10):
        busy(places, key, 0.0)
    places.plan(0.0, {})
    used = run(places, 5.0, {3})
    assert used[3] > 0.8 * 10 * 5.0


@pytest.mark.parametrize(("count", "most"), [(3, 5), (7, 3), (4, 4)])
def test_busy_ones_have_equally_much(count: int, most: int):
    places = places_of(most)
    for key in range(count):
        busy(places, key, 0.0)
    places.plan(0.0, {})
    used = run(places, 60.0, set(range(count)))
    assert max(used.values()) <= 1.3 * min(used.values())
    assert sum(used.values()) > 0.85 * most * 60.0


def test_every_silent_one_has_its_turn():
    places = places_of(3)
    lines = [busy(places, key, 0.0) for key in range(20)]
    places.plan(0.0, {})
    run(places, 6.0, {0})
    assert all(line.turn_at > 4.0 for line in lines[1:])


def test_looks_that_take_long_leave_the_busy_ones_half_of_the_time():
    """On one place, with round trips of 0.5 s, looks at ten silent ones take 18 s."""
    places = places_of(1)
    for key in range(12):
        places.opened(Line(key, Level(), 0.0, round_trip=0.5))
    places.plan(0.0, {})
    used = run(places, 50.0, {0, 1}, handler=0.1, step=0.005)
    assert min(used[0], used[1]) > 5.0
    assert 12.0 < used[0] + used[1] < 38.0


def test_topics_have_equally_much_however_many_connections_they_have():
    places = places_of(30)
    for key in range(10):
        busy(places, key, 0.0, topic="one" if key == 0 else "others")
    places.plan(0.0, {})
    used = run(places, 5.0, set(range(10)))
    assert used[0] == pytest.approx(75.0, rel=0.2)


def test_a_test_of_backoff_moves_to_the_longest_waiting_when_it_brings_nothing():
    places = places_of(10)
    lines = [busy(places, key, float(key)) for key in range(3)]
    modes: dict[Any, Mode] = {None: Mode.PROBING}
    assert places.plan(10.0, modes) == [(0, 1)]
    assert places.plan(10.1, modes) == []
    assert places.plan(places.plan_at, modes) == [(0, 0)]
    assert places.plan(places.plan_at, modes) == [(1, 1)]
    assert [line.share for line in lines] == [0, 1, 0]


def test_a_place_that_was_just_taken_goes_to_who_waits_longest_and_not_back():
    places = places_of(3)
    taken, waiting, lowered = [Line(key, Level(), now) for key, now in ((1, 0.0), (2, 0.0), (3, 0.0))]
    for line, share in ((taken, 1), (lowered, 2)):
        places.opened(line)
        line.grant(share, 1.0)
        line.sent(share, 1.0, SETTLE)
    places.opened(waiting)
    for line, share in ((taken, 0), (lowered, 1)):
        line.grant(share, 2.0)
        line.sent(share, 2.0, SETTLE)
    assert [line.cost for line in (taken, waiting, lowered)] == [1, 0, 2]
    assert places.plan(2.0, {}) == [], "no place is free"
    assert places.plan(2.0 + SETTLE, {}) == [(2, 1), (1, 1)]


def test_nothing_is_raised_while_more_is_in_flight_than_there_are_places():
    places = places_of(10)
    one, two = busy(places, 1, 0.0), busy(places, 2, 0.0)
    places.plan(0.0, {})
    for line in (one, two):
        places.received(line, 5, 0.1, 0.0)
    places.most = 4
    assert sorted(places.plan(0.2, {})) == [(1, 0), (2, 0)]
    places.answered(one, 5, 0.3)
    assert places.plan(0.3, {}) == []
    places.answered(two, 4, 0.4)
    assert dict(places.plan(0.4, {})) == {1: 2, 2: 2}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 99)), min_size=1, max_size=9), st.data()
)
def test_what_is_dealt_out_is_level(raw: list[tuple[int, int, int]], data: st.DataObject):
    bounds = [(least, max(least, need), max(least, need, most)) for least, need, most in raw]
    amount = data.draw(st.integers(sum(least for least, _, _ in bounds), 300))
    dealt = level(amount, bounds, data.draw(st.integers(0, 99)))
    enough = sum(need for _, need, _ in bounds) <= amount
    tops = [most if enough else need for _, need, most in bounds]
    floors = [need if enough else least for least, need, _ in bounds]
    assert sum(dealt) == min(amount, sum(tops))
    assert all(low <= each <= high for low, each, high in zip(floors, dealt, tops, strict=True))
    free = [each for low, each, high in zip(floors, dealt, tops, strict=True) if low < each < high]
    assert not free or max(free) - min(free) <= 1
