"""Who may hold how many messages: the RDY plan.

Theory. `slot` says what a connection can cost us, its *charge*. The plan never lets the sum of all charges
grow beyond max_in_flight; where a smaller max_in_flight or a late message made it larger, nothing is raised
until it fits again, and RDY that is not used is taken back.

What is dealt out is the *limit*: max_in_flight less what overdue handlers keep and what connections that are
gone still hold. For nsqd an overdue message is not in flight, so its connection gets a part like every other;
at RDY 0 it would be cut off until the handler ends.

`plan` works in three steps: *goals* (what each connection should have), *decreases* (sent at once),
*increases* (towards the goals, as far as the charges leave room). With limit >= connections goals are equal
shares, and a connection that was idle for long lends all but 1 of its share. With fewer, and while backoff
tests the water, connections take turns with RDY 1: a silent holder's turn ends quickly while there is traffic
somewhere (or may be: somebody had no turn yet), a busy one's after low_rdy_timeout; the seat goes to whoever
waited longest, once the one who left it is settled.

While backoff tests the water, handlers in time are an obstacle: RDY 1 brings nothing before they are answered
or overdue, and a higher one might bring several, since each answer reaches nsqd before the RDY that follows
from it. So a test waits for them, unless another connection is free.

Rules for editors. `plan` changes nothing: the Reader sends the changes and tells each slot by `sent`.
Planned again at the same time it must find nothing to do, so no rule may depend on what `sent` alters at
that moment (RDY itself, `coming`, `turn_at`, who is `ready`). A time that alone changes the plan belongs
into `next_at`; an event that changes it makes `received` or `answered` return True.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from gnsq_like.policy.slot import NEVER, Settings, Slot

__all__ = ["Mode", "Plan", "Settings", "Slot", "plan"]

#: Later than every monotonic time.
FOREVER = float("inf")


class Mode(enum.Enum):
    """What the Reader's backoff allows."""

    FLOWING = "flowing"  #: full throttle
    BLOCKED = "blocked"  #: RDY 0 everywhere
    PROBING = "probing"  #: RDY 1 on one connection tests the water


@dataclass(slots=True)
class Plan:
    """What to do now, and when to ask again."""

    #: (key, rdy) to send in this order, decreases first; only what really changes
    changes: list[tuple[Hashable, int]] = field(default_factory=list)
    #: monotonic time from which the plan may differ although nothing happened, or None
    next_at: float | None = None


def plan(
    slots: Iterable[Slot],
    *,
    max_in_flight: int,
    now: float,
    mode: Mode,
    settings: Settings,
    draw: Callable[[], float],
) -> Plan:
    """Return the RDY changes that are due at `now`.

    `draw` returns a random float in [0, 1), for ties. Send the changes in their order, call `sent` of each
    slot, and plan again at `next_at` and on every event: open, close, another max_in_flight or mode,
    `received` or `answered` returning True.
    """
    everyone = list(slots)
    open_slots = [slot for slot in everyone if not slot.closing]
    board = _Board(everyone, max_in_flight, now, settings, draw)
    if mode is Mode.BLOCKED or board.limit <= 0:
        for slot in open_slots:
            board.grant(slot, 0)
    elif mode is Mode.PROBING:
        _take_turns(board, open_slots, seats=1, probing=True)
    elif len(open_slots) > board.limit:
        _take_turns(board, open_slots, seats=board.limit, probing=False)
    elif open_slots:
        _share(board, open_slots)
    return board.plan


class _Board:
    """The plan in the making."""

    def __init__(
        self, slots: Sequence[Slot], max_in_flight: int, now: float, settings: Settings, draw: Callable[[], float]
    ) -> None:
        self.slots = slots
        self.max_in_flight = max_in_flight
        self.now = now
        self.settings = settings
        self.draw = draw
        self.plan = Plan()
        #: what may be dealt out: not what hung handlers keep, nor what connections that are gone still hold
        self.limit = max_in_flight - sum(slot.in_flight if slot.closing else slot.reserved for slot in slots)
        #: what is left of max_in_flight; below 0 when it is exceeded
        self.room = max_in_flight - sum(slot.charge(now) for slot in slots)
        #: when the next lowered RDY has settled
        self.settles_at = min((slot.settled_at for slot in slots if slot.is_settling(now)), default=FOREVER)

    def grant(self, slot: Slot, rdy: int) -> None:
        """Note the change, if it is one."""
        if rdy == slot.rdy:
            return
        self.plan.changes.append((slot.key, rdy))
        self.room += slot.charge(self.now) - slot.charge_after(rdy, self.now)
        if slot.coming_after(rdy, self.now):
            self.settles_at = min(self.settles_at, self.now + self.settings.settling(slot.round_trip))

    def wake(self, at: float) -> None:
        """Ask again at `at`, if that is still to come."""
        if at > self.now and (self.plan.next_at is None or at < self.plan.next_at):
            self.plan.next_at = at

    def wait(self) -> None:
        """Somebody lacks room: ask again when a lowered RDY has settled. Answers that free some ask by themselves."""
        if self.settles_at != FOREVER:
            self.wake(self.settles_at)


