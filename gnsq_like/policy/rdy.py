"""The RDY plan: how many messages each connection may hold.

Theory. The *charge* of a connection (see `charge`) is the number of messages it may cost us. The plan keeps the sum
of all charges within max_in_flight; if a smaller max_in_flight or a late message has made it larger, nothing is
raised until it fits again, and unused RDY is taken back.

The plan distributes the *limit*: max_in_flight minus the messages of overdue handlers and those that closed
connections still hold. nsqd does not count an overdue message as in flight, so its connection gets a share like any
other; at RDY 0 it would be cut off until the handler ends.

`plan` has three steps: *goals* (what each connection should have), *decreases* (sent immediately), *increases*
(towards the goals, as far as the charges leave room). Goals are equal shares of the limit, if it suffices for one
each. Otherwise, and while backoff tests with one message, connections take turns (*seats*) with RDY 1. The turn of
an idle holder ends quickly while any connection has traffic (or may have: some had no turn yet), that of a busy one
after low_rdy_timeout. The seat goes to the connection that has waited longest, once the previous holder has settled.

A connection that delivered nothing for long, or nothing yet, is *silent*. While others are busy, the silent ones take
short turns on a few seats (see `turns`), and the busy ones share the rest. One message makes a silent connection a
busy one.

Where more is in flight than max_in_flight (it was lowered, or a message arrived late), a connection gets RDY only for
what it would still have in flight if the whole excess were answered there: usually 0, until enough has been answered.

Running handlers delay a backoff test: RDY 1 delivers nothing before they are answered or overdue, and a higher RDY
might deliver several messages, because each answer reaches nsqd before the RDY that follows from it. So a test waits
for them, unless another connection is free.

Rules for editors. `plan` changes nothing: the Reader sends the changes and reports each to its charge with `sent`. A
second plan at the same time must find nothing to do, so no rule may depend on what `sent` alters at that moment (RDY
itself, `coming`, `turn_at`, which connections are `ready`). A time that changes the plan by itself belongs in
`next_at`; an event that changes it makes `received` or `answered` return True.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from gnsq_like.policy.charge import NEVER, Charge, Settings
from gnsq_like.policy.turns import SilentTurns, count_seats, due_at, is_due

__all__ = ["Charge", "Mode", "Plan", "Settings", "plan"]

#: Later than every monotonic time.
FOREVER = float("inf")


class Mode(enum.Enum):
    """The RDY that the Reader's backoff allows."""

    FLOWING = "flowing"  #: all of it
    BLOCKED = "blocked"  #: RDY 0 everywhere
    PROBING = "probing"  #: RDY 1 on one connection, for a test message


@dataclass(slots=True)
class Plan:
    """What to send now, and when to plan again."""

    #: (key, rdy) to send in this order, decreases first; real changes only
    changes: list[tuple[Hashable, int]] = field(default_factory=list)
    #: monotonic time at which the plan may differ although nothing happened, or None
    next_at: float | None = None
    #: whether busy connections get more RDY as soon as what was lowered has settled
    grows: bool = False
    #: turns to carry on with until the next plan, or None
    turns: SilentTurns | None = None


def plan(
    charges: Iterable[Charge],
    *,
    max_in_flight: int,
    now: float,
    mode: Mode,
    settings: Settings,
    draw: Callable[[], float],
) -> Plan:
    """Return the RDY changes that are due at `now`.

    `draw` returns a random float in [0, 1), for ties. Send the changes in order, call `sent` of each charge, and plan
    again at `next_at` and on every event: a connection opened or closed, max_in_flight or the mode changed,
    `received` or `answered` returned True. Until then, call `tick` of `turns` at its `next_at`.
    """
    everyone = list(charges)
    open_charges = [charge for charge in everyone if not charge.closing]
    board = _Board(everyone, max_in_flight, now, settings, draw)
    if mode is Mode.BLOCKED or board.limit <= 0:
        for charge in open_charges:
            board.grant(charge, 0)
    elif mode is Mode.PROBING:
        _take_turns(board, open_charges, seats=1, probing=True)
    else:
        _distribute(board, open_charges)
    return board.finish()


