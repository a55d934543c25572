"""The state of one connection that the RDY plan uses, and the plan's time constants.

Theory. nsqd delivers on a connection while its in-flight count is below RDY (docs/internals 1.12). RDY is a level,
not a credit; it has no reply, and lowering it recalls nothing. So the number of messages a connection may cost us,
its *charge*, is what it may hold now or may still send:

    charge = max(rdy + reserved, in_flight + coming)

`reserved` counts the messages whose handlers take long: they are not part of any connection's share, so that hung
handlers cut no connection off. nsqd counts them too (`slow`) until their deadline, so the RDY sent is the share plus
those (`sent_rdy`), and is lowered before one of them is answered. `in_time` is the rest of those in flight. `coming`
counts messages that may be on the network after RDY was lowered: nsqd may have sent up to the old RDY minus the
in-flight count until our command arrived (the settling time). It falls with every message that arrives, which from then
on is in flight. When the time is over, some may still wait in the socket: see `settle`.

Rules for editors. Only the methods of `Charge` assign its state, except `round_trip`. `received` and `answered` are
on the path of every message: no loops, no allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

#: What a connection is called, and given back by in a plan.
K = TypeVar("K", bound=Hashable)

#: Earlier than every monotonic time.
NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Settings:
    """The plan's time constants, in seconds."""

    #: A connection that delivered nothing for this long at RDY >= 1 is silent: it lends its share and waits for turns.
    #: While none has traffic and there are fewer places, each gets a turn within half this time.
    low_rdy_idle_timeout: float = 10.0
    #: The longest turn (*slice*) of a busy connection while others wait ...
    low_rdy_timeout: float = 1.0
    #: ... shorter with many of them, so that each gets a turn within this time ...
    slices_round: float = 10.0
    #: ... but at least this, and so many round trips: each turn costs one or two of them.
    slice_minimum: float = 0.1
    slice_round_trips: float = 10.0
    #: The longest turn of a connection that delivers nothing while busy ones wait. A connection with a backlog answers
    #: RDY 1 within a round trip.
    low_rdy_probe_timeout: float = 0.25
    #: ... but at least this many round trips, for connections across an ocean.
    probe_round_trips: float = 4.0
    #: The settling time: room freed by lowering RDY is not granted again before. Measured on loopback: 5 ms suffice.
    settle_minimum: float = 0.005
    settle_round_trips: float = 2.0
    #: The turn of a silent connection beside busy ones; messages that come in its settling time are taken as well.
    silent_turn: float = 0.025
    silent_turn_round_trips: float = 1.5
    #: Each silent connection gets a turn within this time, if `silent_part` of the limit is enough for that ...
    silent_round: float = 0.5
    #: ... and if no more turns a second are needed for it: each costs two RDY commands. First turns do not count.
    turns_per_second: float = 60.0
    #: There are more turns a second where a round would otherwise take longer than this.
    silent_round_longest: float = 5.0
    #: Where there is a single place, they have it for about this part of the time.
    single_part: float = 0.08
    #: At most this part of the limit is for silent connections while busy ones are hungry, but 1 at least ...
    silent_part: float = 0.15
    #: ... and this part while none is, as far as the busy ones keep `busy_minimum` each.
    unused_part: float = 0.5
    busy_minimum: int = 2

    def settling(self, round_trip: float) -> float:
        """The settling time: seconds after which a lowered RDY is certainly in force."""
        return max(self.settle_minimum, self.settle_round_trips * round_trip)

    def quick(self, round_trip: float) -> float:
        """Seconds of silence that end a turn while busy connections wait."""
        return max(min(self.low_rdy_probe_timeout, self.low_rdy_idle_timeout), self.probe_round_trips * round_trip)

    def slice(self, round_trip: float, crowd: float) -> float:
        """Seconds that the turn of a busy connection lasts, with `crowd` connections for a place."""
        longest = min(self.low_rdy_timeout, self.slices_round / crowd)
        return max(longest, self.slice_minimum, self.slice_round_trips * round_trip)

    def silent(self, round_trip: float) -> float:
        """Seconds that a silent connection's turn lasts while others are busy."""
        return max(self.silent_turn, self.silent_turn_round_trips * round_trip)

    def turns(self, count: int) -> float:
        """The most turns a second of so many connections."""
        return max(self.turns_per_second, count / self.silent_round_longest)

    def pace(self, count: int, seats: int, *, idle: bool) -> float:
        """Seconds from one turn to the next on each of the seats of so many silent connections.

        :param idle: whether no connection is busy
        """
        return seats * (self.low_rdy_idle_timeout / 2 / count if idle else 1 / self.turns(count))

    def round(self, count: int) -> float:
        """Seconds in which each of so many silent connections gets a turn, if there are seats enough."""
        return max(self.silent_round, count / self.turns(count))