# --- equal shares -----------------------------------------------------------------------------------------


def _share(board: _Board, slots: Sequence[Slot]) -> None:
    """limit >= connections: everybody has RDY, in equal shares or on loan."""
    now = board.now
    goals = _within_limit(board, slots, _goals(board, slots))
    lacking: list[Slot] = []
    held: list[int] = []
    wants: list[int] = []
    for slot, goal in zip(slots, goals, strict=True):
        if goal < slot.rdy:
            board.grant(slot, goal)
        elif goal > slot.rdy:
            # What it holds anyway it may be granted at no cost.
            held.append(min(goal, slot.charge(now) - slot.reserved))
            wants.append(goal - held[-1])
            lacking.append(slot)
    if lacking and board.room <= 0:
        board.wait()
        return
    gifts = _lift(board, board.room, lacking, held, wants)
    for slot, have, gift in zip(lacking, held, gifts, strict=True):
        board.grant(slot, have + gift)
        if have + gift and slot.is_fresh(now):
            board.wake(now + board.settings.settling(slot.round_trip))
    if sum(gifts) < sum(wants):
        board.wait()


def _within_limit(board: _Board, slots: Sequence[Slot], goals: Sequence[int]) -> Sequence[int]:
    """The goals, unless max_in_flight is exceeded (it was lowered, a message came late): then less.

    Those who hold more than they should cannot give it back; so the others hand in RDY they do not use.
    """
    lowered = [min(slot.rdy, goal) for slot, goal in zip(slots, goals, strict=True)]
    closing = sum(slot.firm(0) for slot in board.slots if slot.closing)
    excess = closing + sum(slot.firm(rdy) for slot, rdy in zip(slots, lowered, strict=True)) - board.max_in_flight
    if excess <= 0:
        return goals
    used = [slot.in_time for slot in slots]
    spare = [max(0, rdy - need) for rdy, need in zip(lowered, used, strict=True)]
    left = _lift(board, sum(spare) - excess, slots, used, spare)
    return [min(rdy, need + rest) for rdy, need, rest in zip(lowered, used, left, strict=True)]


def _goals(board: _Board, slots: Sequence[Slot]) -> list[int]:
    """What each should have. A connection idle for long keeps 1 and lends the rest to the others."""
    now, settings = board.now, board.settings
    busy: list[int] = []
    idle: list[int] = []
    for index, slot in enumerate(slots):
        since = now if slot.in_time else slot.idle_since
        lends_at = since + settings.low_rdy_idle_timeout
        (idle if lends_at <= now else busy).append(index)
        if board.limit > len(slots) > 1:
            board.wake(lends_at)
    # Who has more keeps the remainder; else chance decides, lest all Readers favour the same nsqd.
    rank = [(slot.is_fresh(now), -slot.rdy, board.draw()) for slot in slots]
    goals = [0] * len(slots)
    left = board.limit
    for group, kept_back in ((busy, len(idle)), (idle, 0)):
        group.sort(key=rank.__getitem__)
        dealt = _deal(left - kept_back, [slots[index].max_rdy for index in group])
        for index, share in zip(group, dealt, strict=True):
            goals[index] = share
        left -= sum(dealt)
    for index, slot in enumerate(slots):
        if slot.is_fresh(now):
            goals[index] = min(goals[index], 1)
            board.wake(slot.proven_at)
    return goals


def _deal(amount: int, caps: Sequence[int]) -> list[int]:
    """Deal `amount` in equal shares, nobody above his cap; the first ones get the remainder."""
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


def _lift(board: _Board, room: int, slots: Sequence[Slot], held: Sequence[int], wants: Sequence[int]) -> list[int]:
    """Hand out the room so that the lowest rise first; of equals, who waited longest, then by chance."""
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
    next_up.sort(key=lambda index: (slots[index].rdy > 0, slots[index].waiting_since, board.draw()))
    for index in next_up[:room]:
        gifts[index] += 1
    return gifts


