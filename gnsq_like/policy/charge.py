"""The charge of one connection: how many messages it may cost, and its round trip.

nsqd delivers on a connection while fewer messages are in flight than RDY (docs/internals 1.12). RDY is a level, not a
credit; it has no reply, and lowering it recalls nothing. So at worst, a connection costs the larger of two (its share;
what it holds and may still get), plus reserved messages:

    cost = max(share, in time + coming) + reserved

``share`` is what the plan grants. The RDY sent is at most the share plus the slow messages. ``coming`` counts messages
that nsqd may have sent before it read a lower RDY. Each arriving message lowers it. After the settling time it is 0,
once our RDY has left the socket and everything received has been read (``Places._settle``).

*Reserved* are messages whose handlers take long. They belong to no share, so that hung handlers cut no connection off.
*Slow* ones are before their deadline: nsqd still counts them, which is why RDY may exceed the share by these. *Overdue*
ones are past it: nsqd no longer counts them, and delivers them again. The others are *in time*.

Rules for editors. Only the methods here assign ``rdy``, ``in_flight`` and the times of answers and commands. ``share``
is also assigned by ``Line.grant``; ``slow``, ``overdue``, ``coming``, ``settled_at``, ``allowed`` and ``closing`` also
by ``Places``; ``round_trip`` also when SUB was answered. ``received`` and ``answered`` are on the path of every
message: no loops, no allocation.
"""

from __future__ import annotations

#: Earlier than every monotonic time, and later.
NEVER, FOREVER = float("-inf"), float("inf")
#: More than any number of messages.
UNLIMITED = 1 << 62

#: Round trips until a lower RDY is certainly in force: one for the command and what was sent before it arrived, and one
#: because the round trip is an estimate ...
SETTLE_ROUND_TRIPS = 2.0
#: ... but at least these seconds. On loopback, with nsqd on the same cores, 5 ms suffice.
SETTLE = 0.005
#: A message that comes within so many seconds after RDY was lowered shows nothing of the round trip, though RDY was
#: raised again and the earlier one was believed to be over: the network may have become so much slower.
LATE = 1.0
#: A round trip that was found longer is kept for so many seconds after the last sign of it. A route that has changed
#: shows within seconds; shorter ones are believed at once.
KEPT = 60.0
#: So many that agree are no chance. A longer round trip is sure when so many messages agreed with it; fewer may be
#: sparse ones, which pass for one.
SURE = 8


class RoundTrip:
    """The round trip to an nsqd as it is now, from two sides; at first as measured when a connection was made."""

    __slots__ = ("_first", "confirmed_at", "doubts", "longer_at", "seconds")

    def __init__(self, seconds: float) -> None:
        self._first = self.seconds = seconds
        #: when it was found longer last, and when something agreed with it
        self.longer_at = self.confirmed_at = NEVER
        #: how many more messages have to agree with it
        self.doubts = 0

    def measured(self, seconds: float) -> None:
        """When another connection was made. Many at a time wait for each other, so the shortest counts."""
        self._first = min(self._first, seconds)
        self.seconds = min(self.seconds, seconds)

    def is_at_least(self, seconds: float, now: float) -> None:
        """A message has shown so much."""
        if self.seconds < seconds < FOREVER:
            self.seconds, self.longer_at, self.doubts = seconds, now, SURE

    def is_at_most(self, seconds: float, now: float) -> None:
        """Likewise. Twice the present value agrees with it."""
        if seconds <= 2 * self.seconds:
            self.confirmed_at = now
            if self.doubts:
                self.doubts -= 1
        if seconds < self.seconds:
            self.seconds = seconds

    def forget(self, now: float) -> None:
        """Believe again in the first value, if nothing agrees with a longer one any more."""
        if self.seconds > self._first and now >= max(self.longer_at, self.confirmed_at) + KEPT:
            self.seconds, self.doubts = self._first, 0


class Charge:
    """The cost of one connection.

    :param round_trip: seconds, as measured when it was made
    :param max_rdy: nsqd's max_rdy_count for it
    """

    def __init__(self, round_trip: float, max_rdy: int) -> None:
        self.round_trip = RoundTrip(round_trip)
        self.max_rdy = max_rdy
        #: places granted by the plan; RDY in force, when nsqd has read it
        self.share = self.rdy = 0
        #: messages received and not answered; of these, slow and overdue ones
        self.in_flight = self.slow = self.overdue = 0
        #: messages that may come under an earlier, higher RDY, at least until `settled_at`
        self.coming, self.settled_at = 0, NEVER
        #: when a message was answered last, a place opened by that or a higher RDY, and RDY lowered
        self.answered_at = self.opened_at = self.lowered_at = NEVER
        #: the highest RDY that a rate limit allows
        self.allowed = UNLIMITED
        #: gets no more RDY; its messages cost places until they are answered
        self.closing = False

    @property
    def reserved(self) -> int:
        """The messages in flight that belong to no share."""
        return self.slow + self.overdue

    @property
    def in_time(self) -> int:
        """The messages in flight that are part of the share."""
        return self.in_flight - self.slow - self.overdue

    @property
    def held(self) -> int:
        """The messages that nsqd counts as in flight."""
        return self.in_flight - self.overdue

    @property
    def cost(self) -> int:
        """The part of max_in_flight that it may use at worst."""
        return max(self.share, self.in_time + self.coming) + self.slow + self.overdue

    @property
    def most(self) -> int:
        """The highest RDY that may be sent."""
        return min(self.max_rdy, self.share + self.slow, self.allowed) if self.share else 0

    @property
    def exposed(self) -> int:
        """The messages that may arrive without another command."""
        return max(self.rdy - self.held, self.coming, 0)

    def received(self, n: int, now: float, late: float) -> None:
        """``n`` messages arrived in one read; they may have come ``late`` seconds before ``now``."""
        certain = not self.overdue and now >= self.settled_at and now >= self.lowered_at + LATE
        if self.coming:
            self.coming = max(0, self.coming - n)
        self.in_flight += n
        held = self.in_flight - self.overdue
        if held > self.rdy:  # sent before nsqd had read this RDY
            self.round_trip.is_at_least(now - late - self.lowered_at, now)
        elif held == self.rdy and certain:  # it has filled the place that was opened last
            self.round_trip.is_at_most(now - self.opened_at, now)

    def answered(self, n: int, now: float, slow: int = 0, overdue: int = 0) -> None:
        """``n`` messages were answered or are lost; of these, so many slow and overdue ones."""
        self.in_flight -= n
        self.slow -= slow
        self.overdue -= overdue
        self.answered_at = self.opened_at = now

    def sent(self, rdy: int, now: float, settling: float) -> None:
        """RDY was sent; a lower one is in force after ``settling`` seconds."""
        if rdy < self.rdy:
            self.coming = max(self.coming, self.rdy - self.held)
            self.settled_at = now + settling
            self.lowered_at = now
        else:
            self.opened_at = now
        self.rdy = rdy

    def settling(self, longest: float) -> float:
        """Seconds until a lower RDY is certainly in force; ``longest`` is a round trip that it may have, too."""
        return max(SETTLE, SETTLE_ROUND_TRIPS * max(self.round_trip.seconds, longest))

    def lost(self) -> None:
        """The socket is gone, so no more messages arrive. Those in flight cost places until they are answered."""
        self.closing = True
        self.share = self.rdy = self.coming = 0
