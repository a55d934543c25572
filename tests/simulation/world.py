"""One simulation: its loop, its network, its processes, and the places where Python asks the system for something.

A World takes over the whole interpreter, for good: clocks, random numbers, sockets, names, threads and the hub. So it
lives in a process of its own (``forked.py``), which ends with it.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import time
import traceback
import warnings
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from random import Random
from typing import Any

import gevent
import gevent.events
import gevent.threadpool
from gevent import monkey
from gevent.hub import Hub, set_hub
from greenlet import greenlet

from tests.simulation import disk, sockets, threads
from tests.simulation.loop import Loop
from tests.simulation.network import Network
from tests.simulation.process import CURRENT, Process

#: Virtual seconds between two collections of garbage, which happen at no other time, because they run finalizers.
_COLLECT = 60.0


class World:
    """A simulated world; one for each process of the real one.

    :param seed: decides everything that is left open
    :param shuffle: whether what is ready in one turn of the hub happens in a seeded order
    """

    def __init__(self, seed: int = 0, *, shuffle: bool = True) -> None:
        self.seed = seed
        self.loop = Loop(Random(f"{seed} order") if shuffle else None)
        self.network = Network(self.loop, Random(f"{seed} network"))
        self.processes: list[Process] = []
        #: By their directories.
        self.disks: dict[str, disk.Disk] = {}
        #: Errors that nothing caught, as text.
        self.errors: list[str] = []
        #: Called before each move of the time; an exception ends the simulation.
        self.checks: list[Callable[[], object]] = []
        self._collect_at = _COLLECT
        #: Where the test itself runs.
        self.main = self.process("main")
        self._install()

    # -- processes -------------------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        """A new process."""
        process = Process(self.loop, len(self.processes), name)
        self.processes.append(process)
        return process

    def kill(self, process: Process) -> None:
        """Kill a process, as SIGKILL does: nothing of it runs any more, and the kernel closes its sockets."""
        remains = self.loop.forget(process)
        for each in gc.get_objects():
            if isinstance(each, greenlet) and not each.dead and _process_of(each) is process:
                remains.append(each)
        process.kill(remains)
        for descriptor in list(process.descriptors):
            remains.append(list(descriptor.watchers))
            descriptor.watchers.clear()
            descriptor.close()

    def disk(self, directory: Path) -> disk.Disk:
        """A new disk."""
        made = self.disks[str(directory)] = disk.Disk(directory, Random(f"{self.seed} disk {len(self.disks)}"))
        return made

    # -- running ---------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self.loop.now

    def run(self, main: Callable[[], Any]) -> Any:
        """Call ``main`` in the process "main"; returns or raises what it does."""
        outcome: list[tuple[bool, Any]] = []

        def call() -> None:
            try:
                outcome.append((True, main()))
            except BaseException as exc:
                outcome.append((False, exc))
            parent.switch()

        parent = gevent.getcurrent()
        self.main.spawn(call)
        self.loop.before_time_moves = self._check
        # The parent of the hub: its errors arrive here.
        gevent.get_hub().switch()
        if not outcome:
            raise RuntimeError("the simulation has ended early: nothing is left that could happen")
        is_value, value = outcome[0]
        if not is_value:
            raise value
        return value

    def _check(self) -> None:
        for check in self.checks:
            check()
        if self.loop.now >= self._collect_at:
            self._collect_at = self.loop.now + _COLLECT
            gc.collect()

    # -- the interpreter -------------------------------------------------------------------------------

    def _install(self) -> None:
        patch()
        CURRENT.set(self.main)
        gevent.Greenlet.add_spawn_callback(_inherit)
        self._install_clock()
        self._install_random()
        hub = _Hub(self)
        set_hub(hub)
        threads.install(self.loop, hub)
        sockets.install(self.network)
        disk.install(self.disks)

    def _install_clock(self) -> None:
        loop, real_monotonic, real_time = self.loop, time.monotonic, time.time

        def monotonic() -> float:
            process = CURRENT.get(None)
            return real_monotonic() if process is None else loop.now + process.monotonic_offset

        def wall() -> float:
            process = CURRENT.get(None)
            return real_time() if process is None else loop.now + process.wall_offset

        time.monotonic = time.perf_counter = monotonic
        time.time = wall
        time.monotonic_ns = time.perf_counter_ns = lambda: int(monotonic() * 1e9)
        time.time_ns = lambda: int(wall() * 1e9)

    def _install_random(self) -> None:
        draws = Random(f"{self.seed} draws")
        os.urandom = draws.randbytes
        random._urandom = draws.randbytes  # type: ignore[attr-defined]
        random.seed(f"{self.seed} random")


def patch() -> None:
    """Patch the interpreter; a process that forks many simulations does it once for all."""
    if monkey.is_module_patched("socket"):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Looking for plugins at each step takes half a second.
        gevent.events.notify_and_call_entry_points = gevent.events.notify
        # What was imported before keeps its ssl; nothing here speaks TLS.
        # Existing locks are left alone: to find them, gevent asks every object for its class, and one of Django's that
        # other tests of this process have imported raises when it is asked.
        monkey.patch_all(ssl=False, thread=False)
        monkey.patch_thread(existing_locks=False)
    gc.disable()
    gc.collect()
    gc.freeze()


def _inherit(spawned: gevent.Greenlet) -> None:
    """A greenlet belongs to the process of the code that spawns it."""
    spawned.gr_context = copy_context()


class _Hub(Hub):
    """A hub that collects the errors of greenlets and callbacks."""

    def __init__(self, world: World) -> None:
        super().__init__(loop=world.loop)
        self._world = world

    def print_exception(self, context: Any, kind: Any, error: Any, trace: Any) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        self._world.errors.append(f"{text}in {context!r}")


def _process_of(each: greenlet) -> Process | None:
    context = each.gr_context
    return None if context is None else context.get(CURRENT)


def leftovers(world: World, processes: list[Process]) -> list[str]:
    """What is left of processes: greenlets, timers, descriptors and connections; for each a line."""
    gc.collect()
    here = gevent.getcurrent()
    found = []
    for each in gc.get_objects():
        if isinstance(each, gevent.Greenlet) and not each.dead and each is not here and _process_of(each) in processes:
            found.append(f"a greenlet: {each!r}")
    for timer in world.loop.pending_timers():
        if timer.owner in processes:
            found.append(f"a timer of {timer.owner.name}: {timer.callback!r}")
    for process in processes:
        for descriptor in process.descriptors:
            found.append(f"a socket of {process.name}: {descriptor!r}")
    return found


def quiet_logs() -> None:
    """No log is printed."""
    logging.getLogger("gnsq_like").addHandler(logging.NullHandler())
    logging.getLogger("gnsq_like").propagate = False