def _gifts(level: int, held: Sequence[int], wants: Sequence[int]) -> list[int]:
    """What it takes to lift everybody to `level`."""
    return [min(want, max(0, level - have)) for have, want in zip(held, wants, strict=True)]


# --- turns ------------------------------------------------------------------------------------------------


def _take_turns(board: _Board, slots: Sequence[Slot], *, seats: int, probing: bool) -> None:
    """Fewer seats than connections: RDY 1 for each holder, passed on to whoever waited longest."""
    now, settings = board.now, board.settings
    quick = probing or _has_traffic(slots, now, settings)
    crowd = len(slots) / max(1, seats)
    ends = {slot.key: _turn_ends(slot, now, settings, None if quick else crowd, probing) for slot in slots if slot.rdy}
    # Whoever has just given up a seat, and may still get a message, is not yet ready for another.
    idle = [slot for slot in slots if not slot.rdy and not slot.is_settling(now)]
    ready = [slot for slot in idle if not slot.in_time]
    kept, free = _seated(board, [slot for slot in slots if slot.rdy], seats, ends)

    # A turn that is over goes on until somebody is ready to take it.
    takers = len(ready) - free - (0 if probing else _promised(slots, now, settings))
    over = [slot for slot in kept if ends[slot.key] <= now]
    over.sort(key=lambda slot: (slot.in_time > 0, slot.turn_at, board.draw()))
    leaving = {slot.key for slot in over[: max(0, takers)]}
    kept = [slot for slot in kept if slot.key not in leaving]

    staying = {slot.key for slot in kept}
    for slot in slots:
        if slot.rdy:
            board.grant(slot, int(slot.key in staying))
    # One test message at a time: none may still be on its way when the next probe starts.
    free = 0 if probing and board.settles_at != FOREVER else min(seats - len(kept), board.room)
    ready.sort(key=lambda slot: (slot.waiting_since, slot.reserved > 0, board.draw()))
    for slot in ready[: max(0, free)]:
        board.grant(slot, 1)
        kept.append(slot)
    if len(kept) < len(slots):
        board.wait()
    if len(slots) > seats:
        for slot in kept:
            patience = settings.quick(slot.round_trip)
            ends_at = ends.get(slot.key, now + patience)
            board.wake(ends_at if ends_at > now else now + patience)


def _seated(board: _Board, holders: Sequence[Slot], seats: int, ends: dict[Hashable, float]) -> tuple[list[Slot], int]:
    """The holders that may stay, and the seats free beside them.

    All of them, unless there are fewer seats than before, or a late message needs room.
    """
    others = sum(slot.firm(slot.rdy) for slot in board.slots) - sum(slot.firm(slot.rdy) for slot in holders)
    room = board.max_in_flight - others - sum(slot.firm(0) for slot in holders)
    first = sorted(
        holders,
        key=lambda slot: (
            ends[slot.key] <= board.now,
            not slot.in_time,
            -slot.last_message_at,
            board.draw(),
        ),
    )
    kept: list[Slot] = []
    for slot in first:
        cost = slot.firm(1) - slot.firm(0)
        if len(kept) < seats and cost <= max(0, room):
            kept.append(slot)
            room -= cost
    return kept, max(0, min(seats - len(kept), room))


def _has_traffic(slots: Sequence[Slot], now: float, settings: Settings) -> bool:
    """Whether it is worth while to hurry: somebody delivered in his last turn or lately, or has had none yet."""
    return any(
        slot.delivered or slot.turn_at == NEVER or now - slot.last_message_at < settings.low_rdy_timeout
        for slot in slots
    )


def _turn_ends(slot: Slot, now: float, settings: Settings, crowd: float | None, probing: bool) -> float:
    """When a holder has to give up his seat, as things stand; `crowd` is None while there is traffic."""
    patience = settings.quick(slot.round_trip) if crowd is None else settings.slow(slot.round_trip, crowd)
    silent_at = (now if slot.in_time else max(slot.idle_since, slot.turn_at)) + patience
    return silent_at if probing else min(silent_at, slot.turn_at + settings.low_rdy_timeout)


def _promised(slots: Sequence[Slot], now: float, settings: Settings) -> int:
    """Seats given up that come free with an answer. One that takes longer than a turn is not waited for."""
    return sum(slot.in_time for slot in slots if not slot.rdy and now - slot.waiting_since < settings.low_rdy_timeout)