class _Board:
    """The plan under construction."""

    def __init__(
        self, charges: Sequence[Charge], max_in_flight: int, now: float, settings: Settings, draw: Callable[[], float]
    ) -> None:
        self.charges = charges
        self.max_in_flight = max_in_flight
        self.now = now
        self.settings = settings
        self.draw = draw
        self.plan = Plan()
        self._granted: dict[Hashable, int] = {}
        self._increases: set[Hashable] = set()
        self._lacks_room = False
        #: whether busy connections have less than their goals
        self.is_short = False
        #: what may be distributed: max_in_flight minus overdue messages and those of closed connections
        self.limit = max_in_flight - sum(charge.in_flight if charge.closing else charge.reserved for charge in charges)
        #: most seats that the silent may keep from the busy; at 0 they have one, and only for a turn in each round
        self.silent_seats = int(settings.silent_part * self.limit)
        #: what is left of max_in_flight; negative when it is exceeded
        self.room = max_in_flight - sum(charge.at(now) for charge in charges)
        #: when the next lowered RDY will have settled
        self.settles_at = min((charge.settled_at for charge in charges if charge.is_settling(now)), default=FOREVER)

    def grant(self, charge: Charge, rdy: int) -> None:
        """Add this to the plan, if it changes the charge's RDY."""
        if rdy == charge.rdy:
            return
        self.plan.changes.append((charge.key, rdy))
        self._granted[charge.key] = rdy
        if rdy > charge.rdy:
            self._increases.add(charge.key)
        self.room += charge.at(self.now) - charge.after(rdy, self.now)
        if charge.coming_after(rdy, self.now):
            self.settles_at = min(self.settles_at, self.now + self.settings.settling(charge.round_trip))

    def firm_without(self, group: Sequence[Charge]) -> int:
        """The firm charge of all connections that are not in `group`, with the RDY of this plan."""
        apart = {charge.key for charge in group}
        return sum(
            charge.firm(self._granted.get(charge.key, charge.rdy)) for charge in self.charges if charge.key not in apart
        )

    def wake(self, at: float) -> None:
        """Plan again at `at`, if that is in the future."""
        if self.now < at < FOREVER and (self.plan.next_at is None or at < self.plan.next_at):
            self.plan.next_at = at

    def wait(self) -> None:
        """Room is lacking: plan again when a lowered RDY has settled. Answers that free room cause a plan anyway."""
        self._lacks_room = True

    def finish(self) -> Plan:
        """The plan, complete."""
        if self._lacks_room and self.settles_at != FOREVER:
            self.wake(self.settles_at)
            self.plan.grows = self.is_short
        # Stable: decreases first. They may precede any increase, which counts on no room that they take.
        self.plan.changes.sort(key=lambda change: change[0] in self._increases)
        return self.plan


# --- busy and silent ---------------------------------------------------------------------------------------


def _distribute(board: _Board, charges: Sequence[Charge]) -> None:
    """The limit for all, or a few seats of it for the silent ones and the rest for the busy."""
    now = board.now
    busy: list[Charge] = []
    silent: list[Charge] = []
    for charge in charges:
        (silent if charge.is_silent(now) else busy).append(charge)
    seats = _silent_seats(board, silent) if busy else 0
    if seats:
        turns = _rotate(board, silent, seats)
        _serve(board, busy, board.limit - seats)
        if board.room >= seats - turns.occupied:
            board.plan.turns = turns
        else:  # not before there is room for all seats
            board.wake(turns.next_at(now) or FOREVER)
            board.wait()
    elif silent and busy and board.limit > 1:
        _serve(board, busy, board.limit)
    else:
        _serve(board, charges, board.limit)
    if len(charges) > 1 and board.limit > 1:
        for charge in busy:
            if charge.rdy:
                board.wake(charge.silent_at(now))


def _serve(board: _Board, charges: Sequence[Charge], limit: int) -> None:
    if len(charges) > limit:
        _take_turns(board, charges, seats=limit, probing=False)
    elif charges:
        _share(board, charges, limit)


def _silent_seats(board: _Board, silent: Sequence[Charge]) -> int:
    """The seats for silent connections while others are busy."""
    if not silent or board.limit == 1:
        return 0
    if board.silent_seats:
        return count_seats(silent, board.silent_seats, board.settings)
    # One seat, which the busy ones have while none of the silent uses it or is due.
    if any(charge.rdy or charge.is_settling(board.now) or is_due(charge, board.now) for charge in silent):
        return 1
    board.wake(min(map(due_at, silent)))
    return 0


def _rotate(board: _Board, silent: Sequence[Charge], seats: int) -> SilentTurns:
    """Turns of the silent connections; none while max_in_flight is exceeded."""
    room = max(0, board.max_in_flight - sum(charge.in_flight for charge in board.charges))
    turns = SilentTurns(silent, min(seats, room), shared=not board.silent_seats, now=board.now, draw=board.draw)
    for charge, rdy in turns.tick(board.now, board.room):
        board.grant(charge, rdy)
    return turns


