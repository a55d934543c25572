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

What each connection should have is decided by the plan for all Readers (`rdy`); `within_tokens` lets through what the
tokens allow of it, the longest waiting connection first.

Rules for editors. As for `rdy.plan`: `within_tokens` changes nothing, and a second plan at the same time finds nothing
to do; `RateLimit.sent` records each command.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import ceil, floor

from gnsq_like.policy.board import FOREVER, Plan
from gnsq_like.policy.charge import NEVER, Charge, K, Settings

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
        """The most tokens; `int` of it is for the plan."""
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

    def overdraws(self, charges: Sequence[Charge[K]], charge: Charge[K], answers: int, now: float) -> bool:
        """Whether `answers` on the connection of `charge` would raise the exposure above the tokens."""
        if not charge.rdy:
            return False
        exposure = sum(each.exposed() for each in charges) - charge.exposed()
        return exposure + charge.exposed(answers) > self.tokens(now)


def within_tokens(
    made: Plan[K],
    charges: Sequence[Charge[K]],
    limit: RateLimit,
    *,
    now: float,
    settings: Settings,
    draw: Callable[[], float],
) -> Plan[K]:
    """The part of a plan that tokens and commands allow now: either its decreases, or one of its increases.

    1. Its decreases, and RDY 0 where more may arrive than there are tokens: its rate was lowered, or some were late.
    2. Nothing while RDY must not be raised yet, or there is no token.
    3. The increase for the connection that has waited longest, by half of the free tokens: with all of them, the answer
       to a single message would leave too few, and cost a command. An increase to less than twice its RDY is not worth
       one, unless it is its goal. Busy connections go first, unless the silent have had none for a round.
    """
    by_key = {charge.key: charge for charge in charges}
    goals = {key: rdy for key, rdy in made.changes if rdy > by_key[key].rdy}
    lowered = {charge.key: charge.rdy for charge in charges}
    lowered.update((key, rdy) for key, rdy in made.changes if key not in goals)
    tokens = limit.tokens(now)
    _withdraw(lowered, charges, tokens, draw)
    changes = [(charge.key, lowered[charge.key]) for charge in charges if lowered[charge.key] != charge.rdy]
    limited = Plan(changes, made.next_at, made.grows)

    def wake(at: float | None) -> None:
        if at is not None and now < at < FOREVER:
            limited.next_at = at if limited.next_at is None else min(at, limited.next_at)

    if made.turns is not None:
        wake(made.turns.next_at(now))

    # 1.
    if changes:
        wake(now + settings.settle_minimum)
        return limited
    if not goals:
        return limited

    # 2.
    raise_at = limit.next_raise_at(sum(1 for charge in charges if charge.rdy), now)
    if raise_at > now:
        wake(raise_at)
        return limited
    exposure = sum(charge.exposed() for charge in charges)
    free = ceil(floor(tokens - exposure) / 2)

    # 3.
    wanting = [by_key[key] for key in goals]
    last = max((charge.turn_at for charge in charges if charge.is_silent(now)), default=NEVER)
    after = now < last + settings.silent_round
    wanting.sort(
        key=lambda charge: (
            charge.is_silent(now) is after,
            charge.rdy > 0,
            NEVER if charge.turn_at == NEVER else charge.waiting_since,
            draw(),
        )
    )
    for charge in wanting if free >= 1 else []:
        if charge.coming:
            wake(charge.settled_at)
            continue
        goal = goals[charge.key]
        rdy = min(goal, charge.in_time + charge.exposed() + free)
        if rdy == goal or rdy >= max(1, 2 * charge.rdy):
            limited.changes.append((charge.key, rdy))
            break
    wake(max(now + 2 / COMMANDS, limit.when(exposure + 1, now)))
    return limited


def _withdraw(rdys: dict[K, int], charges: Sequence[Charge[K]], tokens: float, draw: Callable[[], float]) -> None:
    exposed = [charge for charge in charges if rdys[charge.key] > charge.in_time]
    exposed.sort(key=lambda charge: (rdys[charge.key] - charge.in_time, draw()))
    total = sum(rdys[charge.key] - charge.in_time for charge in exposed)
    while exposed and total > max(0.0, tokens):
        charge = exposed.pop()
        total -= rdys[charge.key] - charge.in_time
        rdys[charge.key] = 0
