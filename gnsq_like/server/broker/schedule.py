"""The broker's work: channels that may have messages to deliver, topics with messages for their channels, and
deadlines.

Deadlines are one heap for the whole broker. An entry stands for all messages of one delivery. It holds
ids, not messages, and is never removed early: when it is due, the channel checks which messages still have
exactly this deadline. Entries without such messages are dropped when the heap has doubled since the last
time, so that a message finished at once does not leave an entry behind for the length of its timeout.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

#: The heap is tidied at this many ids, and then whenever their number has doubled.
_TIDY_AT_LEAST = 8192


class HasDeadlines(Protocol):
    """A channel, for the schedule."""

    def awaits(self, message_id: bytes, due: float) -> bool:
        """Whether this message still has this deadline."""


TopicT = TypeVar("TopicT")
ChannelT = TypeVar("ChannelT", bound=HasDeadlines)


class Schedule(Generic[TopicT, ChannelT]):
    """The broker's work, now and later.

    :param on_work: called when there is new work, at most once until :meth:`take_marked`; it must only
        take note
    """

    def __init__(self, on_work: Callable[[], None]) -> None:
        self._on_work = on_work
        self._noted = False
        #: Channels that may have something to deliver, in the order they were marked.
        self._marked: dict[ChannelT, None] = {}
        #: Topics that have more messages for their channels.
        self._topics: dict[TopicT, None] = {}
        self._heap: list[tuple[float, int, ChannelT, list[bytes]]] = []
        self._sequence = 0
        #: Ids in the heap, with and without their deadlines.
        self._size = 0
        self._tidy_at = _TIDY_AT_LEAST

    def mark(self, channel: ChannelT) -> None:
        """``channel`` may have something to deliver: a message arrived, or a consumer can take one."""
        self._marked[channel] = None
        self._note()

    def mark_topic(self, topic: TopicT) -> None:
        """``topic`` has more for its channels."""
        self._topics[topic] = None
        self._note()

    def take_topics(self) -> list[TopicT]:
        """The topics marked since the last call; :meth:`take_marked` must follow."""
        topics = list(self._topics)
        self._topics.clear()
        return topics

    def take_marked(self) -> list[ChannelT]:
        """The channels marked since the last call."""
        marked = list(self._marked)
        self._marked.clear()
        self._noted = False
        return marked

    def put_back(self, channels: list[ChannelT]) -> None:
        """Mark channels again that were not reached; they come before channels marked since."""
        if channels:
            self._marked = dict.fromkeys([*channels, *self._marked])
            self._note()

    @property
    def next_due(self) -> float | None:
        """The earliest deadline; perhaps of a message that has been answered since."""
        return self._heap[0][0] if self._heap else None

    def remind(self, due: float, channel: ChannelT, ids: list[bytes]) -> None:
        """Report these messages of ``channel`` at ``due``."""
        self._sequence += 1
        heapq.heappush(self._heap, (due, self._sequence, channel, ids))
        self._size += len(ids)
        self._note()

    def pop_due(self, now: float) -> Iterator[tuple[float, ChannelT, list[bytes]]]:
        """Remove and return all deadlines that have passed."""
        while self._heap and self._heap[0][0] <= now:
            due, _, channel, ids = heapq.heappop(self._heap)
            self._size -= len(ids)
            yield due, channel, ids

    def tidy(self) -> None:
        """Drop entries whose messages have no such deadline any more, if enough have gathered."""
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
