"""What the broker has to do: which channels may have something to deliver, which topics have more for
their channels, and which deadlines come when.

Deadlines are a heap for the whole broker. An entry stands for all messages of one delivery. It holds
ids, not messages, and is never taken back: whoever gets it due looks whether a message is still there
with just this deadline. Entries that stand for nothing any more are tidied away when the heap has
doubled since the last time, so that a message finished at once does not leave an entry behind for the
length of its timeout.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnsq_like.server.broker.channel import Channel
    from gnsq_like.server.broker.topic import Topic

#: Deadlines are tidied when this many have gathered, and then whenever their number has doubled.
_TIDY_AT_LEAST = 8192


class Schedule:
    """What is to be done by the broker, now and later.

    :param on_work: called when there is something new on it, at most once until :meth:`take_marked`;
        it must only take a note
    """

    def __init__(self, on_work: Callable[[], None]) -> None:
        self._on_work = on_work
        self._noted = False
        #: Channels that may have something to deliver, in the order they were marked.
        self._marked: dict[Channel, None] = {}
        #: Topics whose messages are to flow on.
        self._topics: dict[Topic, None] = {}
        self._heap: list[tuple[float, int, Channel, list[bytes]]] = []
        self._sequence = 0
        #: Ids in the heap, live or not.
        self._size = 0
        self._tidy_at = _TIDY_AT_LEAST

    def mark(self, channel: Channel) -> None:
        """``channel`` may have something to deliver: a message came, or somebody can take one."""
        self._marked[channel] = None
        self._note()

    def mark_topic(self, topic: Topic) -> None:
        """``topic`` has more for its channels."""
        self._topics[topic] = None
        self._note()

    def take_topics(self) -> list[Topic]:
        """The topics marked since the last call; :meth:`take_marked` is to follow."""
        topics = list(self._topics)
        self._topics.clear()
        return topics

    def take_marked(self) -> list[Channel]:
        """The channels marked since the last call."""
        marked = list(self._marked)
        self._marked.clear()
        self._noted = False
        return marked

    @property
    def next_due(self) -> float | None:
        """The earliest deadline; perhaps of a message that has been answered since."""
        return self._heap[0][0] if self._heap else None

    def remind(self, due: float, channel: Channel, ids: list[bytes]) -> None:
        """At ``due``, something is to be done about these messages of ``channel``."""
        self._sequence += 1
        heapq.heappush(self._heap, (due, self._sequence, channel, ids))
        self._size += len(ids)
        self._note()

    def pop_due(self, now: float) -> Iterator[tuple[float, Channel, list[bytes]]]:
        """Take out all deadlines that have come."""
        while self._heap and self._heap[0][0] <= now:
            due, _, channel, ids = heapq.heappop(self._heap)
            self._size -= len(ids)
            yield due, channel, ids

    def tidy(self) -> None:
        """Drop deadlines that stand for nothing any more, if so many have gathered that it pays."""
        if self._size < self._tidy_at:
            return
        kept = []
        self._size = 0
        for due, sequence, channel, ids in self._heap:
            live = [message_id for message_id in ids if channel.awaits(message_id, due)]
            if live:
                kept.append((due, sequence, channel, live))
                self._size += len(live)
        heapq.heapify(kept)
        self._heap = kept
        self._tidy_at = max(_TIDY_AT_LEAST, 2 * self._size)

    def _note(self) -> None:
        if not self._noted:
            self._noted = True
            self._on_work()
