"""The RDY plan: how many messages each connection may hold.

Theory. The *charge* of a connection (see `charge`) is the number of messages it may cost us. The plan keeps the sum
of all charges within max_in_flight; if a smaller max_in_flight or a late message has made it larger, nothing is
raised until it fits again, and unused RDY is taken back.

The plan distributes the *limit*: max_in_flight minus the messages of overdue handlers and those that closed
connections still hold. nsqd does not count an overdue message as in flight, so its connection gets a share like any
other; at RDY 0 it would be cut off until the handler ends.

`plan` has three steps: *goals* (what each connection should have), *decreases* (sent immediately), *increases* (towards
the goals, as far as the charges leave room). Goals are equal shares of the limit, if it suffices for one each.
Otherwise, and while backoff tests with one message, connections take turns (*seats*) with RDY 1. The turn of an
idle holder ends quickly while any connection has traffic (or may have: some had no turn yet), that of a busy one after
low_rdy_timeout. The seat goes to the connection that has waited longest, once the previous holder has settled.

A Reader of several topics shares the limit equally among its busy topics, and the part of each equally among that
topic's connections. But no connection gets nothing for that, so a topic of many connections may have more than its
part. With fewer seats than connections the topics have equally many seats, or take turns. Backoff is by topic: in one
that tests, a single connection has RDY 1, and takes its turns among the others.

A connection that delivered nothing for long, or nothing yet, is *silent*. While others are busy, the silent ones take
turns on a few seats (see `turns`), and the busy ones share the rest. While none is busy and there are fewer places than
connections, all places are such seats, whatever the topic, so that this state costs no plans. One message makes a
silent connection a busy one. A busy connection is *hungry* if all of its RDY was in flight lately. While none is, the
silent ones have more seats, one each if possible: that costs no commands, and their first messages come at once.

A turn costs two RDY commands, and an nsqd gets those of all Readers. So there are only so many turns a second
(`Settings.turns`), except first ones.

Where more is in flight than max_in_flight (it was lowered, or a message arrived late), a connection gets RDY only for
what it would still have in flight if the whole excess were answered there: usually 0, until enough has been answered.

Running handlers delay a backoff test: RDY 1 delivers nothing before they are answered or overdue, and a higher RDY
might deliver several messages, because each answer reaches nsqd before the RDY that follows from it. So a test waits
for them, unless another connection is free.

Whole numbers are dealt out at the end of this file: equal shares below caps (`deal`), and rising to a common level
(`lift`).

Rules for editors. `plan` changes nothing (it only finds out what has settled): the Reader sends the changes and reports
each to its charge with `sent`. A second plan at the same time must find nothing to do, so no rule may depend on what
`sent` alters at that moment (RDY itself, `coming`, `turn_at`, which connections are `ready`). A time that changes the
plan by itself belongs in `next_at`; an event that changes it makes `received` or `answered` return True.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from gnsq_like.policy.board import FOREVER, UNLIMITED, Board, Mode, Plan
from gnsq_like.policy.charge import Charge, K, Settings
from gnsq_like.policy.turns import SilentTurns, count_seats, due_at, shared_round

__all__ = ["Charge", "Mode", "Plan", "Settings", "plan"]


def plan(
    charges: Iterable[Charge[K]],
    *,
    max_in_flight: int,
    now: float,
    modes: Mapping[Hashable, Mode],
    settings: Settings,
    draw: Callable[[], float],
    tokens: int = UNLIMITED,
    is_read: Callable[[K], bool] = lambda _: True,
) -> Plan[K]:
    """Return the RDY changes that are due at `now`.

    `modes` has those of the topics in backoff; all others flow. `draw` returns a random float in [0, 1), for ties.
    Send the changes in order, call `sent` of each charge, and plan again at `next_at` and on every event: a connection
    opened or closed, max_in_flight or a mode changed, `received` or `answered` returned True. Until then, call `tick`
    of `turns` at its `next_at`. With a rate limit, `tokens` are the most that there may be. `is_read` is asked about a
    connection whose settling time is over: whether no input waits in its socket.
    """
    everyone = list(charges)
    for charge in everyone:
        charge.settle(now, is_read)
    open_charges = [charge for charge in everyone if not charge.closing]
    board: Board[K] = Board(everyone, max_in_flight, now, settings, draw, tokens, is_read)
    if board.limit <= 0:
        for charge in open_charges:
            board.grant(charge, 0)
    else:
        _distribute(board, _allowed(board, open_charges, modes) if modes else open_charges)
    return board.finish()


# --- topics in backoff -------------------------------------------------------------------------------------


def _by_topic(charges: Iterable[Charge[K]]) -> dict[Hashable, list[Charge[K]]]:
    groups: dict[Hashable, list[Charge[K]]] = {}
    for charge in charges:
        groups.setdefault(charge.topic, []).append(charge)
    return groups


def _allowed(board: Board[K], charges: Sequence[Charge[K]], modes: Mapping[Hashable, Mode]) -> list[Charge[K]]:
    """The connections that may have RDY: those of topics that flow, and one of each topic that tests."""
    allowed: list[Charge[K]] = []
    for topic, group in _by_topic(charges).items():
        mode = modes.get(topic, Mode.FLOWING)
        if mode is Mode.FLOWING:
            allowed += group
            continue
        probe = _probe(board, group) if mode is Mode.PROBING else None
        for charge in group:
            if charge is not probe:
                board.grant(charge, 0)
        if probe is not None:
            board.probes.add(probe.key)
            allowed.append(probe)
    return allowed


def _probe(board: Board[K], group: Sequence[Charge[K]]) -> Charge[K] | None:
    """The connection on which the topic of this group tests; moved when it delivered nothing and another is ready."""
    now, settings = board.now, board.settings
    ready = [charge for charge in group if not (charge.rdy or charge.in_time or charge.coming)]
    probe = max((charge for charge in group if charge.rdy), key=lambda charge: charge.turn_at, default=None)
    if probe is None:
        # One test message at a time: none may be on the network when the next test starts.
        if not ready or any(charge.coming for charge in board.charges if charge.topic == group[0].topic):
            board.wait()
            return None
        # Without chance: another one might be silent where this is not, and the plan would differ.
        probe = min(ready, key=lambda charge: (charge.waiting_since, charge.reserved > 0))
        ends_at = now + settings.quick(probe.round_trip)
    else:
        ends_at = _silent_at(probe, now)
        if ends_at <= now and ready:
            board.wait()
            return None
    if len(group) > 1:
        board.wake(ends_at if ends_at > now else now + settings.quick(probe.round_trip))
    return probe


def _silent_at(holder: Charge[K], now: float) -> float:
    """When the turn of a holder ends because it delivers nothing, as things stand."""
    since = now if holder.in_time else max(holder.idle_since, holder.turn_at)
    return since + holder.settings.quick(holder.round_trip)


# --- busy and silent ---------------------------------------------------------------------------------------


def _distribute(board: Board[K], charges: Sequence[Charge[K]]) -> None:
    """The limit for all, or a few seats of it for the silent ones and the rest for the busy."""
    now = board.now
    busy: list[Charge[K]] = []
    silent: list[Charge[K]] = []
    for charge in charges:
        (silent if charge.is_silent(now) else busy).append(charge)
    seats, shared = 0, 0.0
    if busy and silent:
        seats, shared = _silent_seats(board, silent, busy)
    elif len(silent) > min(board.limit, board.tokens) and not board.probes:
        seats = min(board.limit, board.tokens)
    if seats:
        turns = _rotate(board, silent, seats, shared=shared, idle=not busy)
        _serve(board, busy, board.limit - seats)
        if board.room >= seats - turns.occupied:
            board.plan.turns = turns
        else:  # not before there is room for all seats
            board.wake(turns.next_at(now) or FOREVER)
            board.wait()
    else:
        _serve(board, busy or charges, board.limit)
    if len(charges) > 1:
        for charge in busy:
            if charge.rdy:
                board.wake(charge.silent_at(now))


def _serve(board: Board[K], charges: Sequence[Charge[K]], limit: int) -> None:
    if len(charges) <= limit:
        if charges:
            _share(board, charges, limit)
        return
    topics = list(_by_topic(charges).values())
    if len(topics) == 1 or len(topics) > limit:
        _take_turns(board, charges, seats=limit, by_topic=len(topics) > 1)
        return
    for group, seats in zip(topics, deal(limit, [len(group) for group in topics]), strict=True):
        _take_turns(board, group, seats=seats)


def _silent_seats(board: Board[K], silent: Sequence[Charge[K]], busy: Sequence[Charge[K]]) -> tuple[int, float]:
    """The seats for silent connections while others are busy, and the seconds of a round if these use them, too."""
    now, settings = board.now, board.settings
    unused = min(
        int(settings.unused_part * min(board.limit, board.tokens)), board.limit - settings.busy_minimum * len(busy)
    )
    if unused > board.silent_seats:
        fed_at = max(charge.full_at for charge in busy) + settings.low_rdy_idle_timeout
        # Slow handlers may hold messages for longer than that.
        lowered = (board.limit - unused) // len(busy)
        if fed_at <= now and all(charge.in_time < lowered for charge in busy):
            return min(unused, len(silent)), 0.0
        board.wake(fed_at if fed_at > now else now + settings.low_rdy_idle_timeout)
    if board.silent_seats:
        return count_seats(silent, board.silent_seats, settings, now), 0.0
    # One seat, which the busy ones have while none of the silent uses it or is due.
    shared = shared_round(silent, board.limit, settings)
    next_at = min(due_at(charge, shared) for charge in silent)
    if next_at <= now or any(charge.rdy or charge.coming for charge in silent):
        return 1, shared
    board.wake(next_at)
    return 0, shared


def _rotate(board: Board[K], silent: Sequence[Charge[K]], seats: int, *, shared: float, idle: bool) -> SilentTurns[K]:
    """Turns of the silent connections; none while max_in_flight is exceeded."""
    room = max(0, board.max_in_flight - sum(charge.in_flight for charge in board.charges))
    turns = SilentTurns(
        silent, min(seats, room), shared=shared, now=board.now, draw=board.draw, idle=idle, is_read=board.is_read
    )
    for charge, rdy in turns.tick(board.now, board.room):
        board.grant(charge, rdy)
    return turns


# --- equal shares -----------------------------------------------------------------------------------------


def _share(board: Board[K], charges: Sequence[Charge[K]], limit: int) -> None:
    """limit >= connections: all have RDY, in equal shares."""
    now = board.now
    goals = _within_limit(board, charges, _goals(board, charges, limit))
    lacking: list[Charge[K]] = []
    held: list[int] = []
    wants: list[int] = []
    for charge, goal in zip(charges, goals, strict=True):
        if goal < charge.rdy:
            board.grant(charge, goal)
        elif goal > charge.rdy:
            # RDY up to its present charge costs nothing.
            held.append(min(goal, charge.cost - charge.reserved))
            wants.append(goal - held[-1])
            lacking.append(charge)
    # With no room left, a single connection may still raise RDY up to its charge, which costs nothing. Among several,
    # ties broken at random would differ between plans.
    if lacking and (board.room < 0 or (board.room == 0 and len(charges) > 1)):
        board.wait(grows=True)
        return
    gifts = _lift(board, board.room, lacking, held, wants)
    for charge, have, gift in zip(lacking, held, gifts, strict=True):
        board.grant(charge, have + gift)
        if have + gift and charge.is_fresh(now):
            board.wake(now + board.settings.settling(charge.round_trip))
    if sum(gifts) < sum(wants):
        board.wait(grows=True)


def _within_limit(board: Board[K], charges: Sequence[Charge[K]], goals: Sequence[int]) -> Sequence[int]:
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


def _goals(board: Board[K], charges: Sequence[Charge[K]], limit: int) -> list[int]:
    """Equal shares of `limit`; an unproven connection starts with 1."""
    # The remainder goes to those with more RDY, then at random: otherwise all Readers would favour the same nsqd.
    order = sorted(
        range(len(charges)),
        key=lambda index: (charges[index].is_fresh(board.now), -charges[index].rdy, board.draw()),
    )
    goals = [0] * len(charges)
    for index, share in zip(*_shares(board, charges, order, limit), strict=True):
        goals[index] = share
        if charges[index].is_fresh(board.now):
            goals[index] = min(share, 1)
            board.wake(charges[index].proven_at)
    return goals


def _shares(
    board: Board[K], charges: Sequence[Charge[K]], order: Sequence[int], limit: int
) -> tuple[Sequence[int], Sequence[int]]:
    """The limit dealt out level among topics, and in each among its connections: indexes of charges, and shares."""
    # Topics in the order of the charges: it stays the same, and the remainder with the same topics.
    groups: dict[Hashable, list[int]] = {charge.topic: [] for charge in charges}
    for index in order:
        groups[charges[index].topic].append(index)
    caps = [
        [1 if charges[at].key in board.probes else charges[at].max_rdy for at in group] for group in groups.values()
    ]
    if len(groups) == 1:
        return order, deal(limit, caps[0])
    dealt = deal_to_groups(limit, caps)
    return [at for group in groups.values() for at in group], [share for group in dealt for share in group]


def _lift(
    board: Board[K], room: int, charges: Sequence[Charge[K]], held: Sequence[int], wants: Sequence[int]
) -> list[int]:
    """Distribute the room so that the lowest rise first; ties go to the longest waiting, then at random."""
    return lift(
        room,
        held,
        wants,
        lambda index: (charges[index].rdy > 0, charges[index].waiting_since, board.draw()),
    )


# --- turns ------------------------------------------------------------------------------------------------


def _take_turns(board: Board[K], charges: Sequence[Charge[K]], *, seats: int, by_topic: bool = False) -> None:
    """Fewer seats than connections: RDY 1 for each holder, then for the connection that has waited longest.

    1. A holder keeps its seat unless there are fewer seats than before or max_in_flight is exceeded.
    2. One whose turn is over gives it up, if another is ready for it, and no other seat is free or will be with an
       answer. Those without a message go first.
    3. A free seat goes to the connection that has waited longest, once it has settled and answered.

    :param by_topic: fewer seats than topics, too: each has one at most, the longest waiting is next
    """
    now, settings = board.now, board.settings
    crowd = len(charges) / max(1, seats)
    holders = [charge for charge in charges if charge.rdy]
    ends = {
        charge.key: min(_silent_at(charge, now), charge.turn_at + settings.slice(charge.round_trip, crowd))
        for charge in holders
    }
    # A connection that just lost its seat, and may still get a message, is not ready for another.
    ready = [charge for charge in charges if not (charge.rdy or charge.in_time or charge.coming)]

    # 1.
    kept, free = _seated(board, holders, seats, ends, by_topic)
    since = _one_each(charges, ready, kept) if by_topic else {}

    # 2.
    answering = sum(charge.in_time for charge in charges if not charge.rdy)
    over = [charge for charge in kept if ends[charge.key] <= now]
    over.sort(key=lambda charge: (charge.in_time > 0, charge.turn_at, board.draw()))
    leaving = {charge.key for charge in over[: max(0, len(ready) - free - answering)]}
    kept = [charge for charge in kept if charge.key not in leaving]
    staying = {charge.key for charge in kept}
    for charge in holders:
        board.grant(charge, int(charge.key in staying))

    # 3.
    ready.sort(
        key=lambda charge: (since.get(charge.topic, 0.0), charge.waiting_since, charge.reserved > 0, board.draw())
    )
    for charge in ready[: max(0, min(seats - len(kept), board.room))]:
        board.grant(charge, 1)
        kept.append(charge)

    board.wait()
    for charge in kept:
        lasts = min(settings.quick(charge.round_trip), settings.slice(charge.round_trip, crowd))
        ends_at = ends.get(charge.key, now + lasts)
        board.wake(ends_at if ends_at > now else now + lasts)


def _seated(
    board: Board[K], holders: Sequence[Charge[K]], seats: int, ends: dict[K, float], by_topic: bool
) -> tuple[list[Charge[K]], int]:
    """The holders that keep their seats, and the number of free seats.

    All keep them, unless there are fewer seats than before (or a topic has two) or max_in_flight is exceeded.
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
    kept: list[Charge[K]] = []
    topics: set[Hashable] = set()
    for charge in first:
        if by_topic and charge.topic in topics:
            continue
        cost = charge.firm(1) - charge.firm(0)
        if len(kept) < seats and (cost <= room or (not cost and charge.in_time > excess)):
            kept.append(charge)
            topics.add(charge.topic)
            room -= cost
    return kept, max(0, min(seats - len(kept), room))


