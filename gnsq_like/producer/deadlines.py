"""One queue and one timer for the deadlines of all pending publishes.

Most publishes have the same timeout, so their deadlines come in order: those stand in a line, to which
adding costs a comparison, and from whose front the answered ones are taken as new ones come. A deadline
earlier than the line's last goes to a heap. An unanswered publish at the front keeps answered ones
behind it; when they are many, the line is rebuilt without them.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

#: Answered publishes kept for no reason, at most, beside as many as are pending.
_SLACK = 1000


class Expires(Protocol):
    """What has a deadline."""

    done: bool
    deadline: float

    def expire(self) -> None: ...


class Deadlines:
    """Calls ``expire()`` of each thing added that is not done at its deadline.

    :param loop: the event loop of the hub where this lives
    :param on_expired: called after some expired
    """

    def __init__(self, loop: Any, on_expired: Callable[[], object]) -> None:
        self._loop = loop
        self._on_expired = on_expired
        self._line: deque[Expires] = deque()
        self._heap: list[tuple[float, int, Expires]] = []
        self._numbers = count()
        self._timer: Any = None
        #: When the timer fires (monotonic); infinity while there is none.
        self._due = float("inf")
        self._rebuild_at = _SLACK

    def __len__(self) -> int:
        return len(self._line) + len(self._heap)

    def add(self, thing: Expires) -> None:
        """Watch a deadline. Never switches."""
        line = self._line
        deadline = thing.deadline
        while line and line[0].done:
            line.popleft()
        if not line or line[-1].deadline <= deadline:
            line.append(thing)
            if len(line) > self._rebuild_at:
                self._line = deque(each for each in line if not each.done)
                self._rebuild_at = 2 * len(self._line) + _SLACK
        else:
            self._push(thing)
        if deadline < self._due:
            self._arm(deadline)

    def _push(self, thing: Expires) -> None:
        heap = self._heap
        while heap and heap[0][2].done:
            heapq.heappop(heap)
        if len(heap) > self._rebuild_at:
            self._heap = heap = [each for each in heap if not each[2].done]
            heapq.heapify(heap)
            self._rebuild_at = 2 * len(heap) + _SLACK
        heapq.heappush(heap, (thing.deadline, next(self._numbers), thing))

    def close(self) -> None:
        """Forget everything; twice is fine."""
        self._disarm()
        self._line.clear()
        self._heap.clear()

    def _arm(self, deadline: float) -> None:
        self._disarm()
        self._due = deadline
        self._timer = self._loop.timer(max(0.0, deadline - time.monotonic()))
        self._timer.start(self._fire)

    def _disarm(self) -> None:
        timer, self._timer = self._timer, None
        self._due = float("inf")
        if timer is not None:
            timer.stop()
            timer.close()

    def _fire(self) -> None:
        self._disarm()
        now = time.monotonic()
        expired = False
        line, heap = self._line, self._heap
        while line and (line[0].done or line[0].deadline <= now):
            thing = line.popleft()
            if not thing.done:
                thing.expire()
                expired = True
        while heap and (heap[0][2].done or heap[0][0] <= now):
            thing = heapq.heappop(heap)[2]
            if not thing.done:
                thing.expire()
                expired = True
        nearest = [*(each.deadline for each in list(line)[:1]), *(each[0] for each in heap[:1])]
        if nearest:
            self._arm(min(nearest))
        if expired:
            self._on_expired()
