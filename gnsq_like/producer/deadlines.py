"""One queue for the deadlines of all pending publishes.

Most publishes have the same timeout, so their deadlines come in order. Those form a line: adding costs a comparison,
and answered ones are removed from its front as new ones are added. A deadline earlier than the line's last goes to a
heap. Answered publishes behind an unanswered one stay in the line; when there are many, it is rebuilt without them.

The queue is looked at once a second until a look finds no entries, and a timer is set for a deadline before the next
look: few publishes need one. The looks go on whatever a signal handler that raises may interrupt.

A look that is late was held up with everything else in this process: a blocked hub, a machine that slept, no CPU. The
answers that came meanwhile are read first, so what has been answered in time does not expire.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

import gevent

from gnsq_like.runtime.timer import Timer

#: The line or heap is rebuilt at twice its pending entries plus this.
_SLACK = 1000
#: Seconds between two looks.
_LOOK = 1.0
#: Seconds by which a look is late if its hub stood still.
_HELD_UP = 0.01
#: Later than every monotonic time.
_NEVER = float("inf")


class Expires(Protocol):
    """Something with a deadline, which does not change."""

    deadline: float

    @property
    def done(self) -> bool: ...
    def expire(self) -> None: ...


class Deadlines:
    """Calls ``expire()`` of each added object that is not done at its deadline.

    :param on_look: called in the hub at each look, and after some expired
    """

    def __init__(self, on_look: Callable[[], object]) -> None:
        self._on_look = on_look
        self._line: deque[Expires] = deque()
        self._heap: list[tuple[float, int, Expires]] = []
        self._numbers = count()
        #: Set for a deadline before the next look.
        self._timer = Timer(lambda: self._expire_due(self._timer.late))
        #: Fires at each look; made in this hub.
        self._looking: Any = None
        #: Monotonic time of the next look.
        self._next_look = _NEVER
        #: Whether the timer is set once more, after a look was late.
        self._is_second_look = False
        self._rebuild_at = _SLACK

    def __len__(self) -> int:
        return len(self._line) + len(self._heap)

    def add(self, thing: Expires) -> None:
        """Watch a deadline. Never switches."""
        line = self._line
        while line and line[0].done:
            line.popleft()
        deadline = thing.deadline
        if line and deadline < line[-1].deadline:
            self._push(thing)
        else:
            line.append(thing)
        if deadline < self._next_look:
            self.arm(deadline)
        if len(line) > self._rebuild_at:
            self._line = deque(each for each in line if not each.done)
            self._rebuild_at = 2 * len(self._line) + _SLACK

    def arm(self, due: float) -> None:
        """Begin to look, if there was nothing to look at, and look at ``due``. Never switches."""
        if self._looking is None:
            self._looking = gevent.get_hub().loop.timer(_LOOK, _LOOK)
        if not self._looking.active:
            self._looking.start(self._look, update=True)
        if self._next_look == _NEVER:
            self._next_look = time.monotonic() + _LOOK
        if due < self._next_look:
            self._timer.set_by(due)

    def _push(self, thing: Expires) -> None:
        heap = self._heap
        while heap and heap[0][2].done:
            heapq.heappop(heap)
        if len(heap) > self._rebuild_at:
            self._heap = heap = [each for each in heap if not each[2].done]
            heapq.heapify(heap)
            self._rebuild_at = 2 * len(heap) + _SLACK
        heapq.heappush(heap, (thing.deadline, next(self._numbers), thing))

    def _look(self) -> None:
        was_empty = not (self._line or self._heap)
        now = time.monotonic()
        late = now - self._next_look
        self._next_look = now + _LOOK
        if not self._timer.is_set:  # it looks soon, or for the second time
            self._expire_due(late)
        self._on_look()
        if was_empty and not (self._line or self._heap):
            self._next_look = _NEVER
            self._looking.stop()

    def close(self) -> None:
        """Drop everything; twice is fine."""
        self._timer.cancel()
        self._next_look = _NEVER
        if self._looking is not None:
            self._looking.close()
            self._looking = None
        self._is_second_look = False
        self._line.clear()
        self._heap.clear()

    def _expire_due(self, late: float) -> None:
        self._is_second_look = not self._is_second_look and late > _HELD_UP
        if self._is_second_look:
            self._timer.set(0.0)
            return
        now = time.monotonic()
        expired = False
        line, heap = self._line, self._heap
        while line and (line[0].done or line[0].deadline <= now):
            thing = line[0]
            try:
                line.popleft()
                if not thing.done:
                    expired = True
                    thing.expire()
            except BaseException:
                line.appendleft(thing)  # a signal handler has raised: later again
                raise
        while heap and (heap[0][2].done or heap[0][0] <= now):
            entry = heap[0]
            try:
                heapq.heappop(heap)
                if not entry[2].done:
                    expired = True
                    entry[2].expire()
            except BaseException:
                heapq.heappush(heap, entry)
                raise
        nearest = [*(each.deadline for each in list(line)[:1]), *(each[0] for each in heap[:1])]
        if nearest and min(nearest) < self._next_look:
            self._timer.set_by(min(nearest))
        if expired:
            self._on_look()
