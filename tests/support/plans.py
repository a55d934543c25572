"""The promises of the RDY plan for one moment, whatever the connections' state: of ``plan``, and with a rate limit."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any

from gnsq_like.policy.rate_limit import RateLimit, within_tokens
from gnsq_like.policy.rdy import Charge, Mode, Plan, Settings, plan


def check_limited(
    charges: list[Charge[Any]],
    limit: RateLimit,
    *,
    max_in_flight: int,
    now: float,
    settings: Settings,
    rng: random.Random,
) -> Plan[Any]:
    """As `check_plan`, with a rate limit."""
    for charge in charges:
        charge.settle(now, lambda _: True)
    charged = sum(charge.cost for charge in charges)
    exposed = sum(charge.exposed() for charge in charges)
    before = {charge.key: charge.rdy for charge in charges}
    table = {charge.key: charge for charge in charges}

    def ask() -> Plan[Any]:
        draw = rng.random
        tokens = int(limit.capacity)
        made = plan(
            charges, max_in_flight=max_in_flight, now=now, modes={}, settings=settings, draw=draw, tokens=tokens
        )
        return within_tokens(made, charges, limit, now=now, settings=settings, draw=draw)

    made = ask()
    assert made.next_at is None or made.next_at > now
    raised = [key for key, rdy in made.changes if rdy > before[key]]
    assert len(raised) <= 1, "one raise at a time"
    assert not raised or len(made.changes) == 1, "raises and decreases apart"
    assert len({key for key, _ in made.changes}) == len(made.changes), "one RDY for each"
    for key, rdy in made.changes:
        assert rdy != before[key], "only real changes"
        limit.sent(rdy > before[key], now)
        table[key].sent(rdy, now)
    assert sum(charge.cost for charge in charges) <= max(max_in_flight, charged), "the window"
    assert sum(charge.exposed() for charge in charges) <= max(limit.tokens(now), exposed), "the tokens"
    assert all(0 <= charge.rdy <= charge.max_rdy for charge in charges)
    assert all(charge.rdy == before[charge.key] for charge in charges if charge.closing)
    again = ask()
    assert again.changes == [], ("planning twice", made, again, charges)
    return made


def check_plan(
    charges: list[Charge[Any]], *, max_in_flight: int, now: float, mode: Mode, settings: Settings, rng: random.Random
) -> Plan[Any]:
    """Plan, carry it out, and check every promise that concerns one moment. Returns what was planned."""
    for charge in charges:
        charge.settle(now, lambda _: True)
    charged = sum(charge.cost for charge in charges)
    before = {charge.key: charge.rdy for charge in charges}
    table = {charge.key: charge for charge in charges}

    def ask() -> Plan[Any]:
        return plan(
            charges, max_in_flight=max_in_flight, now=now, modes={None: mode}, settings=settings, draw=rng.random
        )

    made = ask()
    risen = False
    for key, rdy in made.changes:
        assert rdy != before[key], "only real changes"
        assert not (risen and rdy < before[key]), "decreases first"
        risen = risen or rdy > before[key]
        table[key].sent(rdy, now)
    assert len({key for key, _ in made.changes}) == len(made.changes), "one RDY for each"
    assert made.next_at is None or made.next_at > now
    open_slots = [charge for charge in charges if not charge.closing]
    assert sum(charge.cost for charge in charges) <= max(max_in_flight, charged), "the window"
    limit = max_in_flight - sum(charge.in_flight if charge.closing else charge.reserved for charge in charges)
    assert sum(charge.rdy for charge in open_slots) <= max(0, limit)
    assert all(0 <= charge.rdy <= charge.max_rdy for charge in charges)
    assert all(charge.rdy == before[charge.key] for charge in charges if charge.closing)
    if mode is Mode.BLOCKED or limit <= 0:
        assert not any(charge.rdy for charge in open_slots)
    else:
        room = max_in_flight - sum(charge.cost for charge in charges)
        settling = {charge.key for charge in charges if charge.coming}
        _check_shares(open_slots, limit, room, settling, mode, made, now)
    again = ask()
    assert again.changes == [], ("planning twice", made, again, charges)
    return made


def _check_shares(
    open_slots: list[Charge[Any]],
    limit: int,
    room: int,
    settling: set[Hashable],
    mode: Mode,
    made: Plan[Any],
    now: float,
) -> None:
    """Overdue handlers excuse nothing: for nsqd their messages are not in flight."""
    silent = {charge.key for charge in open_slots if charge.is_silent(now)}
    beside_busy = mode is Mode.FLOWING and limit > 1 and 0 < len(silent) < len(open_slots)
    if beside_busy:
        busy = [charge for charge in open_slots if charge.key not in silent]
        unused = min(limit // 2, limit - 2 * len(busy))
        if any(charge.is_hungry(now) or charge.in_time >= (limit - unused) // len(busy) for charge in busy):
            unused = 0
        slow = sum(charge.slow for charge in open_slots)
        room, limit = _check_silent(
            [charge for charge in open_slots if charge.key in silent], unused, limit, slow, room, settling, made, now
        )
        open_slots = busy
    at_zero = [charge for charge in open_slots if not (charge.rdy or charge.in_time)]
    if mode is Mode.PROBING:
        assert sum(charge.rdy for charge in open_slots) <= 1
        if at_zero and room > 0 and not settling:
            assert any(charge.rdy for charge in open_slots), "one connection tests"
    elif room > 0:
        settled = [charge for charge in at_zero if charge.key not in settling]
        waiting = settled if len(open_slots) > limit else at_zero
        assert not waiting, "none is at 0 while there is room, except one that has just given up its turn"
    if len(open_slots) > limit + beside_busy:
        assert all(charge.rdy <= 1 for charge in open_slots)
    if at_zero and room > 0:
        assert _goes_on(made, now), "a connection that has nothing although there is room waits"


def _goes_on(made: Plan, now: float) -> bool:
    """Whether there is a time at which to plan again, or to go on with the turns: the Reader waits for both."""
    return made.next_at is not None or (made.turns is not None and made.turns.next_at(now) is not None)


def _check_silent(
    silent: list[Charge[Any]],
    unused: int,
    limit: int,
    slow: int,
    room: int,
    settling: set[Hashable],
    made: Plan,
    now: float,
) -> tuple[int, int]:
    """Silent connections beside busy ones. Returns the room and the limit for the busy."""
    most = max(1, min(limit, int(silent[0].settings.silent_part * (limit + slow))), min(unused, len(silent)))
    assert all(charge.rdy <= 1 for charge in silent)
    holding = sum(charge.rdy for charge in silent)
    assert holding <= most, "the silent leave the rest to the busy"
    waiting = [charge for charge in silent if not charge.rdy]
    if waiting and room > 0:
        assert _goes_on(made, now), "a silent connection gets its turn"
        if not settling and silent[0].settings.silent_part * limit >= 1:
            assert holding, "their seats are used"
    # The room that is left may be theirs: the seat of a connection that settles, or that none is due for.
    return max(0, room - (most - holding)), limit - most
