"""What can go wrong with staging, beside the network.

::

    NSQError
    └── StagingError                       the staging location does not do what it must
        ├── DataLost                       staged messages that must be delivered are not there
        └── Fenced                         this attempt's batch is finished without it: it must answer nothing
"""

from __future__ import annotations

from gnsq_like.errors import NSQError


class StagingError(NSQError):
    """The staging location does not do what it must; the text says what to do."""


class DataLost(StagingError):
    """Staged messages that a batch of Spark's log stands for are not there any more."""


class Fenced(StagingError):
    """The batch is finished and its staged messages are removed: whoever still works on it must finish nothing."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place

    def __str__(self) -> str:
        return f"{self.place} is gone: the batch is finished, this attempt comes too late"
