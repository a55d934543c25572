"""The RDY plan under construction: what is granted, what room is left, and when to plan again. See `rdy`."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic

from gnsq_like.policy.charge import Charge, K, Settings
from gnsq_like.policy.turns import SilentTurns

#: Later than every monotonic time.
FOREVER = float("inf")
#: The tokens where there is no rate limit.
UNLIMITED = 1 << 62


class Mode(enum.Enum):
    """The RDY that the Reader's backoff allows."""

    FLOWING = "flowing"  #: all of it
    BLOCKED = "blocked"  #: RDY 0 everywhere
    PROBING = "probing"  #: RDY 1 on one connection, for a test message


@dataclass(slots=True)
class Plan(Generic[K]):
    """What to send now, and when to plan again."""

    #: (key, rdy) to send in this order, decreases first; real changes only
    changes: list[tuple[K, int]] = field(default_factory=list)
    #: monotonic time at which the plan may differ although nothing happened, or None
    next_at: float | None = None
    #: whether busy connections get more RDY as soon as what was lowered has settled
    grows: bool = False
    #: turns to carry on with until the next plan, or None
    turns: SilentTurns[K] | None = None


class Board(Generic[K]):
    """The plan under construction."""

    def __init__(
        self,
        charges: Sequence[Charge[K]],
        max_in_flight: int,
        now: float,
        settings: Settings,
        draw: Callable[[], float],
        tokens: int,
        is_read: Callable[[K], bool],
    ) -> None:
        self.charges = charges
        self.max_in_flight = max_in_flight
        self.now = now
        self.settings = settings
        self.draw = draw
        self.is_read = is_read
        #: the most tokens; silent connections have seats for half of them, or for all while none is busy
        self.tokens = tokens
        self.plan: Plan[K] = Plan()
        self._granted: dict[Charge[K], int] = {}
        self._lacks_room = False
        #: the connections on which topics in backoff test with one message
        self.probes: set[K] = set()
        #: what may be distributed: max_in_flight minus overdue messages and those of closed connections
        self.limit = max_in_flight - sum(charge.in_flight if charge.closing else charge.reserved for charge in charges)
        #: most seats that the silent may keep from hungry ones, whatever these hold with slow messages; at 0 they have
        #: one, and only for a turn in each round
        slow = sum(charge.slow for charge in charges if not charge.closing)
        most = min(settings.silent_part * (self.limit + slow), settings.unused_part * tokens)
        self.silent_seats = min(self.limit, int(most))
        #: what is left of max_in_flight; negative when it is exceeded
        self.room = max_in_flight - sum(charge.cost for charge in charges)
        #: when the next lowered RDY will have settled
        self.settles_at = min((charge.settled_at for charge in charges if charge.coming), default=FOREVER)

    def grant(self, charge: Charge[K], rdy: int) -> None:
        """Add this to the plan, if it changes the charge's RDY."""
        if rdy == charge.rdy:
            return
        self._granted[charge] = rdy
        self.room += charge.cost - charge.cost_after(rdy)
        if charge.coming_after(rdy):
            self.settles_at = min(self.settles_at, self.now + self.settings.settling(charge.round_trip))

    def firm_without(self, group: Sequence[Charge[K]]) -> int:
        """The firm charge of all connections that are not in `group`, with the RDY of this plan."""
        apart = set(group)
        return sum(charge.firm(self._granted.get(charge, charge.rdy)) for charge in self.charges if charge not in apart)

    def wake(self, at: float) -> None:
        """Plan again at `at`, if that is in the future."""
        if self.now < at < FOREVER and (self.plan.next_at is None or at < self.plan.next_at):
            self.plan.next_at = at

    def wait(self, *, grows: bool = False) -> None:
        """Room is lacking: plan again when a lowered RDY has settled. Answers that free room cause a plan anyway.

        :param grows: whether busy connections have less than their goals
        """
        self._lacks_room = True
        self.plan.grows = self.plan.grows or grows

    def finish(self) -> Plan[K]:
        """The plan, complete."""
        self.plan.grows = self.plan.grows and self.settles_at != FOREVER
        if self._lacks_room:
            self.wake(self.settles_at)
        # Stable: decreases first. They may precede any increase, which counts on no room that they take.
        in_order = sorted(self._granted.items(), key=lambda granted: granted[1] > granted[0].rdy)
        self.plan.changes = [(charge.key, rdy) for charge, rdy in in_order]
        return self.plan
