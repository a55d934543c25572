"""Turns of silent connections, while others are busy or because there are fewer places than connections.

A silent connection has delivered nothing for long, or nothing yet (see `charge`). nsqd answers RDY 1 with a message at
once if it has one, so a few round trips show whether a connection has become busy. While others are busy, the silent
ones therefore need only a few *seats*: RDY 1 for a turn of 25 ms or more, the longest waiting next. Turns are longer
where the seats suffice for more of them a second than there should be. While no connection is busy, all places are
seats, and turns are as long as a turn for each within half of low_rdy_idle_timeout allows.

The plan makes a `SilentTurns` from the charges, and the Reader calls `tick` when turns end. A tick looks only at the
connections on seats, so that a thousand silent connections cost next to nothing; where these are many because no
connection is busy, it moves several turns. Every new plan replaces it, as the one for a silent connection's first
message does.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic

from gnsq_like.policy.charge import NEVER, Charge, K, Settings

#: While no connection is busy, turns that end within this part of a turn end together ...
TOGETHER = 0.05
#: ... or within these seconds, if that is less.
TOGETHER_LONGEST = 0.05


def count_seats(silent: Sequence[Charge[K]], most: int, settings: Settings, now: float) -> int:
    """The seats for these silent connections, of at most `most`: one each, or as few as make a short round."""
    if len(silent) <= most:
        return len(silent)
    is_hurried = any(charge.is_untried(now) for charge in silent)
    a_round = settings.silent_round if is_hurried else settings.round(len(silent))
    return min(most, math.ceil(_spans(silent, settings) / a_round))


def shared_round(silent: Sequence[Charge[K]], limit: int, settings: Settings) -> float:
    """Seconds in which each of these has a turn on the only seat, which they share with busy ones."""
    longest = settings.round(len(silent))
    return longest if limit > 1 else max(longest, _spans(silent, settings) / settings.single_part)


def due_at(charge: Charge[K], a_round: float) -> float:
    """When a connection may have its next turn on the shared seat."""
    return NEVER if charge.turn_at == NEVER else charge.waiting_since + a_round


def _spans(silent: Sequence[Charge[K]], settings: Settings) -> float:
    """Seconds that a turn of each takes."""
    return sum(settings.silent(charge.round_trip) + settings.settling(charge.round_trip) for charge in silent)


class SilentTurns(Generic[K]):
    """Turns on `seats` seats.

    :param shared: seconds of a round if busy connections use the seat too: a turn then ends in any case, and each
        connection has one in a round at most. Otherwise 0
    :param idle: whether no connection is busy
    :param is_read: see `plan`
    """

    def __init__(
        self,
        charges: Sequence[Charge[K]],
        seats: int,
        *,
        shared: float,
        now: float,
        draw: Callable[[], float],
        idle: bool = False,
        is_read: Callable[[K], bool] = lambda _: True,
    ) -> None:
        self._seats = seats
        self._shared = shared
        #: seconds that a turn and its settling time take, or as long as they need if that is longer; not while a
        #: connection waits for its first turn
        self._pace = charges[0].settings.pace(len(charges), seats, idle=idle) if charges and not shared else 0.0
        #: seconds between two ticks at least, then
        self._between = min(TOGETHER * self._pace, TOGETHER_LONGEST) if idle else 0.0
        #: (end of the turn, charge), the earliest first
        self._holders: list[tuple[float, Charge[K]]]
        self._is_read = is_read
        #: those whose seats are free when they have settled
        self._settling: list[Charge[K]] = []
        waiting: list[tuple[bool, float, float, Charge[K]]] = []
        for charge in charges:
            if charge.rdy:
                continue
            if charge.coming:
                self._settling.append(charge)
            else:
                waiting.append((charge.turn_at != NEVER, charge.waiting_since, draw(), charge))
        waiting.sort(key=lambda each: each[:3])
        self._waiting = deque(each[3] for each in waiting)
        self._holders = [(self._ends(charge, charge.turn_at), charge) for charge in charges if charge.rdy]
        self._holders.sort(key=lambda holder: holder[0])

    @property
    def occupied(self) -> int:
        """Seats with a holder, or not free before the last holder's RDY 0 is in force."""
        return len(self._holders) + len(self._settling)

    def tick(self, now: float, room: float = math.inf) -> list[tuple[Charge[K], int]]:
        """End the turns that are over and begin others, at most as many as `room`. Returns (charge, RDY) to send."""
        for charge in list(self._settling):
            charge.settle(now, self._is_read)
            if not charge.coming:
                self._settling.remove(charge)
                self._waiting.append(charge)
        changes = self._leave(now)
        changes += [(charge, 1) for _, charge in self._holders if charge.rdy > 1]
        free = min(self._seats - self.occupied, room)
        while free > 0 and self._waiting and not (self._shared and due_at(self._waiting[0], self._shared) > now):
            charge = self._waiting[0]
            self._holders.append((self._ends(charge, now), charge))
            self._waiting.popleft()
            changes.append((charge, 1))
            free -= 1
        return changes

    def _ends(self, charge: Charge[K], began: float) -> float:
        settings, round_trip = charge.settings, charge.round_trip
        lasts = settings.silent(round_trip)
        if not self._is_hurried:
            # Its end may wait for a tick, and so may the next one's beginning.
            lasts = max(lasts, self._pace - settings.settling(round_trip) - 2 * self._between)
        return began + lasts

    @property
    def _is_hurried(self) -> bool:
        """Whether a connection waits for its first turn."""
        return bool(self._waiting) and self._waiting[0].turn_at == NEVER

    def _leave(self, now: float) -> list[tuple[Charge[K], int]]:
        """Those whose turns are over, as far as others wait; more if there are fewer seats than before."""
        holders = self._holders
        leaving = len(self._waiting) - (self._seats - len(holders))
        if self._shared:
            leaving = len(holders)
        count = max(0, len(holders) - self._seats)
        while count < min(leaving, len(holders)) and holders[count][0] <= now:
            count += 1
        gone, self._holders = holders[:count], holders[count:]
        self._settling += [charge for _, charge in gone]
        return [(charge, 0) for _, charge in gone]

    def next_at(self, now: float) -> float | None:
        """When to call `tick` again, after that of `now`.

        None if none waits, or if the busy ones may have the seat: plan again then.
        """
        times = [charge.settled_at for charge in self._settling]
        if self._waiting or self._settling or self._shared:
            times += [end for end, _ in self._holders if end > now]
        at = min((at for at in times if at > now), default=None)
        return at if at is None or self._is_hurried else max(at, now + self._between)
