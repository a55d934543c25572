"""One queue and one timer for the deadlines of all pending publishes.

Most publishes have the same timeout, so their deadlines come in order. Those form a line: adding costs a comparison,
and answered ones are removed from its front as new ones are added. A deadline earlier than the line's last goes to a
heap. Answered publishes behind an unanswered one stay in the line; when there are many, it is rebuilt without them.

A timer that is late was held up with everything else in this process: a blocked hub, a machine that slept, no CPU. The
answers that came meanwhile are read first, so what has been answered in time does not expire.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

from gnsq_like.runtime.timer import Timer

#: The line or heap is rebuilt at twice its pending entries plus this.
_SLACK = 1000
#: Seconds by which a timer is late if its hub stood still.
_HELD_UP = 0.01


class Expires(Protocol):
    """Something with a deadline."""

    done: bool
    deadline: float

    def expire(self) -> None: ...


def _expire(thing: Expires) -> None:
    thing.expire()


class Deadlines:
    """Calls ``expire()`` of each added object that is not done at its deadline.

    :param on_expired: called in the hub after some expired
    :param expire: called instead of the object's own function
    :param grace: seconds after the deadline at which it is called
    """

    def __init__(
        self,
        on_expired: Callable[[], object],
        *,
        expire: Callable[[Any], object] = _expire,
        grace: float = 0.0,
    ) -> None:
        self._on_expired = on_expired
        self._expire = expire
        self._grace = grace
        self._line: deque[Expires] = deque()
        self._heap: list[tuple[float, int, Expires]] = []
        self._numbers = count()
        self._timer = Timer(self._fire)
        #: Whether the timer is set once more, after it was late.
        self._is_second_look = False
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
        due = self._timer.due
        if due is None or deadline + self._grace < due:
            self._timer.set_by(deadline + self._grace)

    def _push(self, thing: Expires) -> None:
        heap = self._heap
        while heap and heap[0][2].done:
            heapq.heappop(heap)
        if len(heap) > self._rebuild_at:
            self._heap = heap = [each for each in heap if not each[2].done]
            heapq.heapify(heap)
            self._rebuild_at = 2 * len(heap) + _SLACK
        heapq.heappush(heap, (thing.deadline, next(self._numbers), thing))

    def look(self) -> None:
        """Go on, if a signal handler that raised has interrupted this. Never switches."""
        if not self._timer.is_set and (self._line or self._heap):
            self._timer.set(0.0)

    def close(self) -> None:
        """Drop everything; twice is fine."""
        self._timer.cancel()
        self._is_second_look = False
        self._line.clear()
        self._heap.clear()

    def _fire(self) -> None:
        self._is_second_look = not self._is_second_look and self._timer.late > _HELD_UP
        if self._is_second_look:
            self._timer.set(self._grace)
            return
        now = time.monotonic() - self._grace
        expired = False
        line, heap = self._line, self._heap
        while line and (line[0].done or line[0].deadline <= now):
            thing = line[0]
            try:
                line.popleft()
                if not thing.done:
                    expired = True
                    self._expire(thing)
            except BaseException:
                line.appendleft(thing)  # a signal handler has raised: later again
                raise
        while heap and (heap[0][2].done or heap[0][0] <= now):
            entry = heap[0]
            try:
                heapq.heappop(heap)
                if not entry[2].done:
                    expired = True
                    self._expire(entry[2])
            except BaseException:
                heapq.heappush(heap, entry)
                raise
        nearest = [*(each.deadline for each in list(line)[:1]), *(each[0] for each in heap[:1])]
        if nearest:
            self._timer.set_by(min(nearest) + self._grace)
        if expired:
            self._on_expired()
