"""The supervisor's decisions, in virtual time."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.workers.plan import Plan
from gnsq_like.workers.roster import (
    GRACE,
    LOAD_TIMEOUT,
    Cause,
    Kill,
    Member,
    Roster,
    Run,
    Spawn,
    State,
    Stop,
    restart_delay,
    share,
)


class World:
    """Processes that do as they are told, and a clock."""

    def __init__(self, processes: int = 2, **options: Any) -> None:
        self.roster = Roster(Plan("shop:readers", processes=processes, **options))
        self.now = 1000.0
        self.log: list[object] = []
        #: Members whose readers work.
        self.active: set[int] = set()
        self.loading: set[int] = set()
        #: Whether stopped processes end at once.
        self.drains = True

    def tick(self, seconds: float = 0.0) -> list[object]:
        """Let time pass, and carry out the actions."""
        self.now += seconds
        self.roster.tick(self.now)
        return self.carry_out()

    def carry_out(self) -> list[object]:
        actions: list[Any] = list(self.roster.members.take_actions())
        for action in actions:
            match action:
                case Spawn(number):
                    assert number not in self.active | self.loading
                    self.loading.add(number)
                case Run(number, _):
                    assert number in self.loading
                    self.loading.discard(number)
                    self.active.add(number)
                case Stop(number, _, _) if self.drains:
                    self.end(number, is_clean=True)
                case Kill(number, _, _):
                    self.end(number)
        self.log += actions
        return actions

    def end(self, number: int, how: str = "it was killed by SIGKILL", *, is_clean: bool = False) -> None:
        self.active.discard(number)
        self.loading.discard(number)
        self.roster.ended(number, how, self.now, is_clean=is_clean)

    def load(self, number: int) -> None:
        self.roster.loaded(number, self.now)

    def beat(self, number: int, **beat: Any) -> None:
        self.roster.beaten(number, beat, self.now)

    def beat_all(self) -> None:
        for number in self.active:
            self.beat(number)

    def settle(self) -> None:
        """Until nothing more happens at this time: all processes have loaded."""
        members = self.roster.members.by_number
        while self.tick() or any(members[number].state is State.LOADING for number in self.loading):
            for number in list(self.loading):
                self.load(number)

    def pass_time(self, seconds: float) -> None:
        """In steps in which heartbeats come."""
        for _ in range(round(seconds)):
            self.beat_all()
            self.tick(1.0)
        self.beat_all()


@pytest.fixture
def world() -> World:
    world = World()
    world.settle()
    return world


def of(kind: type, actions: list[object]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def test_each_slot_gets_a_process_that_starts_when_it_has_loaded() -> None:
    world = World(3)
    assert world.tick() == [Spawn(1), Spawn(2), Spawn(3)]
    assert world.tick(1.0) == []
    assert not world.roster.is_up
    world.load(2)
    assert world.tick() == [Run(2, 1)]
    world.settle()
    assert world.active == {1, 2, 3}
    assert world.roster.is_up


def test_code_that_cannot_be_loaded_at_the_beginning_ends_everything() -> None:
    world = World(3)
    world.tick()
    world.end(2, "no module")
    world.end(1, "no module either")
    world.tick()
    assert world.roster.is_over
    assert world.roster.failure == "no module"


def test_one_that_dies_is_replaced_at_once_and_later_after_delays(world: World) -> None:
    delays = []
    for _ in range(4):
        world.end(1)
        waited = 0
        while not of(Spawn, world.tick()):
            world.beat_all()
            world.now += 1.0
            waited += 1
        delays.append(waited)
        world.settle()
    assert delays == [0, 1, 2, 4]
    assert world.roster.restarts == {Cause.DIED: 4}
    world.pass_time(60)
    world.end(1)
    assert of(Spawn, world.tick()) == [Spawn(1)]


def test_a_process_without_heartbeat_is_killed_with_its_stacks_shown() -> None:
    world = World(2, heartbeat_timeout=10.0)
    world.settle()
    for _ in range(10):
        world.beat(2)
        assert of(Kill, world.tick(1.0)) == []
    world.beat(2)
    assert Kill(1, True, Cause.BLOCKED) in world.tick(0.5)
    assert of(Spawn, world.tick()) == [Spawn(1)]
    assert world.roster.restarts == {Cause.BLOCKED: 1}


def test_time_in_which_the_supervisor_stood_still_does_not_count() -> None:
    world = World(1, heartbeat_timeout=10.0)
    world.settle()
    assert world.tick(3600.0) == []
    world.pass_time(5)
    assert world.active == {1}


def test_a_process_that_never_loads_is_replaced(world: World) -> None:
    world.end(1)
    world.tick()
    for _ in range(int(LOAD_TIMEOUT)):
        world.beat_all()
        assert of(Kill, world.tick(1.0)) == []
    assert of(Kill, world.tick(1.0)) == [Kill(1, True, Cause.BLOCKED)]


def test_a_handler_that_ignores_its_time_limit_has_its_process_replaced() -> None:
    world = World(1, handler_timeout=10.0, stop_timeout=20.0)
    world.settle()
    world.drains = False
    world.beat(1, oldest=10.0 + GRACE)
    assert world.tick() == []
    world.beat(1, oldest=10.1 + GRACE)
    assert world.tick() == [Stop(1, 20.0, Cause.OVERDUE)]
    world.pass_time(20.0 + GRACE - 1)
    assert of(Kill, world.log) == []
    world.pass_time(1.0)
    assert of(Kill, world.log) == [Kill(1, False, Cause.OVERDUE)]
    assert world.roster.restarts == {Cause.OVERDUE: 1}


@pytest.mark.parametrize(
    ("limit", "beat", "cause"),
    [
        ({"max_messages": 100}, {"messages": 100}, Cause.MESSAGES),
        ({"max_memory": "1000"}, {"memory_bytes": 1001}, Cause.MEMORY),
    ],
)
def test_processes_are_recycled_one_at_a_time(limit: Any, beat: Any, cause: Cause) -> None:
    world = World(3, **limit)
    world.settle()
    for number in (1, 2, 3):
        world.beat(number, **{name: value - 1 for name, value in beat.items()})
    assert world.tick() == []
    for number in (1, 2, 3):
        world.beat(number, **beat)
    world.drains = False
    assert world.tick() == [Stop(1, 30.0, cause)]
    assert world.tick() == []
    world.end(1, is_clean=True)
    world.drains = True
    assert Spawn(1) in world.tick()
    world.settle()
    assert world.active == {1, 2, 3}
    assert world.roster.restarts == {cause: 3}
    assert all(slot.failures == 0 for slot in world.roster.slots)


def test_a_reload_loads_the_new_code_before_the_old_processes_end(world: World) -> None:
    world.drains = False
    world.roster.reload()
    assert world.tick() == [Spawn(3), Spawn(4)]
    world.load(3)
    assert world.tick() == [Stop(1, 30.0, Cause.RELOAD)]
    # The new one starts when the old one has ended, so that max_in_flight holds.
    assert world.tick() == []
    world.end(1, is_clean=True)
    assert world.tick() == [Run(3, 0)]
    assert not world.roster.is_up
    world.load(4)
    world.tick()
    world.end(2, is_clean=True)
    world.settle()
    assert world.active == {3, 4}
    assert world.roster.is_up
    assert world.roster.restarts == {Cause.RELOAD: 2}


def test_a_reload_to_broken_code_leaves_the_old_processes(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.roster.reload()
    world.tick()
    world.end(3, "a syntax error")
    world.settle()
    assert world.active == {1, 2}
    assert world.loading == set()
    assert "reload abandoned, the processes go on with the old code: a syntax error" in caplog.messages
    world.pass_time(100)
    assert world.active == {1, 2}
    world.roster.reload()
    world.settle()
    assert world.active == {3, 4}


def test_a_second_reload_replaces_what_the_first_one_loads(world: World) -> None:
    world.roster.reload()
    world.tick()
    world.roster.reload()
    actions = world.tick()
    assert of(Kill, actions) == [Kill(3, False, Cause.RELOAD), Kill(4, False, Cause.RELOAD)]
    world.settle()
    assert len(world.active) == 2
    assert world.roster.is_up
    assert world.roster.restarts == {Cause.RELOAD: 2}


def test_a_process_that_is_asked_to_end_by_somebody_is_replaced(world: World) -> None:
    world.roster.leaving(1, world.now)
    assert world.tick() == [Stop(1, 30.0, Cause.ASKED)]
    assert world.tick() == [Spawn(1)]
    assert world.roster.restarts == {Cause.ASKED: 1}


def test_a_stop_drains_and_a_second_one_does_not_wait(world: World) -> None:
    world.drains = False
    world.roster.reload()
    world.tick()
    world.roster.stop(world.now)
    killed = [Kill(3, False, Cause.STOP), Kill(4, False, Cause.STOP)]
    assert world.tick() == [Stop(1, 30.0, Cause.STOP), Stop(2, 30.0, Cause.STOP), *killed]
    world.end(1, is_clean=True)
    world.roster.stop(world.now)
    assert world.tick() == [Stop(2, 0.0, Cause.STOP)]
    world.tick(GRACE)
    assert Kill(2, False, Cause.STOP) in world.log
    assert world.roster.is_over
    assert world.roster.cut_short


def test_a_clean_stop(world: World) -> None:
    world.roster.stop(world.now)
    world.tick()
    assert world.roster.is_over
    assert not world.roster.cut_short


def test_health(world: World) -> None:
    first, _ = world.roster.slots

    def problem() -> str | None:
        return first.problem(world.now)

    assert problem() is None
    world.beat(1, healthy=False)
    assert problem() == "its readers are unhealthy"
    world.end(1)
    assert problem() is None, "a single restart is no reason for an alarm"
    world.settle()
    world.end(1)
    assert problem() == "it was killed by SIGKILL; restarts in 1 s"
    world.tick(1.0)
    assert problem() == "it was killed by SIGKILL; restarting"
    world.settle()
    assert problem() is None
    new = World()
    assert new.roster.slots[0].problem(new.now) == "not started yet"


events = st.lists(
    st.tuples(
        st.sampled_from(["tick", "load", "die", "fail", "silence", "reload", "drained", "leave"]),
        st.integers(0, 10),
    ),
    max_size=60,
)


@given(st.integers(1, 4), events)
def test_whatever_happens_the_wanted_processes_run_in_the_end(processes: int, happened: list[tuple[str, int]]) -> None:
    world = World(processes, heartbeat_timeout=50.0, max_messages=100)
    world.settle()
    for event, choice in happened:
        numbers = sorted(world.roster.members.by_number)
        number = numbers[choice % len(numbers)] if numbers else 0
        member: Member | None = world.roster.members.by_number.get(number)
        world.drains = choice % 2 == 0
        if event == "tick":
            world.pass_time(choice)
        elif event == "load" and number in world.loading:
            world.load(number)
        elif event == "die" and number in world.active:
            world.end(number)
        elif event == "fail" and number in world.loading:
            world.end(number, "it failed")
        elif event == "silence":
            world.tick(2.0)
        elif event == "reload":
            world.roster.reload()
        elif event == "drained" and member is not None and member.state is State.DRAINING:
            world.end(number, is_clean=True)
        elif event == "leave" and number in world.active:
            world.roster.leaving(number, world.now)
        world.carry_out()
        working = [m for m in world.roster.members.by_number.values() if m.state in (State.RUNNING, State.DRAINING)]
        by_slot = [m.slot for m in working]
        assert len(by_slot) == len(set(by_slot)), "two processes of a slot are active together"
        assert not world.roster.is_stopping
    world.drains = True
    for member in list(world.roster.members.by_number.values()):
        if member.state is State.DRAINING:
            world.end(member.number, is_clean=True)
    for _ in range(120):
        world.settle()
        world.pass_time(1)
    assert world.roster.is_up
    assert len(world.active) == len(world.roster.slots)
    assert set(world.roster.members.by_number) == world.active
    world.roster.stop(world.now)
    world.tick()
    assert world.roster.is_over
    assert math.isfinite(world.now)


@given(st.integers(0, 5000), st.integers(1, 50), st.integers(0, 100))
def test_the_shares_are_even_and_add_up(total: int, processes: int, position: int) -> None:
    found = [share(total, processes, position + slot) for slot in range(processes)]
    assert max(found) - min(found) <= 1
    if total >= processes or total == 0:
        assert sum(found) == total
    else:
        assert found == [1] * processes


@pytest.mark.parametrize(("failures", "seconds"), [(1, 0), (2, 1), (3, 2), (4, 4), (6, 16), (7, 30), (10_000, 30)])
def test_a_process_that_dies_again_and_again_waits_longer(failures: int, seconds: float) -> None:
    assert restart_delay(failures) == seconds