# --- equal shares -----------------------------------------------------------------------------------------


def _share(board: _Board, charges: Sequence[Charge], limit: int) -> None:
    """limit >= connections: all have RDY, in equal shares."""
    now = board.now
    goals = _within_limit(board, charges, _goals(board, charges, limit))
    lacking: list[Charge] = []
    held: list[int] = []
    wants: list[int] = []
    for charge, goal in zip(charges, goals, strict=True):
        if goal < charge.rdy:
            board.grant(charge, goal)
        elif goal > charge.rdy:
            # RDY up to its present charge costs nothing.
            held.append(min(goal, charge.at(now) - charge.reserved))
            wants.append(goal - held[-1])
            lacking.append(charge)
    if lacking and board.room <= 0:
        board.is_short = True
        board.wait()
        return
    gifts = _lift(board, board.room, lacking, held, wants)
    for charge, have, gift in zip(lacking, held, gifts, strict=True):
        board.grant(charge, have + gift)
        if have + gift and charge.is_fresh(now):
            board.wake(now + board.settings.settling(charge.round_trip))
    if sum(gifts) < sum(wants):
        board.is_short = True
        board.wait()


def _within_limit(board: _Board, charges: Sequence[Charge], goals: Sequence[int]) -> Sequence[int]:
    """The goals, or less while max_in_flight is exceeded (it was lowered, or a message arrived late).

    First connections lose the RDY they do not use. If what is in flight exceeds it alone, RDY is what a connection
    would still have in flight if the whole excess were answered there, so that no answer brings another message.
    """
    lowered = [min(charge.rdy, goal) for charge, goal in zip(charges, goals, strict=True)]
    firm = board.firm_without(charges) + sum(charge.firm(rdy) for charge, rdy in zip(charges, lowered, strict=True))
    excess = firm - board.max_in_flight
    if excess <= 0:
        return goals
    used = [charge.in_time for charge in charges]
    spare = [max(0, rdy - need) for rdy, need in zip(lowered, used, strict=True)]
    if excess > sum(spare):
        excess -= sum(spare)
        return [min(rdy, max(0, need - excess)) for rdy, need in zip(lowered, used, strict=True)]
    left = _lift(board, sum(spare) - excess, charges, used, spare)
    return [min(rdy, need + rest) for rdy, need, rest in zip(lowered, used, left, strict=True)]


def _goals(board: _Board, charges: Sequence[Charge], limit: int) -> list[int]:
    """Equal shares of `limit`; an unproven connection starts with 1."""
    # The remainder goes to those with more RDY, then at random: otherwise all Readers would favour the same nsqd.
    order = sorted(
        range(len(charges)),
        key=lambda index: (charges[index].is_fresh(board.now), -charges[index].rdy, board.draw()),
    )
    goals = [0] * len(charges)
    for index, share in zip(order, _deal(limit, [charges[index].max_rdy for index in order]), strict=True):
        goals[index] = share
        if charges[index].is_fresh(board.now):
            goals[index] = min(share, 1)
            board.wake(charges[index].proven_at)
    return goals


def _deal(amount: int, caps: Sequence[int]) -> list[int]:
    """Distribute `amount` in equal shares, none above its cap; the first ones get the remainder."""
    shares = [0] * len(caps)
    by_cap = sorted(range(len(caps)), key=caps.__getitem__)
    for place, index in enumerate(by_cap):
        fair, remainder = divmod(amount, len(caps) - place)
        if caps[index] > fair:
            for rank, other in enumerate(sorted(by_cap[place:])):
                shares[other] = fair + (rank < remainder)
            break
        shares[index] = caps[index]
        amount -= caps[index]
    return shares


def _lift(board: _Board, room: int, charges: Sequence[Charge], held: Sequence[int], wants: Sequence[int]) -> list[int]:
    """Distribute the room so that the lowest rise first; ties go to the longest waiting, then at random."""
    room = max(0, room)
    if sum(wants) <= room:
        return list(wants)
    low, high = 0, max(held) + room
    while low < high:
        level = (low + high + 1) // 2
        if sum(_gifts(level, held, wants)) <= room:
            low = level
        else:
            high = level - 1
    gifts = _gifts(low, held, wants)
    room -= sum(gifts)
    next_up = [index for index, want in enumerate(wants) if gifts[index] < want and held[index] <= low]
    next_up.sort(key=lambda index: (charges[index].rdy > 0, charges[index].waiting_since, board.draw()))
    for index in next_up[:room]:
        gifts[index] += 1
    return gifts


