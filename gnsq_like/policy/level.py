"""The RDY to send on one connection, at most its share: which command, if any.

There are three: the share itself (`Level`), less of it that follows the traffic (`Burst`), and a credit (`Renewal`).

*Burst.* nsqd writes a message at once only when the connection is full, that is, when as many messages are in flight
as RDY; otherwise the message may lie in nsqd's buffer until a ticker fires (docs/internals 1.13). So RDY is the number
in flight plus a burst, of 1 while messages are sparse. A *round* is the time in which a burst comes. nsqd may have more
messages waiting when rounds of one message take times alike. Then two are asked for, as a *trial*; if they come in
about the same time, it has, and that time was a round trip. From then on each quick round doubles the burst, up to the
share, where no RDY needs to be sent; where that round trip is in doubt, rounds alike start a trial of twice as many. A
round that is not over after a few round trips cuts the burst to what came: the lower RDY makes nsqd write its buffer.
Where the ticker fires within a few round trips, there is nothing to gain, and RDY is the share.

*Renewal* is for an nsqd that counts RDY down: versions before 0.3, or a plain OK as the reply to IDENTIFY. There
deliveries use RDY up, and it has to be renewed before it is gone.

Rules for editors. All of this is called once per read or write: no allocation, few calls.
"""

from __future__ import annotations

from typing import ClassVar

from gnsq_like.policy.charge import FOREVER, SURE, UNLIMITED, Charge

#: SURE rounds alike start a trial; after each one that failed twice as many, up to this, because it costs two RDY
#: commands ...
ALIKE_MOST = 64
#: ... and after one that succeeded, any round.
ALIKE_LEAST = 1
#: After so many rounds there is a trial in any case, because a process that reads late finds none alike: so few that
#: less than one message in a hundred waits for it.
ROUNDS = 128
#: Rounds are alike while the longest takes no longer than this times the shortest: a round trip varies so much.
SPREAD = 2.0
#: Two messages take no longer than this, compared with one, if nsqd has them.
LONGER = 1.5
#: A burst is cut after so many round trips: nsqd needs one, and this process may read late. Where nsqd's ticker fires
#: earlier, RDY is the share ...
PATIENCE_ROUND_TRIPS = 4.0
#: ... or seconds, if that is more: a turn of the hub that computes a little.
PATIENCE = 0.002
#: A credit is renewed when this part of it is left, as in clients of that time.
RENEWED_AT = 0.25


class Level:
    """RDY is the share."""

    __slots__ = ("burst", "cut_at")

    #: Whether nsqd counts RDY down.
    counts_down: ClassVar[bool] = False

    def __init__(self) -> None:
        #: messages asked for beyond those in flight
        self.burst = 1
        #: when `command` cuts the burst if it has not come; no input may wait then
        self.cut_at = FOREVER

    def received(self, charge: Charge, n: int, now: float, late: float) -> None:
        """``n`` messages arrived; the charge knows already."""

    def command(self, charge: Charge, now: float) -> int | None:
        """The RDY to send now, or None."""
        most = charge.most
        return None if most == charge.rdy else most

    def raised(self, charge: Charge, now: float) -> None:
        """A higher RDY was sent; the charge knows already."""

    def fall_silent(self) -> None:
        """A turn has ended without a message."""


