"""A limit of messages a second: tokens, and no more RDY than there are tokens for.

Each message that arrives takes a *token*; tokens come at ``rate``, up to those of a second. nsqd sends messages while
fewer are in flight than RDY. What may arrive without another command is the *exposure*: on each connection RDY less the
messages in flight or, if they are more, those that may still come after RDY was lowered. The sum over all connections
is kept within the tokens. So no message waits here for its token, while its time at nsqd runs.

An answer raises the exposure, because nsqd may send another message. Where the tokens do not suffice for that, RDY 0 is
sent before the answer. So RDY commands come in pairs: RDY up for the tokens there are, RDY 0 when they have been used.
One raise at a time, and a pause between two of them, limit the commands to COMMANDS a second; the tokens that come
meanwhile are the next raise's. Where the messages are fewer than the tokens, RDY stays up, and no commands are needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import ceil, floor

from gnsq_like.policy.charge import FOREVER, NEVER
from gnsq_like.policy.line import K, Line

#: Seconds whose tokens are kept: as many as pass between two raises at the lowest rate of commands, and more.
BURST = 1.0
#: RDY commands a second, all connections together: nsqd reads these beside those of all other Readers.
COMMANDS = 20
#: As many connections are lowered within that number, if all of them have to be; with more of them, it takes longer.
LOWERED = 9
#: Seconds between a lowering and the next raise, so that they do not arrive together.
PAUSE = 0.001
#: Busy connections are raised first, unless the silent ones have had nothing for so many seconds.
SILENT_EVERY = 0.5


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
        reserve = 1 + min(holders + 1, LOWERED)
        since = sum(1 for at in self._sent if at >= self._raised_at)
        at = self._raised_at + since / (COMMANDS - reserve)
        if self._sent:
            at = max(at, self._sent[-1] + PAUSE)
        excess = len(self._sent) + reserve - COMMANDS
        if excess > 0:
            at = max(at, self._sent[excess - 1] + 1 + PAUSE)
        return at

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
        would leave too few, and cost a command. A raise to less than twice its RDY is not worth one, unless it is to
        all that its share allows.
        """
        everyone = list(lines)
        goals = {
            line: min(line.max_rdy, (1 if line.silent else line.share) + line.slow) for line in everyone if line.share
        }
        wanting = [line for line, goal in goals.items() if line.rdy < goal]
        if not wanting:
            return None, 0, FOREVER
        at = self.next_raise_at(sum(1 for line in everyone if line.rdy), now)
        if at > now:
            return None, 0, at
        exposure = sum([line.exposed for line in everyone])
        free = ceil(floor(self.tokens(now) - exposure) / 2)
        at = max(now + 2 / COMMANDS, self.when(exposure + 1, now))
        after = now < max([line.opened_at for line in everyone if line.silent], default=NEVER) + SILENT_EVERY
        wanting.sort(key=lambda line: (line.silent is after, line.rdy > 0, line.lowered_at))
        for line in wanting if free >= 1 else ():
            rdy = min(goals[line], line.held + line.exposed + free)
            if not line.coming and (rdy == goals[line] or rdy >= max(1, 2 * line.rdy)):
                return line, rdy, at
        return None, 0, at
