"""One connection of a Reader, as the plan sees it: its charge, its level, and its turns; see `places`."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from gnsq_like.policy.charge import FOREVER, NEVER, Charge
from gnsq_like.policy.level import Level

#: The key of a connection.
K = TypeVar("K", bound=Hashable)

#: Seconds for which a connection that has filled its share needs twice as much.
HUNGER = 1.0
#: The order of those that wait: of several that left together, the one with the fewest turns is first.
RANK = ("waiting_since", "turns")


class Line(Charge, Generic[K]):
    """One connection: its charge, and its turns."""

    def __init__(
        self, key: K, level: Level, now: float, *, topic: Hashable = None, round_trip: float = 0.0, max_rdy: int = 2500
    ) -> None:
        super().__init__(round_trip, max_rdy)
        self.key = key
        self.topic = topic
        self.level = level
        #: places needed, at the last plan
        self.need = 0
        #: whether it is silent, and was when its turn began
        self.silent = self.was_silent = True
        #: when it filled its share last, and the most that it has filled without a pause
        self.full_at, self.filled = NEVER, 0
        #: when its last turn began, FOREVER before RDY was sent
        self.turn_at = NEVER
        #: since when it has no place, and how many turns it had
        self.waiting_since, self.turns = now, 0

    def __repr__(self) -> str:
        return (
            f"<Line {self.key!r} share={self.share} rdy={self.rdy} in_flight={self.in_flight} coming={self.coming} "
            f"reserved={self.reserved}{' silent' if self.silent else ''}{' closing' if self.closing else ''}>"
        )

    def note_full(self, now: float) -> None:
        """Note whether it fills its share; after messages have arrived, and before an answer."""
        share, in_time = self.share, self.in_flight - self.slow - self.overdue
        if in_time >= share or self.level.burst >= share:
            lately = self.filled if now < self.full_at + HUNGER else 0
            self.full_at, self.filled = now, max(share, in_time, lately)

    def sent(self, rdy: int, now: float, settling: float) -> None:
        if rdy and self.turn_at == FOREVER:
            self.turn_at = now
        super().sent(rdy, now, settling)

    def grant(self, share: int, now: float) -> None:
        """The share from now on."""
        if share and not self.share:
            self.turn_at, self.was_silent = now if self.rdy else FOREVER, self.silent
            self.turns += 1
        elif self.share and not share:
            self.waiting_since = now
        self.share = share

    def needs(self, now: float) -> int:
        """The places that it needs."""
        if self.silent:
            return 1
        wanted = 2 * self.filled if now < self.full_at + HUNGER else 0
        return max(1, min(self.max_rdy, max(wanted, self.in_time + self.level.burst)))

    @property
    def is_ready(self) -> bool:
        """Whether it has no place, and nothing that takes one."""
        return not (self.share or self.coming or self.in_time)

    def quiet_since(self, now: float) -> float:
        """Since when it has had a place and brought nothing."""
        return now if self.in_time else max(self.turn_at, self.answered_at)

    def fall_silent(self) -> None:
        """Its turn has ended without a message."""
        self.silent, self.need = True, 1
        self.level.fall_silent()
