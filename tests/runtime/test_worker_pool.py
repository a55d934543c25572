"""Worker greenlets: as many as are blocked, nothing starved, nothing lost, however handlers end (``ENDS``)."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import gevent
import pytest
from gevent import socket
from gevent.event import Event
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.runtime.worker_pool import SLICE, WorkerPool
from tests.support import hub_errors
from tests.support.daemons import wait_for
from tests.support.hub import settle


class Spawner:
    """gevent.spawn that keeps what it started."""

    def __init__(self) -> None:
        self.greenlets: list[Any] = []

    def __call__(self, function: Callable[..., object], *arguments: object) -> Any:
        self.greenlets.append(gevent.spawn(function, *arguments))
        return self.greenlets[-1]


class Blocking:
    """A handler whose items wait until they are let go, and that knows how many are inside."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.most = 0
        self.gates: dict[int, Event] = {}

    def __call__(self, item: int) -> None:
        self.begun.append(item)
        self.most = max(self.most, len(self.begun) - len(self.ended))
        gate = self.gates[item] = Event()
        try:
            gate.wait()
        finally:
            self.ended.append(item)

    def let_go(self, *items: int) -> None:
        for item in items:
            self.gates[item].set()


def never(item: object, exc: Exception) -> None:
    """The ``failed`` of a handler that raises nothing."""
    raise AssertionError(f"{item!r} failed") from exc


def burn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_a_handler_that_never_blocks_is_served_by_one_greenlet():
    spawn = Spawner()
    handled: list[int] = []
    workers = WorkerPool(handled.append, 100, spawn=spawn, failed=never)
    for start in range(0, 3000, 1000):
        workers.put(range(start, start + 1000))
        wait_for(partial(handled.__contains__, start + 999))
    assert handled == list(range(3000))
    assert len(spawn.greenlets) == 1
    assert workers.busy == workers.waiting == 0


def test_putting_never_switches():
    handled: list[int] = []
    workers = WorkerPool(handled.append, 1, failed=never)
    workers.put([1, 2])
    workers.put([])
    assert handled == []
    assert workers.waiting == 2
    wait_for(lambda: handled == [1, 2])


def test_there_are_as_many_workers_as_are_blocked():
    spawn, handler = Spawner(), Blocking()
    workers = WorkerPool(handler, 100, spawn=spawn, failed=never)
    workers.put(range(5))
    wait_for(lambda: len(handler.begun) == 5)
    settle()
    assert len(spawn.greenlets) == workers.busy == 5
    handler.let_go(0, 1)
    wait_for(lambda: workers.busy == 3)
    workers.put([5, 6])
    wait_for(lambda: workers.busy == 5)
    settle()
    assert len(spawn.greenlets) == 5
    handler.let_go(*range(2, 7))
    wait_for(lambda: workers.busy == 0)
    assert sorted(handler.ended) == list(range(7))


def test_no_more_than_concurrency_are_inside_and_it_can_be_changed():
    handler = Blocking()
    workers = WorkerPool(handler, 3, failed=never)
    workers.put(range(20))
    wait_for(lambda: workers.busy == 3)
    settle()
    assert (workers.busy, workers.waiting) == (3, 17)
    workers.set_concurrency(5)
    wait_for(lambda: workers.busy == 5)
    settle()
    assert workers.busy == 5
    workers.set_concurrency(2)
    handler.let_go(0, 1, 2)
    wait_for(lambda: workers.busy == 2)
    settle()
    assert handler.begun == list(range(5))
    handler.let_go(3)
    wait_for(lambda: handler.begun == list(range(6)))
    settle()
    assert workers.busy == 2
    workers.set_concurrency(100)
    wait_for(lambda: workers.busy == 16)
    handler.let_go(*range(4, 20))
    wait_for(lambda: workers.busy == 0)
    assert sorted(handler.ended) == list(range(20))


