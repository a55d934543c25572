"""One queue for the deadlines of all pending publishes.

Most publishes have the same timeout, so their deadlines come in order. Those form a line: adding costs a comparison,
and answered ones are removed from its front as new ones are added. A deadline earlier than the line's last goes to a
heap. Answered publishes behind an unanswered one stay in the line; when there are many, it is rebuilt without them.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from itertools import count
from typing import Protocol

#: The line or heap is rebuilt at twice its pending entries plus this.
_SLACK = 1000


class Expires(Protocol):
    """Something with a deadline, which does not change."""

    deadline: float

    @property
    def done(self) -> bool: ...
    def expire(self) -> None: ...


class Deadlines:
    """Calls ``expire()`` of each added object that is not done at its deadline. Nothing here switches."""

    def __init__(self) -> None:
        self._line: deque[Expires] = deque()
        self._heap: list[tuple[float, int, Expires]] = []
        self._numbers = count()
        self._rebuild_at = _SLACK

    def __len__(self) -> int:
        return len(self._line) + len(self._heap)

    def add(self, thing: Expires) -> None:
        """Watch a deadline."""
        line = self._line
        while line and line[0].done:
            line.popleft()
        if line and thing.deadline < line[-1].deadline:
            self._push(thing)
        else:
            line.append(thing)
        if len(line) > self._rebuild_at:
            self._line = deque(each for each in line if not each.done)
            self._rebuild_at = 2 * len(self._line) + _SLACK

    def _push(self, thing: Expires) -> None:
        heap = self._heap
        while heap and heap[0][2].done:
            heapq.heappop(heap)
        if len(heap) > self._rebuild_at:
            self._heap = heap = [each for each in heap if not each[2].done]
            heapq.heapify(heap)
            self._rebuild_at = 2 * len(heap) + _SLACK
        heapq.heappush(heap, (thing.deadline, next(self._numbers), thing))

    def expire(self, now: float) -> float:
        """Expire objects that are due; returns the earliest deadline left, inf if there is none."""
        line, heap = self._line, self._heap
        while line and (line[0].done or line[0].deadline <= now):
            thing = line.popleft()
            if not thing.done:
                thing.expire()
        while heap and (heap[0][2].done or heap[0][0] <= now):
            _, _, thing = heapq.heappop(heap)
            if not thing.done:
                thing.expire()
        return min(line[0].deadline if line else math.inf, heap[0][0] if heap else math.inf)

    def clear(self) -> None:
        """Drop all deadlines."""
        self._line.clear()
        self._heap.clear()
