"""Turns of silent connections while others are busy.

A silent connection has delivered nothing for long, or nothing yet (see `charge`). nsqd answers RDY 1 with a message at
once if it has one, so a few round trips show whether a connection has become busy. While others are busy, the silent
ones therefore need only a few *seats*: RDY 1 for a turn of about 25 ms each, the longest waiting next.

The plan makes a `SilentTurns` from the charges, and the Reader calls `tick` when a turn ends. A tick looks only at the
few connections on seats, so that a thousand silent connections cost next to nothing. Every new plan replaces it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from gnsq_like.policy.charge import NEVER, Charge, Settings


def count_seats(silent: Sequence[Charge], most: int, settings: Settings) -> int:
    """The seats for these silent connections, of at most `most`: one each, or as few as make a short round."""
    if len(silent) <= most:
        return len(silent)
    spans = sum(settings.silent(charge.round_trip) + settings.settling(charge.round_trip) for charge in silent)
    a_round = max(settings.silent_round, len(silent) / settings.silent_turns_per_second)
    return min(most, math.ceil(spans / a_round))


def is_due(charge: Charge, now: float) -> bool:
    """Whether a connection that shares its only seat with busy ones may have its next turn."""
    return due_at(charge) <= now


def due_at(charge: Charge) -> float:
    """When a connection that shares its only seat with busy ones may have its next turn."""
    return NEVER if charge.turn_at == NEVER else charge.waiting_since + charge.settings.silent_round


class SilentTurns:
    """Turns on `seats` seats.

    :param shared: whether busy connections use the seat too: a turn then ends in any case, and each connection has one
        in a round at most
    """

    def __init__(
        self, charges: Sequence[Charge], seats: int, *, shared: bool, now: float, draw: Callable[[], float]
    ) -> None:
        self._seats = seats
        self._shared = shared
        #: (end of the turn, charge), the earliest first
        self._holders: list[tuple[float, Charge]] = []
        #: (time at which the seat is free, charge)
        self._settling: list[tuple[float, Charge]] = []
        waiting: list[tuple[bool, float, float, Charge]] = []
        for charge in charges:
            if charge.rdy:
                self._holders.append((charge.turn_at + charge.settings.silent(charge.round_trip), charge))
            elif charge.is_settling(now):
                self._settling.append((charge.settled_at, charge))
            else:
                waiting.append((charge.turn_at != NEVER, charge.waiting_since, draw(), charge))
        self._holders.sort(key=lambda holder: holder[0])
        waiting.sort(key=lambda each: each[:3])
        self._waiting = deque(each[3] for each in waiting)

    @property
    def occupied(self) -> int:
        """Seats with a holder, or not free before the last holder's RDY 0 is in force."""
        return len(self._holders) + len(self._settling)

    def tick(self, now: float, room: float = math.inf) -> list[tuple[Charge, int]]:
        """End the turns that are over and begin others, at most as many as `room`. Returns (charge, RDY) to send."""
        for freed in [each for each in self._settling if each[0] <= now]:
            self._settling.remove(freed)
            self._waiting.append(freed[1])
        changes = self._leave(now)
        changes += [(charge, 1) for _, charge in self._holders if charge.rdy > 1]
        free = min(self._seats - self.occupied, room)
        while free > 0 and self._waiting and not (self._shared and not is_due(self._waiting[0], now)):
            charge = self._waiting.popleft()
            self._holders.append((now + charge.settings.silent(charge.round_trip), charge))
            changes.append((charge, 1))
            free -= 1
        return changes

    def _leave(self, now: float) -> list[tuple[Charge, int]]:
        """Those whose turns are over, as far as others wait; more if there are fewer seats than before."""
        holders = self._holders
        leaving = len(self._waiting) - (self._seats - len(holders))
        if self._shared:
            leaving = len(holders)
        count = max(0, len(holders) - self._seats)
        while count < min(leaving, len(holders)) and holders[count][0] <= now:
            count += 1
        gone, self._holders = holders[:count], holders[count:]
        self._settling += [(now + charge.settings.settling(charge.round_trip), charge) for _, charge in gone]
        return [(charge, 0) for _, charge in gone]

    def next_at(self, now: float) -> float | None:
        """When to call `tick` again; None if none waits, or if the busy ones may have the seat: plan again then."""
        times = [at for at, _ in self._settling]
        if self._waiting or self._settling or self._shared:
            times += [end for end, _ in self._holders if end > now]
        return min((at for at in times if at > now), default=None)