def _one_each(charges: Sequence[Charge[K]], ready: list[Charge[K]], kept: Sequence[Charge[K]]) -> dict[Hashable, float]:
    """Leave only one ready connection of each topic without a seat: the longest waiting.

    Returns since when each topic has waited.
    """
    since = {topic: max(charge.waiting_since for charge in group) for topic, group in _by_topic(charges).items()}
    seated = {charge.topic for charge in kept}
    ready[:] = [
        min(group, key=lambda charge: charge.waiting_since)
        for topic, group in _by_topic(ready).items()
        if topic not in seated
    ]
    return since


def deal(amount: int, caps: Sequence[int]) -> list[int]:
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


def lift(room: int, held: Sequence[int], wants: Sequence[int], priority: Callable[[int], Any]) -> list[int]:
    """Distribute the room so that the lowest rise first, each by what it wants at most.

    `priority` maps an index to its place among equals that compete for the remainder, the smallest first.
    """
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
    next_up.sort(key=priority)
    for index in next_up[:room]:
        gifts[index] += 1
    return gifts


def _gifts(level: int, held: Sequence[int], wants: Sequence[int]) -> list[int]:
    """What each needs to reach `level`."""
    return [min(want, max(0, level - have)) for have, want in zip(held, wants, strict=True)]


def deal_to_groups(amount: int, groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Distribute `amount` among groups, level as far as possible, and in each group among its members.

    Each member gets 1 at least; there must be so much. So a group of many members may have more than a level share.

    :param groups: the caps of each group's members; the first groups get the remainder
    """
    least = [len(caps) for caps in groups]
    wants = [sum(caps) - len(caps) for caps in groups]
    gifts = lift(amount - sum(least), least, wants, lambda place: place)
    return [deal(own + gift, caps) for own, gift, caps in zip(least, gifts, groups, strict=True)]