def _gifts(level: int, held: Sequence[int], wants: Sequence[int]) -> list[int]:
    """What each needs to reach `level`."""
    return [min(want, max(0, level - have)) for have, want in zip(held, wants, strict=True)]


# --- turns ------------------------------------------------------------------------------------------------


def _take_turns(board: _Board, charges: Sequence[Charge], *, seats: int, probing: bool) -> None:
    """Fewer seats than connections: RDY 1 for each holder, then for the connection that has waited longest."""
    now, settings = board.now, board.settings
    quick = probing or _has_traffic(charges, now, settings)
    crowd = len(charges) / max(1, seats)
    ends = {
        charge.key: _turn_ends(charge, now, settings, None if quick else crowd, probing)
        for charge in charges
        if charge.rdy
    }
    # A connection that just lost its seat, and may still get a message, is not ready for another.
    idle = [charge for charge in charges if not charge.rdy and not charge.is_settling(now)]
    ready = [charge for charge in idle if not charge.in_time]
    kept, free = _seated(board, [charge for charge in charges if charge.rdy], seats, ends)

    # A turn that is over continues until another connection is ready for the seat.
    takers = len(ready) - free - (0 if probing else _promised(charges, now, settings))
    over = [charge for charge in kept if ends[charge.key] <= now]
    over.sort(key=lambda charge: (charge.in_time > 0, charge.turn_at, board.draw()))
    leaving = {charge.key for charge in over[: max(0, takers)]}
    kept = [charge for charge in kept if charge.key not in leaving]

    staying = {charge.key for charge in kept}
    for charge in charges:
        if charge.rdy:
            board.grant(charge, int(charge.key in staying))
    # One test message at a time: none may be on the network when the next probe starts.
    free = 0 if probing and board.settles_at != FOREVER else min(seats - len(kept), board.room)
    ready.sort(key=lambda charge: (charge.waiting_since, charge.reserved > 0, board.draw()))
    for charge in ready[: max(0, free)]:
        board.grant(charge, 1)
        kept.append(charge)
    if len(kept) < len(charges):
        board.wait()
    if len(charges) > seats:
        for charge in kept:
            patience = settings.quick(charge.round_trip)
            ends_at = ends.get(charge.key, now + patience)
            board.wake(ends_at if ends_at > now else now + patience)


def _seated(
    board: _Board, holders: Sequence[Charge], seats: int, ends: dict[Hashable, float]
) -> tuple[list[Charge], int]:
    """The holders that keep their seats, and the number of free seats.

    All keep them, unless there are fewer seats than before or max_in_flight is exceeded.
    """
    room = board.max_in_flight - board.firm_without(holders) - sum(charge.firm(0) for charge in holders)
    excess = max(0, -room)  # answers free this first, so nsqd must not send anything for them
    first = sorted(
        holders,
        key=lambda charge: (
            ends[charge.key] <= board.now,
            not charge.in_time,
            -charge.last_message_at,
            board.draw(),
        ),
    )
    kept: list[Charge] = []
    for charge in first:
        cost = charge.firm(1) - charge.firm(0)
        if len(kept) < seats and (cost <= room or (not cost and charge.in_time > excess)):
            kept.append(charge)
            room -= cost
    return kept, max(0, min(seats - len(kept), room))


def _has_traffic(charges: Sequence[Charge], now: float, settings: Settings) -> bool:
    """Whether turns should be short: a connection delivered in its last turn or recently, or has had no turn yet."""
    return any(
        charge.delivered or charge.turn_at == NEVER or now - charge.last_message_at < settings.low_rdy_timeout
        for charge in charges
    )


def _turn_ends(charge: Charge, now: float, settings: Settings, crowd: float | None, probing: bool) -> float:
    """When a holder's turn ends, as things stand; `crowd` is None while there is traffic."""
    patience = settings.quick(charge.round_trip) if crowd is None else settings.slow(charge.round_trip, crowd)
    silent_at = (now if charge.in_time else max(charge.idle_since, charge.turn_at)) + patience
    return silent_at if probing else min(silent_at, charge.turn_at + settings.low_rdy_timeout)


def _promised(charges: Sequence[Charge], now: float, settings: Settings) -> int:
    """Seats that an answer will free. One that takes longer than a turn is not waited for."""
    return sum(
        charge.in_time for charge in charges if not charge.rdy and now - charge.waiting_since < settings.low_rdy_timeout
    )
