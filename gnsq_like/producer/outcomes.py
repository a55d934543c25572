"""Outcomes of publishes: counts, and waking the greenlets that wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from gnsq_like.errors import OutcomeUnknown, PublishRefused
from gnsq_like.runtime.timer import Soon

#: Greenlets woken per iteration of the hub, which then polls its sockets.
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
        """A publish of ``count`` messages failed for good."""
        if isinstance(error, PublishRefused):
            self.refused += count
        elif isinstance(error, OutcomeUnknown):
            self.unknown += count
        else:
            self.not_sent += count


class Waits(Protocol):
    """A publish, with the greenlet of this thread that waits for it, if any."""

    greenlet: Any


class Waker:
    """Wakes waiting greenlets, a limited number per iteration of the hub."""

    def __init__(self, loop: Any) -> None:
        self._woken: list[Waits] = []
        self._wake_soon = Soon(loop, self._wake)

    def wake(self, waiting: Waits) -> None:
        """Resume its greenlet in the hub's next iteration. Never switches."""
        self._woken.append(waiting)
        self._wake_soon()

    def wake_all(self, waiting: Iterable[Waits]) -> None:
        """As ``wake``, for several; those without a greenlet are ignored. Never switches."""
        self._woken.extend(waiting)
        self._wake_soon()

    def look(self) -> None:
        """Go on, if a signal handler that raised has interrupted this. Never switches."""
        if self._woken:
            self._wake_soon()

    def _wake(self) -> None:
        # In the hub. A woken greenlet returns here when it waits again.
        woken, self._woken = self._woken, []
        count = 0
        try:
            for publish in woken[:_WAKE_COUNT]:
                count += 1
                greenlet = publish.greenlet
                if greenlet is not None:
                    greenlet.switch()
        finally:
            if count < len(woken):
                self._woken[:0] = woken[count:]
                self._wake_soon()
