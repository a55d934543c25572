"""A limit of messages a second: tokens, and a plan that never asks nsqds for more messages than there are tokens.

Theory. Each message that arrives takes a *token*; tokens come at `rate`, up to those of a second. nsqd sends messages
while its in-flight count is below RDY, so what may arrive without another command is the *exposure*: the sum over
connections of RDY less those in flight, or of those that are coming after RDY was lowered. It never exceeds the tokens.
So no message waits here for its token, while its time at nsqd runs.

An answer raises the exposure, because nsqd may send another message. Where the tokens do not suffice for that, RDY 0 is
sent before the answer (`overdraws`). So RDY commands come in pairs: RDY up for all tokens there are, RDY 0 when they
have been used. One raise at a time, and a pause between two of them, limit their number to COMMANDS a second; the
tokens that come meanwhile are the next raise's. Where the messages are fewer than the tokens, RDY stays up, and no
commands are needed.

The connections take turns: the next raise is for the busy one that has waited longest. Silent ones (see `charge`) get
RDY 1 on some seats, and pass them on after some silence, while others wait. Where max_in_flight is the tighter limit,
each busy connection has an equal part of it at most.

Rules for editors. As for `rdy.plan`: `plan_limited` changes nothing, and a second plan at the same time finds nothing
to do; `RateLimit.sent` records each command.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import floor

from gnsq_like.policy.board import FOREVER, Plan
from gnsq_like.policy.charge import NEVER, Charge, Settings

#: Seconds whose tokens are kept.
BURST = 1.0
#: RDY commands a second, all connections together.
COMMANDS = 20
#: As many connections are lowered within that number, if all of them have to be; with more of them, it takes longer.
_LOWERED = 9
#: Seconds between a lowering and the next raise.
_PAUSE = 0.001


class RateLimit:
    """The tokens of a Reader, and when it may send RDY.

    :param rate: messages a second, above 0
    """

    __slots__ = ("_at", "_raised_at", "_sent", "_tokens", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        #: The tokens at the monotonic time `_at`; negative after messages that came later than expected.
        self._tokens = 1.0
        self._at = now
        self._raised_at = NEVER
        #: Times of the commands in the last second, the oldest first.
        self._sent: deque[float] = deque()

    @property
    def capacity(self) -> float:
        """The most tokens."""
        return self.rate * BURST + 1

    def tokens(self, now: float) -> float:
        """The tokens that there are."""
        if now > self._at:
            self._tokens = min(self.capacity, self._tokens + self.rate * (now - self._at))
            self._at = now
        return self._tokens

    def take(self, count: int, now: float) -> None:
        """Messages arrived."""
        self._tokens = self.tokens(now) - count

    def change(self, rate: float, now: float) -> None:
        """From now on, another rate."""
        self.tokens(now)
        self.rate = rate
        self._tokens = min(self._tokens, self.capacity)

    def when(self, count: float, now: float) -> float:
        """When there will be `count` tokens, if none is taken."""
        return now + max(0.0, (min(count, self.capacity) - self.tokens(now)) / self.rate)

    def sent(self, raised: bool, now: float) -> None:
        """RDY was sent."""
        self._sent.append(now)
        if raised:
            self._raised_at = now

    def next_raise_at(self, holders: int, now: float) -> float:
        """When RDY may be raised next, while so many connections have RDY and may have to be lowered."""
        while self._sent and self._sent[0] < now - 1:
            self._sent.popleft()
        reserve = 1 + min(holders + 1, _LOWERED)
        at = self._raised_at + 2 / (COMMANDS - reserve)
        if self._sent:
            at = max(at, self._sent[-1] + _PAUSE)  # never together with a lowering
        excess = len(self._sent) + reserve - COMMANDS
        if excess > 0:
            at = max(at, self._sent[excess - 1] + 1 + _PAUSE)
        return at

    def overdraws(self, charges: Sequence[Charge], charge: Charge, answers: int, now: float) -> bool:
        """Whether `answers` on the connection of `charge` would raise the exposure above the tokens."""
        if not charge.rdy:
            return False
        exposure = sum(each.exposed(now) for each in charges) - charge.exposed(now)
        return exposure + charge.exposed(now, answers) > self.tokens(now)


def plan_limited(
    charges: Sequence[Charge],
    limit: RateLimit,
    *,
    max_in_flight: int,
    now: float,
    settings: Settings,
    draw: Callable[[], float],
) -> Plan:
    """The RDY changes that are due at `now`; as `rdy.plan` for a Reader with a rate limit whose backoff is flowing."""
    return _Limited(charges, limit, max_in_flight, now, settings, draw).plan()


class _Limited:
    """The plan under construction."""

    def __init__(
        self,
        charges: Sequence[Charge],
        limit: RateLimit,
        max_in_flight: int,
        now: float,
        settings: Settings,
        draw: Callable[[], float],
    ) -> None:
        self._limit = limit
        self._now = now
        self._settings = settings
        self._draw = draw
        self._plan = Plan()
        self._everyone = charges
        self._charges = [charge for charge in charges if not charge.closing]
        #: What is left of max_in_flight, and of the tokens.
        self._room = max_in_flight - sum(charge.at(now) for charge in charges)
        self._tokens = limit.tokens(now)
        self._exposure = sum(charge.exposed(now) for charge in charges)
        self._free = floor(self._tokens - self._exposure)
        #: What may be distributed.
        self._most = max_in_flight - sum(charge.in_flight if charge.closing else charge.reserved for charge in charges)
        self._excess = sum(charge.firm(charge.rdy) for charge in charges) - max_in_flight
        self._holders = [charge for charge in self._charges if charge.rdy]
        self._silent: list[Charge] = []
        self._busy: list[Charge] = []
        for charge in self._charges:
            (self._silent if charge.is_silent(now) else self._busy).append(charge)
        self._raise_at = limit.next_raise_at(len(self._holders), now)

    def plan(self) -> Plan:
        """The plan, complete."""
        if self._most <= 0:
            for charge in self._holders:
                self._change(charge, 0)
        else:
            self._withdraw()
            if not self._keep_within() and not self._plan.changes:
                self._raise_or_pass_on()
        for charge in self._busy:
            if charge.rdy:
                self._wake(charge.silent_at(self._now))
        return self._plan

    def _change(self, charge: Charge, rdy: int) -> None:
        self._plan.changes.append((charge.key, rdy))

    def _wake(self, at: float) -> None:
        if self._now < at < FOREVER and (self._plan.next_at is None or at < self._plan.next_at):
            self._plan.next_at = at

    # -- less -------------------------------------------------------------------------------------------

    def _withdraw(self) -> None:
        """RDY 0 for those whose exposure is more than the tokens: after a change of the rate, or late messages."""
        exposed = [each for each in self._holders if each.rdy > each.in_time]
        exposed.sort(key=lambda each: (each.rdy - each.in_time, self._draw()))
        total = sum(each.rdy - each.in_time for each in exposed)
        while exposed and total > max(0.0, self._tokens):
            charge = exposed.pop()
            self._change(charge, 0)
            self._holders.remove(charge)
            self._excess -= charge.firm(charge.rdy) - charge.firm(0)
            total -= charge.rdy - charge.in_time
        if self._plan.changes:
            self._wake(self._now + self._settings.settle_minimum)

    def _keep_within(self) -> bool:
        """Less RDY while max_in_flight is exceeded; 0 everywhere if messages in flight exceed it alone, until some are
        answered."""
        if self._excess <= 0:
            return False
        spare = [charge.firm(charge.rdy) - charge.in_flight for charge in self._holders]
        lacking = self._excess
        for charge, unused in zip(self._holders, spare, strict=True):
            given = min(unused, lacking) if sum(spare) >= self._excess else charge.rdy
            lacking -= given
            if given:
                self._change(charge, charge.rdy - given)
        if self._plan.changes:
            self._wake(self._now + self._settings.settle_minimum)
        return True

    # -- more -------------------------------------------------------------------------------------------

    def _raise_or_pass_on(self) -> None:
        busy, silent = self._candidates()
        if not busy and not silent:
            return
        if self._raise_at > self._now:
            self._wake(self._raise_at)
            return
        for charge in self._everyone:
            if charge.is_settling(self._now):
                self._wake(charge.settled_at)
        wanting = [*busy, *silent]
        if self._may_end_turns(wanting):
            # A turn that ends now is not given more first.
            busy = [charge for charge in busy if not charge.rdy or self._turn_ends(charge) > self._now]
        last = max((charge.turn_at for charge in self._silent), default=NEVER)
        if not busy or self._now >= last + self._settings.silent_round:
            done = self._raise_one(silent) or self._pass_seat_on(silent) or self._raise_one(busy)
        else:
            done = self._raise_one(busy) or self._raise_one(silent)
        if not done:
            self._pass_on(wanting)

    def _raise_one(self, charges: Sequence[Charge]) -> bool:
        for charge in charges:
            rdy = self._rdy_for(charge)
            if rdy > charge.rdy:
                self._change(charge, rdy)
                # What it did not get, and the others, have the next raise.
                self._wake(self._now + 2 / COMMANDS)
                return True
        return False

    def _candidates(self) -> tuple[list[Charge], list[Charge]]:
        """The busy and the silent connections that should have more RDY, the longest waiting first."""
        share = self._share()
        busy = [each for each in self._busy if each.rdy < min(share, each.max_rdy)]
        silent = [each for each in self._silent if not each.rdy]
        busy.sort(key=lambda each: (each.rdy > 0, each.waiting_since, self._draw()))
        silent.sort(key=lambda each: (each.waiting_since if each.turn_at != NEVER else NEVER, self._draw()))
        return busy, silent

    def _share(self) -> int:
        """The most RDY of a busy connection."""
        held = sum(1 for charge in self._silent if charge.rdy)
        return max(1, (self._most - held) // len(self._busy)) if self._busy else 0

    def _seats(self) -> int:
        """The most silent connections with RDY."""
        if not self._busy:
            return min(self._most, int(self._limit.capacity))
        return max(1, min(int(self._settings.silent_part * self._most), int(self._limit.capacity) // 2))

    def _rdy_for(self, charge: Charge) -> int:
        """What a connection may have now; not more than it has, if more is not worth a command."""
        now = self._now
        if charge.is_settling(now) or self._free < 1:
            return charge.rdy
        most = charge.at(now) - charge.reserved + max(0, self._room)
        if charge.is_silent(now):
            held = sum(1 for each in self._silent if each.rdy)
            return 1 if most >= 1 and self._room >= 1 and held < self._seats() else 0
        share = min(self._share(), charge.max_rdy)
        rdy = min(share, most, charge.in_time + charge.exposed(now) + self._free)
        return rdy if rdy == share or rdy >= 2 * charge.rdy else charge.rdy

    # -- turns ------------------------------------------------------------------------------------------

    def _pass_seat_on(self, waiting: Sequence[Charge]) -> bool:
        """Another silent connection gets its turn, although busy ones have RDY all the time."""
        holders = [charge for charge in self._silent if charge.rdy]
        return bool(waiting) and len(holders) >= self._seats() and self._end_turn(holders)

    def _pass_on(self, wanting: Sequence[Charge]) -> None:
        """Nobody can be raised: a holder whose turn is over makes room, if that is what is lacking."""
        if self._tokens < self._limit.capacity:
            self._wake(max(self._limit.when(self._exposure + 1, self._now), self._now + 2 / COMMANDS))
        if self._may_end_turns(wanting):
            self._end_turn(self._holders)

    def _may_end_turns(self, wanting: Sequence[Charge]) -> bool:
        """Whether one without RDY could use what a holder gives up."""
        waiting = [charge for charge in wanting if not charge.rdy]
        return bool(waiting) and self._tokens >= 1 and not any(charge.is_settling(self._now) for charge in waiting)

    def _end_turn(self, holders: Sequence[Charge]) -> bool:
        """RDY 0 for the holder whose turn ended first; False if none has."""
        over = min(holders, key=lambda each: (self._turn_ends(each), self._draw()), default=None)
        if over is None or self._turn_ends(over) > self._now:
            self._wake(FOREVER if over is None else self._turn_ends(over))
            return False
        self._change(over, 0)
        self._wake(self._now + self._settings.settling(over.round_trip))
        return True

    def _turn_ends(self, charge: Charge) -> float:
        now, settings = self._now, self._settings
        since = now if charge.in_time else max(charge.idle_since, charge.turn_at)
        crowd = len(self._charges) / max(1, len(self._holders))
        return min(since + settings.quick(charge.round_trip), charge.turn_at + settings.slice(charge.round_trip, crowd))
