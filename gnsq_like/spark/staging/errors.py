"""Errors of staging, beside those of the network.

::

    NSQError
    └── StagingError                       the staging location is not usable
        ├── DataLost                       staged messages that must be delivered are missing
        └── Fenced                         the batch is finished without this attempt, which must not answer anything
"""

from __future__ import annotations

from gnsq_like.errors import NSQError


class StagingError(NSQError):
    """The staging location is not usable; the text says what to do."""


class DataLost(StagingError):
    """A batch in Spark's log has no staged messages any more."""


class Fenced(StagingError):
    """The batch is finished and its staged messages are removed: a task that still works on it must FIN nothing."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place

    def __str__(self) -> str:
        return f"{self.place} is gone: the batch is finished, this attempt comes too late"
