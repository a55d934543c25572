"""gevent's event loop in virtual time.

gevent asks its loop for callbacks, timers, watchers of descriptors, async and idle watchers, and ``run``. A turn runs
the callbacks that are scheduled, then what is due: timers, and descriptors that are ready. If there is nothing to do,
the time moves to the next timer, so nothing here ever waits. Two turns never happen at the same time: each takes TURN
seconds.

What gevent promises, and this loop keeps: callbacks run in the order in which they were scheduled; a timer does not
fire before its time; a watcher that was stopped does not fire. In which order timers and descriptors of one turn fire
is not promised, so a seeded generator decides; and so it does for callbacks of *different* processes.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from gevent import GreenletExit

from tests.simulation.process import CURRENT, Process

#: Seconds of virtual time that a turn takes.
TURN = 1e-6
#: Turns that may follow each other without the time moving on by more than TURN: more, and something runs in circles.
MOST_TURNS = 20_000

READABLE, WRITABLE = 1, 2


class RunsInCircles(Exception):
    """Something keeps the hub busy although no time passes."""


class Pollable(Protocol):
    """What an ``Io`` watches."""

    watchers: dict[Io, None]

    def events(self) -> int: ...


class Callback:
    """A scheduled call; gevent looks at ``pending`` and calls ``stop``."""

    __slots__ = ("args", "callback", "owner")

    def __init__(self, owner: Process, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.owner = owner
        self.callback: Callable[..., object] | None = callback
        self.args: tuple[Any, ...] | None = args

    @property
    def pending(self) -> bool:
        return self.callback is not None

    def __bool__(self) -> bool:
        return self.callback is not None

    def stop(self) -> None:
        self.callback = self.args = None

    close = stop


class Watcher:
    """Common to what gevent calls watchers: a callback that is started and stopped."""

    __slots__ = ("args", "callback", "loop", "owner", "priority")

    ref = True
    pending = False

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.owner = CURRENT.get()
        #: gevent sets it; it decides nothing.
        self.priority: Any = None
        self.callback: Callable[..., object] | None = None
        self.args: tuple[Any, ...] = ()

    def start(self, callback: Callable[..., object], *args: Any, **_: object) -> None:
        self.callback, self.args = callback, args

    def stop(self) -> None:
        self.callback, self.args = None, ()

    def close(self) -> None:
        self.stop()

    @property
    def active(self) -> bool:
        return self.callback is not None

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Timer(Watcher):
    """Fires once, or again and again."""

    __slots__ = ("_after", "_entry", "_repeat", "is_due")

    def __init__(self, loop: Loop, after: float, repeat: float) -> None:
        super().__init__(loop)
        #: Whether its time has come, and it was not stopped or started again since.
        self.is_due = False
        self._after = after
        self._repeat = repeat
        #: Its place in the loop's heap: [time, number, self]; self is None after a stop.
        self._entry: list[Any] | None = None

    def start(self, callback: Callable[..., object], *args: Any, **_: object) -> None:
        self.stop()
        self.callback, self.args = callback, args
        self._arm(self._after)

    def again(self, callback: Callable[..., object], *args: Any, **_: object) -> None:
        self._after = self._repeat
        self.start(callback, *args)

    def _arm(self, after: float) -> None:
        seconds = after if after > 0.0 else 0.0
        if seconds and self.owner.timers_late is not None:
            seconds += self.owner.timers_late()
        self._entry = self.loop.at(self.loop.now + seconds, self)

    def stop(self) -> None:
        self.callback, self.args = None, ()
        self.is_due = False
        if self._entry is not None:
            self._entry[2] = None
            self._entry = None

    def time_has_come(self) -> None:
        """For the loop."""
        self.is_due = True
        self._entry = None
        if self._repeat:
            self._arm(self._repeat)

    @property
    def active(self) -> bool:
        return self._entry is not None


class Io(Watcher):
    """Fires in each turn in which its descriptor is ready."""

    __slots__ = ("_events", "file", "pass_events")

    def __init__(self, loop: Loop, file: Pollable, events: int) -> None:
        super().__init__(loop)
        self.file = file
        self._events = events
        self.pass_events = False

    @property
    def events(self) -> int:
        return self._events

    @events.setter
    def events(self, events: int) -> None:
        self._events = events

    def start(self, callback: Callable[..., object], *args: Any, **options: object) -> None:
        self.callback, self.args = callback, args
        self.pass_events = bool(options.get("pass_events"))
        self.file.watchers[self] = None
        if self.file.events() & self._events:
            self.loop.ready[self] = None

    def stop(self) -> None:
        self.callback, self.args = None, ()
        self.file.watchers.pop(self, None)
        self.loop.ready.pop(self, None)


class Async(Watcher):
    """Fires after ``send``."""

    __slots__ = ("_sent",)

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self._sent: Callback | None = None

    def send(self) -> None:
        if not self._sent:
            self._sent = self.loop.schedule(self.owner, self._fire, ())

    send_ignoring_arg = send

    def _fire(self) -> None:
        if self.callback is not None:
            self.callback(*self.args)


class Idle(Watcher):
    """Fires when nothing else is to be done now."""

    __slots__ = ()

    def start(self, callback: Callable[..., object], *args: Any, **_: object) -> None:
        self.callback, self.args = callback, args
        self.loop.idle_watchers[self] = None

    def stop(self) -> None:
        self.callback, self.args = None, ()
        self.loop.idle_watchers.pop(self, None)


class Loop:
    """The loop.

    :param random: decides the order of what happens in one turn; None for the order in which it became ready
    """

    MAXPRI, MINPRI = 2, -2
    default = False
    approx_timer_resolution = 1e-5

    def __init__(self, random: Random | None) -> None:
        self._random = random
        #: Seconds since the simulation began.
        self.now = 0.0
        #: A hash of everything that has happened.
        self.hash = 0
        self.turns = 0
        self.error_handler: Any = None
        #: Called before the time moves on, when nothing is left to do at this time.
        self.before_time_moves: Callable[[], object] | None = None
        #: For each line of a trace.
        self.trace: Callable[[Process, str], object] | None = None
        self._heap: list[list[Any]] = []
        #: The time to which the next turn moves, at least.
        self._next = 0.0
        self._entries = 0
        self._callbacks: deque[Callback] = deque()
        #: Timers whose time has come in this turn.
        self._due: list[Watcher] = []
        #: Watchers of descriptors that are ready.
        self.ready: dict[Io, None] = {}
        #: Processes that have done something in this turn, and whose turns take long.
        self._busy: list[Process] = []
        self.idle_watchers: dict[Idle, None] = {}
        self._files: dict[int, Pollable] = {}
        self._circle_start = 0.0
        self._circle_turns = 0

    # -- what gevent calls -----------------------------------------------------------------------------

    def run_callback(self, callback: Callable[..., object], *args: Any) -> Callback:
        scheduled = Callback(CURRENT.get(), callback, args)
        self._callbacks.append(scheduled)
        return scheduled

    run_callback_threadsafe = run_callback

    def schedule(self, owner: Process, callback: Callable[..., object], args: tuple[Any, ...]) -> Callback:
        """As ``run_callback``, for a process."""
        scheduled = Callback(owner, callback, args)
        self._callbacks.append(scheduled)
        return scheduled

    def timer(self, after: float, repeat: float = 0.0, ref: bool = True, priority: object = None) -> Timer:
        return Timer(self, after, repeat)

    def io(self, fd: int, events: int, ref: bool = True, priority: object = None) -> Io:
        return Io(self, self._files[fd], events)

    def async_(self, ref: bool = True, priority: object = None) -> Async:
        return Async(self)

    def idle(self, ref: bool = True, priority: object = None) -> Idle:
        return Idle(self)

    def signal(self, *_: object, **__: object) -> Watcher:
        return Watcher(self)

    fork = prepare = check = child = signal

    def closing_fd(self, fd: int) -> bool:
        return False

    def update_now(self) -> None:
        pass

    update = reinit = install_sigchld = update_now

    def destroy(self) -> None:
        self._heap.clear()
        self._callbacks.clear()
        self.ready.clear()

    def handle_error(self, context: object, *error: Any) -> None:
        self.error_handler.handle_error(context, *error)

    # -- the rest of the simulation --------------------------------------------------------------------

    def add_file(self, fd: int, file: Pollable) -> None:
        self._files[fd] = file

    def file(self, fd: int) -> Any:
        """The file of an open descriptor; KeyError if there is none."""
        return self._files[fd]

    def remove_file(self, fd: int) -> None:
        self._files.pop(fd, None)

    def became_ready(self, file: Pollable) -> None:
        """The state of a descriptor has changed."""
        events = file.events()
        for watcher in file.watchers:
            if watcher.events & events:
                self.ready[watcher] = None

    def at(self, time: float, event: Any) -> list[Any]:
        """Call ``event()`` at ``time``, or fire it if it is a Timer; None in the entry's last place cancels it."""
        self._entries += 1
        entry = [time, self._entries, event]
        heapq.heappush(self._heap, entry)
        return entry

    def note(self, *numbers: float) -> None:
        """Make something a part of the hash."""
        self.hash = hash((self.hash, self.now, *numbers))

    def stand_still(self, process: Process, seconds: float) -> None:
        until = self.now + seconds
        if until > process.still_until:
            process.standstills.append((max(self.now, process.still_until), until))
            process.still_until = until
            self.at(until, lambda: self._go_on(process))

    def _go_on(self, process: Process) -> None:
        """What a process could not do while it stood still is done in this turn, as in one that took so long."""
        if process.is_alive and self.now >= process.still_until:
            held, process.held = process.held, []
            for item in held:
                if isinstance(item, Callback):
                    if item.callback is not None:
                        self._run(item)
                elif isinstance(item, Timer):
                    if item.is_due:
                        self._due.append(item)
                elif item.active and item.file.events() & item.events:
                    self.ready[item] = None

    def hurry(self, process: Process, seconds: float) -> None:
        """All timers of a process are due earlier."""
        for entry in self._heap:
            if isinstance(entry[2], Timer) and entry[2].owner is process:
                entry[0] = max(self.now, entry[0] - seconds)
        heapq.heapify(self._heap)

    def forget(self, process: Process) -> list[Any]:
        """Drop all that would still run on behalf of a killed process, and return it."""
        dropped: list[Any] = [callback for callback in self._callbacks if callback.owner is process]
        self._callbacks = deque(callback for callback in self._callbacks if callback.owner is not process)
        for entry in self._heap:
            if isinstance(entry[2], Timer) and entry[2].owner is process:
                dropped.append(entry[2])
                entry[2] = None
        for io in [io for io in self.ready if io.owner is process]:
            del self.ready[io]
            dropped.append(io)
        return dropped

    def pending_timers(self) -> list[Timer]:
        """The timers that are set."""
        return [entry[2] for entry in self._heap if isinstance(entry[2], Timer)]

    # -- turns -----------------------------------------------------------------------------------------

    def run(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Whether there is anything left that may happen."""
        self.turns += 1
        self._circle_turns += 1
        if self._circle_turns > MOST_TURNS:
            self._check_circle()
        now = self.now = max(self.now + TURN, self._next)
        if self._callbacks:
            self._run_callbacks()
        heap, due = self._heap, self._due
        while heap and heap[0][0] <= now:
            event = heapq.heappop(heap)[2]
            if type(event) is Timer:
                event.time_has_come()
                due.append(event)
            elif event is not None:
                event()
        if self.ready:
            due += self.ready
        if due:
            self._due = []
            if self._random is not None and len(due) > 1:
                self._random.shuffle(due)
            for watcher in due:
                self._fire(watcher)
        while self._busy:
            process = self._busy.pop()
            if process.turn_seconds is not None:
                self.stand_still(process, process.turn_seconds())
        return bool(self._callbacks or self.ready) or self._move_time()

    def _move_time(self) -> bool:
        """Nothing is left to be done now. Returns whether anything is, later."""
        if self.idle_watchers:
            for watcher in list(self.idle_watchers):
                self._call(watcher.owner, watcher.callback, watcher.args)
            return True
        if self.before_time_moves is not None:
            self.before_time_moves()
            if self._callbacks or self.ready:
                return True
        heap = self._heap
        while heap and heap[0][2] is None:
            heapq.heappop(heap)
        if not heap:
            return False
        self._next = heap[0][0]
        return True

    def _check_circle(self) -> None:
        if self.now - self._circle_start < 2 * MOST_TURNS * TURN:
            busy = [callback.callback for callback in self._callbacks][:5]
            raise RunsInCircles(f"{MOST_TURNS} turns in {self.now - self._circle_start:.3f} s; next: {busy}")
        self._circle_start, self._circle_turns = self.now, 0

    def _run_callbacks(self) -> None:
        callbacks, self._callbacks = self._callbacks, deque()
        if self._random is not None and len(callbacks) > 1:
            callbacks = self._interleaved(callbacks)
        for scheduled in callbacks:
            if scheduled.callback is None:
                continue
            owner = scheduled.owner
            if owner.still_until > self.now:
                owner.held.append(scheduled)
                continue
            self._run(scheduled)

    def _run(self, scheduled: Callback) -> None:
        callback, args = scheduled.callback, scheduled.args or ()
        scheduled.callback = scheduled.args = None
        self._call(scheduled.owner, callback, args)

    def _interleaved(self, callbacks: deque[Callback]) -> deque[Callback]:
        """The same callbacks, each process's in their order."""
        queues: dict[Process, deque[Callback]] = {}
        for scheduled in callbacks:
            queues.setdefault(scheduled.owner, deque()).append(scheduled)
        if len(queues) == 1:
            return callbacks
        order = [owner for owner, queue in queues.items() for _ in queue]
        self._random.shuffle(order)  # type: ignore[union-attr]
        return deque(queues[owner].popleft() for owner in order)

    def _fire(self, watcher: Watcher) -> None:
        callback = watcher.callback
        if callback is None:
            return
        if type(watcher) is Timer and not watcher.is_due:
            return
        owner = watcher.owner
        if owner.still_until > self.now:
            owner.held.append(watcher)
            self.ready.pop(watcher, None)  # type: ignore[call-overload]
            return
        if type(watcher) is Timer:
            watcher.is_due = False
            self._call(owner, callback, watcher.args)
        elif type(watcher) is Io:
            events = watcher.file.events() & watcher.events
            if not events:
                self.ready.pop(watcher, None)
                return
            self._call(owner, callback, (events, *watcher.args) if watcher.pass_events else watcher.args)
        else:
            self._call(owner, callback, watcher.args)

    def _call(self, owner: Process, callback: Any, args: tuple[Any, ...]) -> None:
        CURRENT.set(owner)
        counts = owner.counts
        counts.callbacks += 1
        if owner.last_turn != self.turns:
            owner.last_turn = self.turns
            counts.iterations += 1
            if owner.turn_seconds is not None:
                self._busy.append(owner)
        self.hash = hash((self.hash, self.now, owner.number))
        if self.trace is not None:
            self.trace(owner, getattr(callback, "__qualname__", None) or type(callback).__name__)
        try:
            callback(*args)
        except GreenletExit:
            pass
        except BaseException:
            self.handle_error(callback, *sys.exc_info())