class Served:
    """Another greenlet with a socket and one with a timer: how many items are begun before each is served again."""

    def __init__(self):
        self.items = 0
        self._at = {"socket": 0, "timer": 0}
        self.most = 0
        self._near, self._far = socket.socketpair()
        self._greenlets = [gevent.spawn(self._echo), gevent.spawn(self._ask), gevent.spawn(self._tick)]
        self._rounds = 0
        wait_for(lambda: self._rounds)

    def _echo(self):
        while data := self._far.recv(1):
            self._far.sendall(data)

    def _ask(self):
        while True:
            self._near.sendall(b"x")
            self._near.recv(1)
            self._rounds += 1
            self._note("socket")

    def _tick(self):
        while True:
            gevent.sleep(0.001)  # the timer that is to be served
            self._note("timer")

    def _note(self, what):
        self.most = max(self.most, self.items - self._at[what])
        self._at[what] = self.items

    def close(self):
        gevent.killall(self._greenlets)
        self._near.close()
        self._far.close()


@pytest.fixture
def served():
    others = Served()
    yield others
    others.close()


@pytest.mark.parametrize("blocks", ["never", "before", "after"])
def test_handlers_of_20_ms_cpu_let_sockets_and_timers_be_served(served, blocks):
    """Within two items of 20 ms, so within 100 ms; a round trip through the echo takes two rounds of the hub."""
    done = []

    def handle(item):
        if blocks == "before":
            gevent.sleep(0)
        served.items += 1
        burn(0.020)
        done.append(item)
        if blocks == "after":
            gate.wait()

    gate = Event()
    workers = WorkerPool(handle, 200, failed=never)
    workers.put(range(100))
    wait_for(lambda: len(done) == 100, timeout=60)
    gate.set()
    wait_for(lambda: workers.busy == 0)
    assert served.most <= (4 if blocks != "before" else 8)


def test_many_workers_that_wake_at_once_take_turns_with_the_hub(served):
    """A hundred handlers end in one pass of the hub; what each begins next burns CPU."""
    gate = Event()
    begun: list[int] = []

    def handle(item):
        begun.append(item)
        if item < 100:
            gate.wait()
        else:
            served.items += 1
            burn(SLICE * 1.5)

    workers = WorkerPool(handle, 100, failed=never)
    workers.put(range(200))
    wait_for(lambda: len(begun) == 100)
    gate.set()
    wait_for(lambda: len(begun) == 200 and not workers.busy, timeout=60)
    assert served.most <= 4


def test_stopping_begins_nothing_new_and_ends_every_greenlet():
    spawn, handler = Spawner(), Blocking()
    workers = WorkerPool(handler, 3, spawn=spawn, failed=never)
    workers.put(range(3))
    wait_for(lambda: workers.busy == 3)
    handler.let_go(0)
    wait_for(lambda: workers.busy == 2)
    workers.put(range(3, 8))
    wait_for(lambda: workers.busy == 3)
    workers.stop()
    workers.stop()
    assert workers.take_waiting() == [4, 5, 6, 7]
    assert workers.waiting == 0
    workers.put([8])
    handler.let_go(1, 2, 3)
    gevent.joinall(spawn.greenlets, timeout=60)
    assert all(each.dead for each in spawn.greenlets)
    assert handler.begun == [0, 1, 2, 3]
    assert workers.take_waiting() == [8]


def test_what_is_taken_back_is_not_begun():
    handled: list[int] = []
    workers = WorkerPool(handled.append, 1, failed=never)
    workers.put([1, 2])
    assert workers.take_waiting() == [1, 2]
    settle()
    workers.put([3])
    wait_for(lambda: handled)
    assert handled == [3]


def test_killing_throws_into_handlers_and_spares_its_caller():
    spawn = Spawner()
    seen: list[type[BaseException]] = []
    after: list[str] = []
    hold = Event()

    def handle(item):
        if item == "killer":
            workers.kill()
            after.append(item)
            return
        try:
            hold.wait()
        except BaseException as exc:
            seen.append(type(exc))
            raise

    workers = WorkerPool(handle, 10, spawn=spawn, failed=never)
    workers.put(["a", "b", "killer", "never"])
    wait_for(lambda: after)
    wait_for(lambda: all(each.dead for each in spawn.greenlets))
    assert seen == [gevent.GreenletExit] * 2
    assert workers.busy == 0
    assert workers.take_waiting() == ["never"]


