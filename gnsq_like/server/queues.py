"""The queue of a topic or channel, behind the four calls that any kind of it must have."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from gnsq_like.server.message import Message


class Queue(Protocol):
    """Messages that wait, first in, first out."""

    #: How many of them are on disk.
    backend_depth: int

    def __len__(self) -> int: ...

    def put(self, messages: Iterable[Message]) -> None:
        """Add at the tail."""

    def take(self, count: int, max_bytes: int) -> list[Message]:
        """Remove up to ``count`` from the head, and no more once their bodies have ``max_bytes``."""

    def trim(self) -> None:
        """Called when all who wanted messages have taken theirs: see to what is above the bound."""

    def clear(self) -> None:
        """Drop all."""


class MemoryQueue:
    """A queue in memory.

    :param bound: how many messages outlast :meth:`trim`; the newest above it are dropped, as nsqd does
        with ephemeral topics and channels. None for any number: without a disk to overflow to, messages
        of a durable topic or channel stay in memory, however many they are, and none is lost.
    """

    backend_depth = 0

    def __init__(self, bound: int | None = None) -> None:
        self._bound = bound
        self._messages: deque[Message] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, messages: Iterable[Message]) -> None:
        self._messages.extend(messages)

    def take(self, count: int, max_bytes: int) -> list[Message]:
        popleft = self._messages.popleft
        taken: list[Message] = []
        for _ in range(min(count, len(self._messages))):
            message = popleft()
            taken.append(message)
            max_bytes -= len(message.body)
            if max_bytes <= 0:
                break
        return taken

    def trim(self) -> None:
        if self._bound is not None:
            while len(self._messages) > self._bound:
                self._messages.pop()

    def clear(self) -> None:
        self._messages.clear()
