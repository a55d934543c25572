"""The processes of a simulated cluster, and the clock that each of them reads.

Everything runs in one thread and on one hub. A context variable says on behalf of which process code runs: a greenlet
inherits it from the code that spawned it, and the loop sets it around the callbacks of watchers. So each process has
its own monotonic clock, wall clock and descriptors, and can stand still or be killed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import gevent
from gevent.event import Event

if TYPE_CHECKING:
    from tests.simulation.loop import Loop
    from tests.simulation.network import Descriptor


class Killed(Exception):
    """A call into a process that was killed meanwhile."""


class Counts:
    """What a process has done; all counts are exact. Subtract an earlier ``copy``."""

    __slots__ = ("bytes", "callbacks", "iterations", "reads", "writes")

    def __init__(self) -> None:
        #: Turns of the hub in which this process did anything.
        self.iterations = 0
        #: Callbacks of the loop: greenlets that were switched to, timers and descriptors that fired.
        self.callbacks = 0
        #: Calls of send and recv that moved bytes, and the bytes sent.
        self.writes = 0
        self.reads = 0
        self.bytes = 0

    def copy(self) -> Counts:
        """The counts so far."""
        result = Counts()
        for name in self.__slots__:
            setattr(result, name, getattr(self, name))
        return result

    def since(self, before: Counts) -> dict[str, int]:
        """What was added since ``before``."""
        return {name: getattr(self, name) - getattr(before, name) for name in self.__slots__}


class Process:
    """One process of the cluster; made by ``World.process``.

    :param number: tells it apart; a part of the hash of a run
    :param started: what its monotonic clock showed when the simulation began
    """

    def __init__(self, loop: Loop, number: int, name: str, started: float = 1_000_000.0) -> None:
        self._loop = loop
        self.number = number
        self.name = name
        #: What its clocks show beyond the loop's time, which begins at 0.
        self.monotonic_offset = started
        self.wall_offset = 1_700_000_000.0
        #: The loop's time until which it stands still, and what would have run meanwhile.
        self.still_until = 0.0
        self.held: list[Any] = []
        #: From when until when it stood still, in the loop's time, in order.
        self.standstills: list[tuple[float, float]] = []
        #: Draws the seconds that a turn of its hub takes in which it does something; None for no time.
        self.turn_seconds: Callable[[], float] | None = None
        #: Draws the seconds by which a timer is late, as libev's are up to one millisecond; None for no time.
        self.timers_late: Callable[[], float] | None = None
        self.is_alive = True
        #: Seconds that a call in a thread takes, most of which wait for the disk.
        self.disk_delay = 0.0
        self.counts = Counts()
        #: The turn of the hub in which it last did something.
        self.last_turn = -1
        #: Its open sockets.
        self.descriptors: dict[Descriptor, None] = {}
        #: Set when it is killed.
        self._killed = Event()
        #: Kept for ever: a greenlet of a killed process that were collected would run its ``finally`` clauses.
        self._remains: list[Any] = []

    def __repr__(self) -> str:
        return f"<process {self.name}>"

    def spawn(self, function: Callable[..., Any], *arguments: Any) -> gevent.Greenlet:
        """Start a greenlet of this process."""
        token = CURRENT.set(self)
        try:
            return gevent.spawn(function, *arguments)
        finally:
            CURRENT.reset(token)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a greenlet of this process; returns or raises what it does. May switch.

        :raises Killed: if the process is killed meanwhile
        """
        if not self.is_alive:
            raise Killed(self.name)

        def call() -> tuple[bool, Any]:
            try:
                return True, function(*arguments)
            except BaseException as exc:
                return False, exc

        work = self.spawn(call)
        gevent.wait([work, self._killed], count=1)
        if not work.ready():
            raise Killed(self.name)
        is_value, outcome = work.get()
        if not is_value:
            raise outcome
        return outcome

    def stood_still(self, since: float) -> float:
        """Seconds for which it stood still since a time of the loop."""
        now, seconds = self._loop.now, 0.0
        for start, end in reversed(self.standstills):
            if end <= since:
                break
            seconds += max(0.0, min(end, now) - max(start, since))
        return seconds

    def thread_delay(self) -> float:
        """Seconds that a call in a thread takes now."""
        return self.disk_delay

    def stand_still(self, seconds: float) -> None:
        """Stop it, as SIGSTOP or a busy machine would: nothing of it runs for a while, and its clocks go on."""
        self._loop.stand_still(self, seconds)

    def jump(self, seconds: float) -> None:
        """Its monotonic clock goes forward at once, as after the suspension of a virtual machine."""
        self.monotonic_offset += seconds
        self._loop.hurry(self, seconds)

    def set_wall_clock(self, seconds: float) -> None:
        """Its wall clock jumps, forward or back; timers do not care."""
        self.wall_offset += seconds

    def kill(self, remains: list[Any]) -> None:
        """Part of ``World.kill``: nothing of it runs any more."""
        self.is_alive = False
        self._remains = remains
        self.held = []
        self._killed.set()


#: On behalf of which process code runs.
CURRENT: ContextVar[Process] = ContextVar("simulated process")
