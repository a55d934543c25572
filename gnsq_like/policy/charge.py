"""What the RDY plan knows of one connection, and the times it goes by.

Theory. nsqd delivers on a connection while its in-flight count is below RDY (docs/internals 1.12); RDY is a level,
not a credit, has no reply, and lowering it takes nothing back. So what a connection can cost us, its
*charge*, is what it may hold now or may still send:

    charge = max(rdy + reserved, in_flight + coming)

`reserved` are handlers that run past their message's deadline: nsqd no longer counts them, we do. What is in
flight beside them, and counts for nsqd too, is `in_time`.
`coming` are messages that may be in the network after RDY was lowered: nsqd can have sent up to the old RDY
minus what was in flight, for as long as our command travels (the settling time). It falls with every message
that comes, which from then on is in flight.

Rules for editors. The methods of `Charge` are the only ones who assign its state, but for `round_trip`.
`received` and `answered` are on the path of every message: no loops, no allocation.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

__all__ = ["Charge", "Settings"]

#: "It never happened": earlier than every monotonic time.
NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Settings:
    """The times the plan goes by, in seconds."""

    #: A connection silent for so long lends its share. Where connections take turns and nobody has traffic,
    #: everybody has one within half this time.
    low_rdy_idle_timeout: float = 10.0
    #: The longest turn of a busy connection while others wait.
    low_rdy_timeout: float = 30.0
    #: The longest turn of a connection that delivers nothing while others may have traffic. RDY 1 on a
    #: connection with a backlog shows itself in a round trip.
    low_rdy_probe_timeout: float = 0.25
    #: ... but at least so many round trips, for connections across an ocean.
    probe_round_trips: float = 4.0
    #: How long slots freed by lowering RDY are kept back. Measured on loopback: 5 ms suffice.
    settle_minimum: float = 0.005
    settle_round_trips: float = 2.0

    def settling(self, round_trip: float) -> float:
        """Seconds after which a lowered RDY surely holds."""
        return max(self.settle_minimum, self.settle_round_trips * round_trip)

    def quick(self, round_trip: float) -> float:
        """Seconds of silence that end a turn while there is traffic somewhere."""
        patience = min(self.low_rdy_probe_timeout, self.low_rdy_idle_timeout)
        return max(patience, self.probe_round_trips * round_trip)

    def slow(self, round_trip: float, crowd: float) -> float:
        """Seconds of silence that end a turn while nobody has traffic, with `crowd` connections for each seat.

        So short that everybody has a turn within half of low_rdy_idle_timeout, or the first message after a
        long silence would wait for many turns.
        """
        return max(self.quick(round_trip), self.low_rdy_idle_timeout / (2 * crowd))


class Charge:
    """What the plan knows of one connection. The Reader owns it and reports events.

    `received` and `answered` are cheap enough to be called once per pass or per answer. One that is `closing` gets
    nothing, but what it holds is charged until it is answered: keep it in the table until then.
    """

    __slots__ = (
        "closing",
        "coming",
        "delivered",
        "idle_since",
        "in_flight",
        "key",
        "last_message_at",
        "max_rdy",
        "proven_at",
        "rdy",
        "reserved",
        "round_trip",
        "settings",
        "settled_at",
        "turn_at",
        "waiting_since",
    )

    def __init__(
        self, key: Hashable, now: float, settings: Settings, *, max_rdy: int = 2500, round_trip: float = 0.0
    ) -> None:
        self.key = key
        self.settings = settings
        #: nsqd's max_rdy_count for this connection
        self.max_rdy = max_rdy
        #: seconds, as last measured; the Reader may write it
        self.round_trip = round_trip
        #: what the plan last granted, the share; what is sent may be less (see `level`), never more
        self.rdy = 0
        #: messages received and not yet answered, overdue ones included
        self.in_flight = 0
        #: of these, handlers that run past (or shortly before) their message's deadline
        self.reserved = 0
        #: no grants any more
        self.closing = False
        #: messages that may still come under an earlier, higher RDY, until `settled_at`
        self.coming = 0
        self.settled_at = NEVER
        #: start of its current or last turn (RDY 0 -> more, or more -> 1)
        self.turn_at = NEVER
        #: when its first RDY 1 has shown that it works, be it without a message
        self.proven_at = NEVER
        #: messages that came in its current or last turn
        self.delivered = 0
        #: since when it has no RDY
        self.waiting_since = now
        #: last message or answer
        self.idle_since = now
        self.last_message_at = NEVER

    def __repr__(self) -> str:
        return (
            f"<Charge {self.key!r} rdy={self.rdy} in_flight={self.in_flight} coming={self.coming} "
            f"reserved={self.reserved}{' closing' if self.closing else ''}>"
        )

    @property
    def in_time(self) -> int:
        """Of the messages in flight, those that nsqd counts: their handlers are not overdue."""
        return self.in_flight - self.reserved

    def received(self, n: int, now: float) -> bool:
        """`n` messages came in one pass. True if the plan should be asked again."""
        first = not self.delivered or now - self.idle_since >= self.settings.low_rdy_idle_timeout
        self.in_flight += n
        self.delivered += n
        self.idle_since = self.last_message_at = now
        if self.coming:
            self.coming = max(0, self.coming - n)
        return first or self.in_flight - self.reserved > self.rdy

    def answered(self, n: int, now: float, *, reserved: int = 0) -> bool:
        """`n` messages were answered or are lost, of which `reserved` were overdue.

        True if that freed something: then the plan should be asked again.
        """
        freed = self.in_flight - self.reserved > self.rdy or reserved > 0
        self.in_flight -= n
        self.reserved -= reserved
        self.idle_since = now
        return freed

    def reserve(self, n: int = 1) -> None:
        """`n` handlers are about to outlive their messages' deadlines. Plan at once: shares get smaller."""
        self.reserved += n

    def sent(self, rdy: int, now: float) -> None:
        """The plan granted `rdy`, and it was sent."""
        if rdy < self.rdy:
            self.coming = self.coming_after(rdy, now)
            self.settled_at = now + self.settings.settling(self.round_trip)
        if rdy and not self.rdy:
            self.delivered = 0
            self.proven_at = now + self.settings.settling(self.round_trip)
        if (rdy and not self.rdy) or (rdy == 1 and self.rdy > 1):
            self.turn_at = now
        if self.rdy and not rdy:
            self.waiting_since = now
        self.rdy = rdy

    def close(self, now: float) -> None:
        """CLS was sent (nsqd sets RDY to 0 by itself): no more grants. What comes and is held is charged."""
        self.sent(0, now)
        self.closing = True

    def lost(self, now: float) -> None:
        """The socket is gone: nothing can come any more. Running handlers are charged until answered."""
        self.close(now)
        self.coming = 0

    def is_fresh(self, now: float) -> bool:
        """Whether it has still to show that it works: no message ever, and its RDY 1 is still to come or under way."""
        if self.last_message_at != NEVER:
            return False
        return not self.rdy or now < self.proven_at

    def is_settling(self, now: float) -> bool:
        """Whether messages under an earlier RDY may still come."""
        return self.coming > 0 and now < self.settled_at

    def at(self, now: float) -> int:
        """What it holds of max_in_flight at the worst."""
        return max(self.rdy + self.reserved, self.in_flight + self._coming(now))

    def after(self, rdy: int, now: float) -> int:
        """What it would hold right after `sent(rdy)`."""
        return max(rdy + self.reserved, self.in_flight + self.coming_after(rdy, now))

    def firm(self, rdy: int) -> int:
        """The same without what may be in the network: what it holds with `rdy` in force."""
        return max(rdy + self.reserved, self.in_flight)

    def coming_after(self, rdy: int, now: float) -> int:
        """What may still come right after `sent(rdy)`."""
        coming = self._coming(now)
        if rdy < self.rdy:
            # nsqd had answered to all our FINs when it read this RDY, and held at most the old one.
            coming = max(coming, self.rdy - self.in_time)
        return coming

    def _coming(self, now: float) -> int:
        return self.coming if now < self.settled_at else 0
