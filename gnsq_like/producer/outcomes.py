"""What became of a Producer's publishes: the counts, and waking the greenlets that wait for an answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from gnsq_like.errors import OutcomeUnknown, PublishRefused

#: Waiting greenlets woken in one go; after them the hub looks at its sockets.
_WAKE_COUNT = 500


@dataclass(slots=True)
class PublishCounts:
    """Messages by the outcome of their publish, since the start."""

    confirmed: int = 0
    refused: int = 0
    unknown: int = 0
    not_sent: int = 0
    #: Commands sent again after a failure.
    retried: int = 0

    def failed(self, error: Exception, count: int) -> None:
        """A publish of so many messages failed for good."""
        if isinstance(error, PublishRefused):
            self.refused += count
        elif isinstance(error, OutcomeUnknown):
            self.unknown += count
        else:
            self.not_sent += count


class Waits(Protocol):
    """A publish, and the greenlet of this thread that waits for it, if one does."""

    greenlet: Any


class Waker:
    """Wakes waiting greenlets when the hub comes round, a limited number in one go."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._woken: list[Waits] = []

    def wake(self, waiting: Waits) -> None:
        """Its greenlet goes on when the hub comes round. Never switches."""
        if not self._woken:
            self._loop.run_callback(self._wake)
        self._woken.append(waiting)

    def wake_all(self, waiting: Iterable[Waits]) -> None:
        """As ``wake``, for each of them that a greenlet waits for. Never switches."""
        if not self._woken:
            self._loop.run_callback(self._wake)
        self._woken.extend(waiting)

    def _wake(self) -> None:
        # In the hub. A greenlet that is switched to comes back here when it waits again.
        woken = self._woken
        self._woken = woken[_WAKE_COUNT:]
        if self._woken:
            self._loop.run_callback(self._wake)
            woken = woken[:_WAKE_COUNT]
        for publish in woken:
            greenlet = publish.greenlet
            if greenlet is not None:
                greenlet.switch()