class Charge(Generic[K]):
    """The plan's view of one connection. The Reader owns it and reports events.

    A `closing` connection gets no RDY, but its messages are charged until they are answered: keep it in the table
    until then.
    """

    __slots__ = (
        "closing",
        "coming",
        "full_at",
        "idle_since",
        "in_flight",
        "key",
        "last_message_at",
        "max_rdy",
        "quiet",
        "rdy",
        "reserved",
        "round_trip",
        "settings",
        "settled_at",
        "slow",
        "topic",
        "turn_at",
        "waiting_since",
    )

    def __init__(
        self,
        key: K,
        now: float,
        settings: Settings,
        *,
        topic: Hashable = None,
        max_rdy: int = 2500,
        round_trip: float = 0.0,
    ) -> None:
        self.key = key
        #: the Reader's topics have equal parts of max_in_flight
        self.topic = topic
        self.settings = settings
        #: nsqd's max_rdy_count for this connection
        self.max_rdy = max_rdy
        #: seconds, as last measured; the Reader may write it
        self.round_trip = round_trip
        #: the share: what the plan last granted; the RDY sent may be lower (see `adaptive_rdy`), never higher
        self.rdy = 0
        #: messages received and not yet answered, overdue ones included
        self.in_flight = 0
        #: of these, messages whose handlers take long
        self.reserved = 0
        #: of these, the ones that nsqd counts: before their deadline
        self.slow = 0
        #: gets no more RDY
        self.closing = False
        #: messages that may still arrive under an earlier, higher RDY; `settled_at` or later, `settle` ends that
        self.coming = 0
        self.settled_at = NEVER
        #: start of its current or last turn (RDY 0 -> more, or more -> 1)
        self.turn_at = NEVER
        #: seconds without a message at RDY >= 1 since its last one, those of the present turn not included
        self.quiet = 0.0
        #: start of the time without RDY
        self.waiting_since = now
        #: last message or answer
        self.idle_since = now
        self.last_message_at = NEVER
        #: when it last had all of its RDY in flight, its first message after a silence not counted
        self.full_at = NEVER

    def __repr__(self) -> str:
        return (
            f"<Charge {self.key!r} rdy={self.rdy} in_flight={self.in_flight} coming={self.coming} "
            f"reserved={self.reserved}{' closing' if self.closing else ''}>"
        )

    @property
    def in_time(self) -> int:
        """The messages in flight that are part of its share: those not reserved."""
        return self.in_flight - self.reserved

    @property
    def sent_rdy(self) -> int:
        """The RDY to send, at most: the share, and the slow messages that nsqd counts."""
        return min(self.max_rdy, self.rdy + self.slow) if self.rdy else 0

    def received(self, n: int, now: float) -> bool:
        """`n` messages arrived in one pass. True if a new plan is needed."""
        first = self.last_message_at < self.turn_at or now - self.idle_since >= self.settings.low_rdy_idle_timeout
        self.quiet = 0.0
        self.in_flight += n
        self.idle_since = self.last_message_at = now
        if self.coming:
            self.coming = max(0, self.coming - n)
        held = self.in_flight - self.reserved
        if held < self.rdy or first:
            return first
        was_hungry = self.is_hungry(now)
        self.full_at = now
        return not was_hungry or held > self.rdy

    def answered(self, n: int, now: float, *, reserved: int = 0, slow: int = 0) -> bool:
        """`n` messages were answered or are lost, `reserved` and `slow` of them. True if a new plan is needed."""
        held = self.in_flight - self.reserved
        if held >= self.rdy and self.is_hungry(now):
            self.full_at = now
        freed = held > self.rdy or reserved > 0
        self.in_flight -= n
        self.reserved -= reserved
        self.slow -= slow
        self.idle_since = now
        return freed

    def reserve(self, n: int, now: float, *, slow: int = 0) -> None:
        """`n` more handlers take long, and `slow` more of their messages are counted by nsqd. Plan immediately.

        They leave the share, which shrinks by as much: it grows again only as far as the plan finds room.
        """
        if n > 0:
            self.sent(max(0, self.rdy - n), now)
        self.reserved += n
        self.slow += slow

    def sent(self, rdy: int, now: float) -> None:
        """The plan granted `rdy`, and it was sent."""
        if rdy < self.rdy:
            self.coming = self.coming_after(rdy)
            self.settled_at = now + self.settings.settling(self.round_trip)
            if rdy <= 1:
                self.quiet = self._quiet(now)
        if (rdy and not self.rdy) or (rdy == 1 and self.rdy > 1):
            self.turn_at = now
        if self.rdy and not rdy:
            self.waiting_since = now
        self.rdy = rdy

    def close(self, now: float) -> None:
        """CLS was sent, which makes nsqd set RDY to 0. No more RDY; messages in flight and coming stay charged."""
        self.sent(0, now)
        self.closing = True

    def lost(self, now: float) -> None:
        """The socket is gone, so no more messages arrive. Those in flight stay charged until they are answered."""
        self.close(now)
        self.coming = 0

    def excuse(self, seconds: float, now: float) -> None:
        """The process stood still for `seconds`: that is no silence of the connection, nor part of its turn."""
        if self.rdy:
            self.idle_since = min(now, self.idle_since + seconds)
            self.turn_at = min(now, self.turn_at + seconds)

    def is_silent(self, now: float) -> bool:
        """Whether it delivered nothing for low_rdy_idle_timeout at RDY >= 1, or nothing ever."""
        if self.in_flight > self.reserved:
            return False
        return self.last_message_at == NEVER or self._quiet(now) >= self.settings.low_rdy_idle_timeout

    def silent_at(self, now: float) -> float:
        """When a connection that is not silent will be, if nothing arrives."""
        return now + max(0.0, self.settings.low_rdy_idle_timeout - self._quiet(now))

    def is_hungry(self, now: float) -> bool:
        """Whether all of its RDY was in flight a short time ago, so that it might use more."""
        return now < self.full_at + self.settings.low_rdy_idle_timeout

    def _quiet(self, now: float) -> float:
        """Seconds at RDY >= 1, with none in flight, since its last message."""
        if not self.rdy or self.in_flight > self.reserved:
            return self.quiet
        return self.quiet + max(0.0, now - max(self.idle_since, self.turn_at))

    @property
    def proven_at(self) -> float:
        """When its RDY counts as working, even without a message."""
        return self.turn_at + self.settings.settling(self.round_trip)

    def is_fresh(self, now: float) -> bool:
        """Whether the connection is still unproven: no message ever, and RDY 1 not sent or sent a moment ago."""
        if self.last_message_at != NEVER:
            return False
        return not self.rdy or now < self.proven_at

    def is_untried(self, now: float) -> bool:
        """Whether it has had no turn so far, or its first one has just begun."""
        if self.last_message_at != NEVER or self.waiting_since > self.idle_since:
            return False
        return self.turn_at == NEVER or now < self.proven_at

    @property
    def cost(self) -> int:
        """The charge: the part of max_in_flight that it may use at worst."""
        return max(self.rdy + self.reserved, self.in_flight + self.coming)

    def cost_after(self, rdy: int) -> int:
        """The charge right after `sent(rdy)`."""
        return max(rdy + self.reserved, self.in_flight + self.coming_after(rdy))

    def firm(self, rdy: int) -> int:
        """The charge with `rdy` in force, without messages that may be on the network."""
        return max(rdy + self.reserved, self.in_flight)

    def exposed(self, answers: int = 0) -> int:
        """The messages that may arrive without another command; after so many `answers`, if that is given."""
        return max(self.rdy - (self.in_time - answers), self.coming)

    def coming_after(self, rdy: int) -> int:
        """`coming` right after `sent(rdy)`."""
        # When nsqd reads a lower RDY it has processed all our earlier FINs, and has at most the old RDY in flight.
        return max(self.coming, self.rdy - self.in_time) if rdy < self.rdy else self.coming

    def settle(self, now: float, is_read: Callable[[K], bool]) -> None:
        """Nothing more is coming if the settling time is over and all that has arrived was read. Call before a plan.

        :param is_read: called with the key, if that matters; whether no input waits
        """
        if self.coming and now >= self.settled_at:
            if is_read(self.key):
                self.coming = 0
            else:
                self.settled_at = now + self.settings.settle_minimum
