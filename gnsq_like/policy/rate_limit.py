"""A limit of messages a second: tokens, and no more RDY than there are tokens for.

Each message that arrives takes a *token*; tokens come at ``rate``, up to those of a second. nsqd sends messages while
fewer are in flight than RDY. What may arrive without another command is the *exposure*: on each connection RDY less the
messages in flight or, if they are more, those that may still come after RDY was lowered. The sum over all connections
is kept within the tokens. So no message waits here for its token, while its time at nsqd runs.

An answer raises the exposure, because nsqd may send another message. Where the tokens do not suffice for that, RDY 0 is
sent before the answer. So RDY commands come in pairs: RDY up for the tokens there are, RDY 0 when they have been used.
One raise at a time, and a pause between two of them, limit the commands; the tokens that come meanwhile are the next
raise's. Where the messages are fewer than the tokens, RDY stays up, and no commands are needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor

from gnsq_like.policy.charge import FOREVER, NEVER
from gnsq_like.policy.line import K, Line

#: Seconds whose tokens are kept: as many as pass between two raises at the lowest rate of commands, and more.
BURST = 1.0
#: Seconds between two raises, all connections together, and each is followed by one RDY 0 at most: nsqd reads these
#: commands beside those of all other Readers.
RAISE_EVERY = 0.1
#: Busy connections are raised first, unless the silent ones have had nothing for so many seconds.
SILENT_EVERY = 0.5


class RateLimit:
    """The tokens of a Reader, and when it may send RDY.

    :param rate: messages a second, above 0
    """

    __slots__ = ("_at", "_tokens", "raised_at", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        #: The tokens at the monotonic time `_at`; negative after messages that came later than expected.
        self._tokens = 1.0
        self._at = now
        #: When RDY was raised last.
        self.raised_at = NEVER

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

    def is_overdrawn(self, lines: Iterable[Line[K]], now: float) -> bool:
        """Whether more may arrive than there are tokens."""
        return sum([line.exposed for line in lines]) > self.tokens(now)

    def overdrawn(self, lines: Iterable[Line[K]], now: float) -> list[Line[K]]:
        """The connections that need RDY 0 for that: the most exposed."""
        exposed = sorted((line for line in lines if line.rdy > line.held), key=lambda line: line.rdy - line.held)
        total, chosen = sum([line.rdy - line.held for line in exposed]), []
        while exposed and total > max(0.0, self.tokens(now)):
            chosen.append(exposed.pop())
            total -= chosen[-1].rdy - chosen[-1].held
        return chosen

    def next_raise(self, lines: Iterable[Line[K]], now: float) -> tuple[Line[K] | None, int, float]:
        """The connection to raise now, and its RDY, if there is one; and when to ask again.

        It is the longest waiting, and gets half of the free tokens: with all of them, the answer to a single message
        would leave too few, and cost a command. A raise that allows less than twice as many messages is not worth one,
        unless it is to all that its share allows.
        """
        everyone = list(lines)
        goals = {
            line: min(line.max_rdy, (1 if line.silent else line.share) + line.slow) for line in everyone if line.share
        }
        wanting = [line for line, goal in goals.items() if line.rdy < goal]
        if not wanting:
            return None, 0, FOREVER
        if now < self.raised_at + RAISE_EVERY:
            return None, 0, self.raised_at + RAISE_EVERY
        exposure = sum([line.exposed for line in everyone])
        free = ceil(floor(self.tokens(now) - exposure) / 2)
        at = max(now + RAISE_EVERY, self.when(exposure + 1, now))
        after = now < max([line.opened_at for line in everyone if line.silent], default=NEVER) + SILENT_EVERY
        wanting.sort(key=lambda line: (line.silent is after, line.rdy > 0, line.lowered_at))
        for line in wanting if free >= 1 else ():
            rdy = min(goals[line], line.held + line.exposed + free)
            if not line.coming and (rdy == goals[line] or free >= line.exposed):
                return line, rdy, at
        return None, 0, at
