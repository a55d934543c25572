"""How much of its share a connection requests right now: RDY follows the traffic.

Theory. nsqd flushes a message at once only when the connection's in-flight count reaches its RDY; below that, the
message waits until nsqd's buffer is full or the output_buffer_timeout ticker fires (docs/internals 1.13). So RDY
should be the in-flight count plus a *burst*: as many messages as nsqd can send within a round trip or two. Then nsqd
fills the burst and flushes, and no time is lost waiting for its ticker or, with too small a burst, for our commands
to arrive. With sparse traffic the burst is 1. In a flood it reaches the share; then RDY is the share whatever is in
flight, and no RDY is sent.

A *round* is the time in which nsqd sends a burst. One in which in flight reaches RDY first says nothing. A round within
*patience* doubles the burst. If it is not over after twice that, a timer cuts the burst to the messages that came
within patience.

But a round can be slow for two reasons: nsqd has no more messages, or this process computes and reads them late. How
long it took does not show which. A *look* does: the timer finds the round unfinished although the hub has read its
sockets. So the timer cuts the burst only in its third look: before the first one the RDY may not have been written, and
in the second one the timer may be called before what has arrived is read. The first two are due after patience, one
turn of the hub after the other, and the third after twice patience.

A round that takes longer than that may still be over before the third look: timers are up to a millisecond late. The
first two looks tell which reason it had. If the turn between them was short, three turns fit into twice patience: this
process does not read late, and the burst is halved. Otherwise it is doubled: nsqd had the messages.

A burst of 1 has no timer, which would cost more than all the rest. Instead, after a number of slow rounds the burst is
doubled as a *trial*. If messages are sparse, looks end it within milliseconds, and the next one comes later. In a flood
each round then doubles the burst, also in a process that reads late.

Patience is a few round trips, or more in a flood: it is longer the larger the burst is, so that the burst grows
although nsqd needs many milliseconds to send it. A flood begins at 50,000 messages a second, where a message waits for
the rest of nsqd's buffer hardly longer than for a small burst. Where nsqd deflates it begins at 20,000: a flush costs
so much there that a wait of some milliseconds is worth it.

If round trips are not much shorter than nsqd's ticker there is nothing to gain (:func:`is_worth_while`).

Rules for editors. Everything here is called once per pass or per batch of answers: no allocation, few calls. RDY
never exceeds the share. After a change, run tests/simulation/test_adaptive_scenarios.py.
"""

from __future__ import annotations

from gnsq_like.policy.charge import Charge, K
from gnsq_like.policy.level import Level

#: Round trips within which a burst has to be filled to be doubled ...
PATIENCE_ROUND_TRIPS = 2.0
#: ... but at least these seconds: the time of a pass in a process that also does other work.
PATIENCE_MINIMUM = 0.001
#: ... and in a flood, for each message of the burst, up to these seconds: nsqd needs 5 us for a message, but several
#: times that if it has no CPU to itself, and each burst costs a read, a write and nsqd a flush.
FLOOD_PATIENCE = 0.00002
#: The same where nsqd deflates.
FLOOD_PATIENCE_DEFLATED = 0.00005
FLOOD_PATIENCE_MAXIMUM = 0.02
#: A burst takes about this many round trips to grow until it fills nsqd's buffer.
WORTH_WHILE_ROUND_TRIPS = 4.0

#: Slow rounds between two trials. Each that fails doubles it, because it costs sparse traffic two RDY commands and
#: three turns of the hub.
TRIAL_EVERY = 8
TRIAL_EVERY_MAXIMUM = 64
#: Turns of the hub in which a round has to be found unfinished before the burst is cut.
LOOKS = 3


def is_worth_while(round_trip: float, buffer_timeout: float) -> bool:
    """Whether bursts grow before nsqd's ticker fires; otherwise RDY should be the share.

    :param round_trip: measured seconds
    :param buffer_timeout: nsqd's output_buffer_timeout for the connection, in seconds
    """
    return WORTH_WHILE_ROUND_TRIPS * round_trip < buffer_timeout