class Burst(Level):
    """Less than the share, as long as messages are sparse.

    :param ticker: seconds between two ticks of nsqd
    """

    __slots__ = (
        "_alike",
        "_came",
        "_enough",
        "_exact",
        "_longest",
        "_rounds",
        "_shortest",
        "_since",
        "_ticker",
        "_trial",
    )

    def __init__(self, ticker: float) -> None:
        super().__init__()
        self._ticker = ticker
        #: the burst was changed, so that RDY has to be exact
        self._exact = False
        #: this round: since when, or None while nsqd may send nothing; how many messages came; the seconds that a trial
        #: may take, 0 if it is none
        self._since: float | None = None
        self._came = 0
        self._trial = 0.0
        #: rounds in a row that took times alike: how many, the shortest, the longest; and how many start a trial
        self._alike, self._shortest, self._longest = 0, FOREVER, 0.0
        self._enough = SURE
        #: such rounds since the burst was set
        self._rounds = 0

    def command(self, charge: Charge, now: float) -> int | None:
        if self._since is not None and now >= self.cut_at:
            self._cut(charge)
        if self._since is None:
            self._begin(charge, now)
        rdy, round_trip = charge.most, charge.round_trip
        wanted = charge.in_flight - charge.overdue + self.burst
        is_slow = PATIENCE_ROUND_TRIPS * round_trip.seconds >= self._ticker and not round_trip.doubts
        if wanted < rdy and not is_slow and charge.allowed >= UNLIMITED:
            # A burst of 1 has to be exact. For a larger one, a deviation of half of it is not worth a command.
            half = self.burst // 2
            if not self._exact and charge.rdy <= rdy and -half <= charge.rdy - wanted <= half:
                return None
            self._exact, rdy = False, wanted
        return None if rdy == charge.rdy else rdy

    def raised(self, charge: Charge, now: float) -> None:
        self._begin(charge, now)

    def received(self, charge: Charge, n: int, now: float, late: float) -> None:
        if self._since is None:
            return
        self._came += n
        if self._came < self.burst and charge.held < charge.rdy:
            return
        round_trip = charge.round_trip
        took = max(round_trip.seconds, now - late - self._since)
        self._since, self.cut_at = None, FOREVER
        if self._trial:
            if self._trial > self._patience(charge):  # the rounds before were alike
                round_trip.is_at_least(took, now)
            self._trial, self._enough = 0.0, ALIKE_LEAST
            self._set(2 * self.burst, charge)
        elif self.burst > 1 and took <= self._patience(charge) / 2:
            self._set(2 * self.burst, charge)
        elif self.burst == 1 or round_trip.doubts:
            self._compare(charge, took, now)

    def _cut(self, charge: Charge) -> None:
        if self._trial:
            self._enough = min(2 * self._enough, ALIKE_MOST)
        self._set(self.burst // 2 if self._trial else self._came, charge)
        self._trial, self._since, self.cut_at = 0.0, None, FOREVER

    def fall_silent(self) -> None:
        self._exact = self._exact or self.burst > 1
        self.burst, self._trial, self.cut_at = 1, 0.0, FOREVER

    def _begin(self, charge: Charge, now: float) -> None:
        """A round begins, if nsqd may send anything."""
        if charge.in_flight - charge.overdue < charge.rdy:
            self._since, self._came = now, 0
            self.cut_at = now + max(self._patience(charge), self._trial) if self.burst > 1 else FOREVER

    def _patience(self, charge: Charge) -> float:
        return max(PATIENCE, PATIENCE_ROUND_TRIPS * charge.round_trip.seconds)

    def _compare(self, charge: Charge, took: float, now: float) -> None:
        """A round is over, and nsqd may have had more: one of a single message, or of a doubtful round trip."""
        self._alike += 1
        self._rounds += 1
        if took < self._shortest:
            self._shortest = took
        if took > self._longest:
            self._longest = took
        if self._longest > SPREAD * self._shortest:
            self._alike, self._shortest, self._longest = 1, took, took
        if charge.share <= 1:  # no trial is possible; 0 if the message came after the turn
            if self._alike >= SURE:
                charge.round_trip.is_at_least(self._shortest, now)
        elif 2 * self.burst <= charge.share and (self._alike >= self._enough or self._rounds >= ROUNDS):
            shows_round_trip = self._enough >= SURE and self._rounds < ROUNDS
            self._trial = LONGER * self._longest if shows_round_trip else self._patience(charge)
            self._set(2 * self.burst, charge)

    def _set(self, burst: int, charge: Charge) -> None:
        burst = max(1, min(burst, charge.share))
        self._exact = self._exact or burst != self.burst
        self.burst = burst
        self._alike = self._rounds = 0


class Renewal(Level):
    """RDY is a credit of at most the share, less what is in flight and what may be on the network."""

    __slots__ = ("_credit", "_left")

    counts_down = True

    def __init__(self) -> None:
        super().__init__()
        #: the credit last sent, and the part of it that nsqd has not used
        self._credit = self._left = 0

    def received(self, charge: Charge, n: int, now: float, late: float) -> None:
        self._left = max(0, self._left - n)

    def command(self, charge: Charge, now: float) -> int | None:
        room = max(0, charge.most - charge.held)
        if self._left > room:  # the share was lowered: this replaces what nsqd may still send
            credit = room
        elif self._left > RENEWED_AT * self._credit or room - self._left <= self._left:
            return None
        else:
            credit = room - self._left
        self._credit = self._left = credit
        return credit