class Custom(BaseException):
    pass


@pytest.mark.parametrize("raised", [RuntimeError("meant"), gevent.GreenletExit(), gevent.Timeout(1), Custom()])
def test_whatever_a_handler_raises_the_next_items_are_handled(raised):
    handled: list[int] = []

    def handle(item):
        gevent.sleep(0)
        if item % 2:
            raise raised
        handled.append(item)

    failures: list[object] = []
    workers = WorkerPool(handle, 1, failed=lambda item, exc: failures.append(exc))
    # What is no Exception ends its worker.
    with hub_errors.expected("Custom") if isinstance(raised, Custom) else nullcontext():
        workers.put(range(20))
        wait_for(lambda: len(handled) == 10)
        wait_for(lambda: workers.busy == 0 and workers.waiting == 0)
    if isinstance(raised, RuntimeError):
        assert failures == [raised] * 10


def test_a_worker_killed_while_it_is_idle_or_waits_for_its_turn_stalls_nothing():
    spawn = Spawner()
    handled: list[int] = []

    def handle(item):
        burn(SLICE * 1.2)
        handled.append(item)

    workers = WorkerPool(handle, 1, spawn=spawn, failed=never)
    workers.put(range(4))
    wait_for(lambda: handled)
    for _ in range(3):
        spawn.greenlets[-1].kill()
        workers.put([len(handled)])
        settle()
    wait_for(lambda: workers.waiting == 0 and workers.busy == 0)
    assert len(handled) == 7


def test_a_timeout_that_a_handler_leaves_running_stalls_nothing(caplog):
    caplog.set_level(logging.WARNING)
    spawn = Spawner()
    handled: list[int] = []

    def handle(item):
        handled.append(item)
        if item == 0:
            gevent.Timeout(0.001).start()

    workers = WorkerPool(handle, 1, spawn=spawn, failed=never)
    workers.put([0])
    wait_for(lambda: spawn.greenlets and spawn.greenlets[0].dead)
    assert "without cancelling its gevent.Timeout" in caplog.text
    workers.put([1])
    wait_for(lambda: handled == [0, 1])
    assert len(spawn.greenlets) == 2


@given(
    concurrency=st.integers(1, 5),
    items=st.lists(st.booleans(), max_size=30),
    order=st.randoms(use_true_random=False),
    changes=st.lists(st.integers(1, 6), max_size=5),
)
def test_every_item_is_handled_once_in_order_and_never_too_many_at_once(concurrency, items, order, changes):
    spawn, handler = Spawner(), Blocking()
    begun: list[int] = []

    def handle(number):
        begun.append(number)
        if items[number]:
            handler(number)

    workers = WorkerPool(handle, concurrency, spawn=spawn, failed=never)
    half = len(items) // 2
    workers.put(range(half))
    workers.put(range(half, len(items)))
    widest = concurrency
    while len(begun) < len(items) or workers.busy:
        settle()
        inside = [number for number in handler.begun if number not in handler.ended]
        assert workers.busy == len(inside)
        blocked_ahead = workers.busy >= workers.concurrency or not workers.waiting
        assert blocked_ahead, "items wait although there is room"
        if changes:
            workers.set_concurrency(changes.pop())
            widest = max(widest, workers.concurrency)
        if inside:
            handler.let_go(order.choice(inside))
    assert begun == list(range(len(items)))
    assert handler.most <= widest
    assert max(Counter(begun).values(), default=0) <= 1
    assert len(spawn.greenlets) <= min(widest, sum(items)) + 1
    workers.kill()
    assert all(each.dead for each in spawn.greenlets)
