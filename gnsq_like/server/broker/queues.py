"""The queue of a topic or channel: in memory, or in memory with overflow to disk.

With a disk the order is always first in, first out: while messages are on disk, new ones go behind them.
(nsqd takes from memory or disk at random.) So messages go to disk only when more than ``bound`` wait, and a
queue whose consumers keep up never touches it; with a bound of 0, everything waits on disk. A message above
the bound is written before ``put`` returns, and so before its publisher gets an OK.

When the disk fails, ``put`` raises and adds nothing. ``keep`` is for messages that were confirmed to a client: they
stay in memory, above the bound, and ``settle`` moves them to disk when it works again. A publish calls ``settle``
first, so no more messages are accepted while some wait for the disk.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol

from gnsq_like.server.broker.message import Message
from gnsq_like.server.storage.disk_queue import DiskError, DiskQueue

log = logging.getLogger("gnsq_like.nsqd")

#: Single messages that a full disk refuses before the rest of a queue is given up.
_MOST_THAT_DO_NOT_FIT = 3


class Queue(Protocol):
    """Messages that wait, first in, first out. No method switches."""

    @property
    def backend_depth(self) -> int:
        """How many of them are on disk."""

    def __len__(self) -> int: ...

    def put(self, messages: Sequence[Message]) -> None:
        """Add at the tail; raises DiskError, and then adds nothing."""

    def keep(self, messages: Sequence[Message]) -> None:
        """Add at the tail even if the disk fails."""

    def settle(self) -> None:
        """Move messages to disk that ``keep`` could not write; raises DiskError if that still fails."""

    def take(self, count: int, max_bytes: int) -> list[Message]:
        """Remove up to ``count`` from the head, stopping when their bodies have ``max_bytes``.

        Returns none from a queue that is not empty if the disk cannot be read at the moment.
        """

    def trim(self) -> None:
        """Drop messages above the bound, if it applies; called when the consumers have taken what they can."""

    def clear(self) -> None:
        """Drop all messages."""

    def discard(self) -> None:
        """Drop all messages for good: the topic or channel is deleted."""

    def close(self, others: Iterable[Message] = ()) -> int:
        """Write what is in memory to disk, and ``others`` behind it, before the queue is abandoned.

        Returns how many could not be written, and are lost.
        """


#: Makes the queue of a topic (by its name) or channel ("topic:channel"); the bool is whether it is ephemeral.
QueueMaker = Callable[[str, bool], Queue]


class MemoryQueue(deque[Message]):
    """A queue in memory.

    :param bound: how many messages :meth:`trim` leaves; it drops the newest above that, as nsqd does with
        ephemeral topics and channels. None for any number: without a disk to overflow to, all messages of a
        durable topic or channel stay in memory, and none is lost.
    """

    backend_depth = 0

    def __init__(self, bound: int | None = None) -> None:
        super().__init__()
        self._bound = bound

    put = keep = deque.extend
    discard = deque.clear

    def settle(self) -> None:
        pass

    def take(self, count: int, max_bytes: int) -> list[Message]:
        return _take(self, count, max_bytes)

    def trim(self) -> None:
        if self._bound is not None:
            while len(self) > self._bound:
                self.pop()

    def close(self, others: Iterable[Message] = ()) -> int:
        self.clear()
        return 0  # where there is no disk, none was promised


def _take(messages: deque[Message], count: int, max_bytes: int) -> list[Message]:
    popleft = messages.popleft
    taken: list[Message] = []
    for _ in range(min(count, len(messages))):
        message = popleft()
        taken.append(message)
        max_bytes -= len(message.body)
        if max_bytes <= 0:
            break
    return taken


class OverflowQueue:
    """A queue in memory that overflows to disk. From head to tail: memory, disk, messages that could not be written.

    :param disk: an open disk queue
    :param bound: the most messages in memory
    :param on_use: called after every write to the disk, with None or the error, and when it cannot be read
    :param on_discard: called when the queue is discarded
    """

    def __init__(
        self,
        disk: DiskQueue,
        bound: int,
        on_use: Callable[[DiskError | None], None],
        on_discard: Callable[[OverflowQueue], None],
    ) -> None:
        self.disk = disk
        self._bound = bound
        self._on_use = on_use
        self._on_discard = on_discard
        self._memory: deque[Message] = deque()
        #: Messages that must go to disk and could not yet.
        self._unsettled: deque[Message] = deque()

    def __len__(self) -> int:
        return len(self._memory) + self.disk.depth + len(self._unsettled)

    @property
    def backend_depth(self) -> int:
        return self.disk.depth

    def put(self, messages: Sequence[Message]) -> None:
        # None may go to memory while others wait behind those in memory.
        room = 0 if self.disk.depth or self._unsettled else self._bound - len(self._memory)
        if len(messages) <= room:
            self._memory.extend(messages)
        else:
            self.settle()
            self._write(messages[room:])
            self._memory.extend(messages[:room])

    def keep(self, messages: Sequence[Message]) -> None:
        try:
            self.put(messages)
        except DiskError:
            self._unsettled.extend(messages)

    def settle(self) -> None:
        if self._unsettled:
            self._write(self._unsettled)
            self._unsettled.clear()

    def _write(self, messages: Iterable[Message]) -> None:
        try:
            self.disk.put([(m.timestamp_ns, m.attempts, m.id, m.body) for m in messages])
        except DiskError as error:
            self._on_use(error)
            raise
        self._on_use(None)

    def take(self, count: int, max_bytes: int) -> list[Message]:
        taken = _take(self._memory, count, max_bytes)
        if not self._memory and len(taken) < count and (self.disk.depth or self._unsettled):
            max_bytes -= sum([len(message.body) for message in taken])
            for message in self._read(count - len(taken), max_bytes):
                taken.append(message)
                max_bytes -= len(message.body)
            if not self.disk.depth and max_bytes > 0:
                taken += _take(self._unsettled, count - len(taken), max_bytes)
        return taken

    def _read(self, count: int, max_bytes: int) -> Iterator[Message]:
        try:
            records = self.disk.take(count, max_bytes)
        except DiskError as error:
            self._on_use(error)
            return
        for timestamp_ns, attempts, message_id, body in records:
            message = Message(message_id, timestamp_ns, body)
            message.attempts = attempts
            yield message

    def trim(self) -> None:
        pass

    def clear(self) -> None:
        self._memory.clear()
        self._unsettled.clear()
        self.disk.clear()

    def discard(self) -> None:
        self.clear()
        self.disk.discard()
        self._on_discard(self)

    def close(self, others: Iterable[Message] = ()) -> int:
        rest = list(chain(self._memory, self._unsettled, others))
        self._memory.clear()
        self._unsettled.clear()
        lost = self._write_what_fits(rest)
        try:
            self.disk.close()
        except DiskError as error:
            log.error("%s: messages may be lost - %s", self.disk.name, error)
        return lost

    def _write_what_fits(self, messages: list[Message]) -> int:
        """Write as many messages as an almost full disk accepts; returns the number of the others."""
        portion = len(messages)
        done = lost = 0
        while done < len(messages):
            try:
                self._write(messages[done : done + portion])
                done += portion
            except DiskError as error:
                if portion > 1:
                    portion //= 2
                    continue
                lost += 1  # a smaller one may fit
                done += 1
                if lost == _MOST_THAT_DO_NOT_FIT:
                    lost += len(messages) - done
                    done = len(messages)
                log.error("%s: %d messages are lost, they were in memory - %s", self.disk.name, lost, error)
        return lost