class AdaptiveRdy(Level):
    """The controller of one connection.

    Call `received` after each pass. Call `command` once the handlers of the pass have run, after answers, and when
    the plan changed the share. Send what it returns, and report it with `sent`. A timer for `due`, which
    may be shared and late, keeps the last messages of a burst from waiting for nsqd's ticker.

    :param round_trip: measured seconds
    :param deflated: whether nsqd deflates
    """

    __slots__ = (
        "_count",
        "_every",
        "_exact",
        "_goal",
        "_in_flight",
        "_looked_at",
        "_looks",
        "_prompt",
        "_share",
        "_since",
        "_slow",
        "burst",
        "deflated",
        "round_trip",
    )

    def __init__(self, round_trip: float = 0.0, *, deflated: bool = False) -> None:
        super().__init__()
        self.round_trip = round_trip
        #: whether nsqd deflates, so that floods begin earlier
        self.deflated = deflated
        #: messages requested beyond those in flight
        self.burst = 1
        #: the share at the last call of `target`
        self._share = 1
        #: in flight at the last call of `target`
        self._in_flight = 0
        #: this round: since when nsqd can send, or None while it cannot; how many messages it could send at first, at
        #: most a burst; how many have arrived; how many looks there were; when the last one was, and whether it was
        #: soon after the one before
        self._since: float | None = None
        self._goal = 1
        self._count = 0
        self._looks = 0
        self._looked_at = 0.0
        self._prompt = False
        #: slow rounds since the last trial, and those after which there is another
        self._slow = 0
        self._every = TRIAL_EVERY
        #: the burst changed, so RDY has to be exact
        self._exact = False

    def sent(self, rdy: int, now: float) -> None:
        raised, self.rdy = rdy > self.rdy, rdy
        if raised:
            self._begin(now)

    def received(self, n: int, in_flight: int, now: float) -> None:
        since = self._since
        if since is None:
            return
        self._count += n
        if self._count >= self.burst:
            self._filled(now - since)
        elif self._count < self._goal and in_flight < self.rdy:
            return
        self._since = None

    def command(self, charge: Charge[K], now: float) -> int | None:
        most = charge.sent_rdy if charge.slow else charge.rdy
        # Overdue ones included, which nsqd may still count. Too high an RDY costs at most output_buffer_timeout.
        rdy = self.target(charge.in_flight, most, now)
        return None if rdy == self.rdy else rdy

    def target(self, in_flight: int, share: int, now: float) -> int:
        """The RDY that should be in force; 0 if `share`, which the plan granted, is 0."""
        self._share = share
        self._in_flight = in_flight
        if self._since is None and in_flight < self.rdy:
            self._begin(now)
        burst = self.burst
        if in_flight + burst >= share:
            return share
        # A burst of 1 has to be exact. For a larger one, a deviation of half of it is not worth a command.
        room = self.rdy - in_flight
        if not self._exact and self.rdy <= share and burst - burst // 2 <= room <= burst + burst // 2:
            return self.rdy
        self._exact = False
        return in_flight + burst

    @property
    def due(self) -> float | None:
        if self._since is None or self.burst == 1:
            return None
        return self._since + (1 if self._looks < LOOKS - 1 else 2) * self._patience()

    def quiet(self, now: float) -> None:
        """Look, if `due` has passed. Call `target` afterwards: a lower RDY makes nsqd flush."""
        due = self.due
        if due is None or now < due:
            return
        self._looks += 1
        if self._looks == LOOKS:
            self._cut(self._count // 2)
            self._since = None
            return
        self._prompt = now - self._looked_at < self._patience() / 2
        self._looked_at = now

    def _begin(self, now: float) -> None:
        """A round begins."""
        self._since = now
        self._goal = min(self.burst, self.rdy - self._in_flight)
        self._count = 0
        self._looks = 0

    def _patience(self) -> float:
        in_flood = FLOOD_PATIENCE_DEFLATED if self.deflated else FLOOD_PATIENCE
        return max(
            PATIENCE_MINIMUM, min(FLOOD_PATIENCE_MAXIMUM, in_flood * self.burst), PATIENCE_ROUND_TRIPS * self.round_trip
        )

    def _filled(self, waited: float) -> None:
        """The burst has arrived."""
        patience = self._patience()
        if waited > 2 * patience and self._looks == LOOKS - 1 and self._prompt:
            self._cut(self.burst // 2)
            return
        if waited > patience and (self.burst == 1 or waited <= 2 * patience):
            self._slow += 1
            if self._slow < self._every:
                return
            self._slow = 0
        self._set_burst(2 * self.burst)

    def _cut(self, burst: int) -> None:
        """nsqd had fewer messages than the burst."""
        # A burst of 2 was the first of a trial.
        self._every = TRIAL_EVERY if self.burst > 2 else min(2 * self._every, TRIAL_EVERY_MAXIMUM)
        self._set_burst(burst)

    def _set_burst(self, burst: int) -> None:
        burst = max(1, min(burst, self._share))
        if burst != self.burst:
            self.burst = burst
            self._exact = True
