"""How much of its share a connection asks for just now: RDY follows the traffic.

Theory. nsqd flushes a message at once only when the connection's in-flight count reaches its RDY; below that
it lies in nsqd's buffer until the buffer is full or the output_buffer_timeout ticker fires (docs/internals 1.13).
So RDY should be what is in flight plus a *burst*: as many messages as nsqd has for us within a round trip or
two. Then it fills the burst and flushes, and we wait neither for its ticker nor, with too small a burst, for
our own commands to travel. While messages trickle the burst is 1. In a flood it reaches the share; then RDY
is the share whatever is in flight, and nothing is sent.

A *round* is the time in which nsqd sends a burst. Only time in which it could send counts: not what we take to
handle a pass, nor the time in which in flight has reached RDY (`_held`). A round within our patience doubles
the burst; one of more than twice that cuts it to what did come in our patience.

Patience is a few round trips, and no round trip tells of a process so busy that it reads late: there every
round is slow, a flood looks like a trickle, and a burst of 1 would make it one. Hence *trials*: now and then
a slow burst is doubled for some rounds. If they take no longer than before, it was not nsqd that was slow, and
that time is our patience from then on, for some rounds.

Where round trips are not much shorter than nsqd's ticker there is nothing to gain: the level is the share.

Rules for editors. Everything here is called once per pass or per batch of answers: no allocation, few calls.
Never above the share. Change nothing without running the table in tests/policy/test_level.py.
"""

from __future__ import annotations

__all__ = ["AdaptiveRdy"]

#: Round trips in which a burst has to be filled to be doubled ...
PATIENCE_ROUND_TRIPS = 2.0
#: ... but at least these seconds: what a pass takes in a process that does other things too.
PATIENCE_MINIMUM = 0.001
#: A burst grows in about so many round trips to one that fills nsqd's buffer. If that takes as long as
#: nsqd's buffer timeout, RDY is the share.
WORTH_WHILE_ROUND_TRIPS = 4.0

#: Rounds a trial lasts: messages that come by chance pass one in some fifty times.
TRIAL_ROUNDS = 5
#: Slow rounds between two trials. Each one that fails doubles it, for it costs a few messages some ms.
TRIAL_EVERY = 8
TRIAL_EVERY_MAXIMUM = 128
#: A round of twice the burst that takes at most so many times as long was not slow because of nsqd.
TRIAL_SLACK = 1.6
#: Rounds for which what a trial found is believed, and how many more slow rounds than others end it before.
TRIAL_BELIEVED = 256
TRIAL_DOUBTS = 3


class AdaptiveRdy:
    """The controller of one connection.

    After a pass call `received`, and when its handlers have had their turn ask `target`; ask it too after
    answers and when the plan changed the share. Send what differs from `rdy`, and say so by `sent`. A timer
    for `due`, which may be shared and late, spares the last messages of a burst the wait for nsqd's ticker.

    :param round_trip: seconds, measured; the Reader may write the attribute at any time
    :param buffer_timeout: nsqd's output_buffer_timeout for this connection, in seconds
    """

    __slots__ = (
        "_believed",
        "_count",
        "_doubts",
        "_every",
        "_exact",
        "_from",
        "_goal",
        "_held",
        "_in_flight",
        "_in_pass",
        "_pace",
        "_share",
        "_slow_rate",
        "_slow_rounds",
        "_trial",
        "_usual",
        "_waited",
        "buffer_timeout",
        "burst",
        "rdy",
        "round_trip",
    )

    def __init__(self, round_trip: float = 0.0, buffer_timeout: float = 0.025) -> None:
        self.round_trip = round_trip
        self.buffer_timeout = buffer_timeout
        #: messages asked for beyond those in flight
        self.burst = 1
        #: RDY as last sent
        self.rdy = 0
        #: what the plan granted when `target` was last asked
        self._share = 1
        #: in flight when last told
        self._in_flight = 0
        #: this round: how many messages nsqd may send at its start, at most a burst; how many came; seconds
        #: nsqd had for them, and since when it has had some more
        self._goal = 1
        self._count = 0
        self._waited = 0.0
        self._from = 0.0
        #: in flight has reached RDY: nsqd can send nothing
        self._held = True
        #: messages came and `target` has not been asked since
        self._in_pass = False
        #: the burst changed: RDY has to be exact
        self._exact = False
        #: rounds of the running trial that are left, and slow rounds since the last one
        self._trial = 0
        self._slow_rounds = 0
        self._every = TRIAL_EVERY
        #: of those, the sum of 1 / seconds; and what a round usually took, when the running trial began
        self._slow_rate = 0.0
        self._usual = 0.0
        #: seconds a round takes whatever its burst, as the last trial found, and rounds left to believe it
        self._pace = 0.0
        self._believed = 0
        self._doubts = 0

    def sent(self, rdy: int, now: float) -> None:
        """RDY `rdy` was sent on this connection (0 too)."""
        raised, self.rdy = rdy > self.rdy, rdy
        if raised:
            self._held = False
            self._new_round(now)

    def received(self, n: int, in_flight: int, now: float) -> None:
        """A pass brought `n` messages; `in_flight` counts them already."""
        if not self._held:
            self._waited += now - self._from
        self._from = now
        self._in_flight = in_flight
        self._in_pass = True
        self._held = in_flight >= self.rdy
        self._count += n
        patience = self._patience()
        if self._waited > 2 * patience:
            self._too_slow(self._waited, patience)
        elif self._count >= self.burst:
            self._filled(self._waited, patience)
        elif self._count < self._goal and not self._held:
            return
        self._new_round(now)

    def target(self, in_flight: int, share: int, now: float) -> int:
        """The RDY that should be in force. `share` is what the plan granted; 0 gives 0."""
        self._share = share
        self._in_flight = in_flight
        if self._in_pass:
            self._in_pass = False
            self._from = now
            if not self._count:
                self._new_round(now)
        if self._held and in_flight < self.rdy:
            self._held = False
            self._new_round(now)
        burst = self.burst
        if in_flight + burst >= share or WORTH_WHILE_ROUND_TRIPS * self.round_trip >= self.buffer_timeout:
            return share
        # A burst of 1 has to be exact. Of larger ones half of it more or less is not worth an RDY.
        room = self.rdy - in_flight
        if not self._exact and self.rdy <= share and burst - burst // 2 <= room <= burst + burst // 2:
            return self.rdy
        self._exact = False
        return in_flight + burst

    @property
    def due(self) -> float | None:
        """When `quiet` should be called if no message comes before, or None."""
        if self._held or self.burst == 1:
            return None
        return self._from + 2 * self._patience() - self._waited

    def quiet(self, now: float) -> None:
        """If `due` is over, the burst is cut. Ask `target` afterwards: less RDY makes nsqd flush."""
        due = self.due
        if due is not None and now >= due:
            self._too_slow(self._waited + now - self._from, self._patience())
            self._new_round(now)

    def _new_round(self, now: float) -> None:
        self._goal = min(self.burst, self.rdy - self._in_flight)
        self._count = 0
        self._waited = 0.0
        self._from = now

    def _patience(self) -> float:
        if self._trial:
            return TRIAL_SLACK * self._usual
        return max(PATIENCE_MINIMUM, PATIENCE_ROUND_TRIPS * self.round_trip, TRIAL_SLACK * self._pace)

    def _filled(self, waited: float, patience: float) -> None:
        """The burst came, and not after twice our patience."""
        if self._believed:
            self._believed -= 1
            self._doubts = max(0, self._doubts + (1 if waited > patience else -1))
            if not self._believed or self._doubts == TRIAL_DOUBTS:
                self._believed = 0
                self._pace = 0.0
        if self._trial:
            self._tried(waited, waited <= patience)
        elif waited <= patience:
            self._set_burst(2 * self.burst)
        else:
            self._slow_round(waited)

    def _too_slow(self, waited: float, patience: float) -> None:
        """The burst did not come in time."""
        if self._trial:
            self._tried(waited, False)
            return
        self._set_burst(min(self.burst, int(self._count * patience / waited)))
        self._pace = 0.0
        self._believed = 0
        if self._count >= self.burst == 1:
            self._slow_round(waited)

    def _slow_round(self, waited: float) -> None:
        self._slow_rounds += 1
        self._slow_rate += 1 / waited
        if self._slow_rounds >= self._every:
            # A mean of rates: one long silence does not make everything look quick.
            self._usual = self._slow_rounds / self._slow_rate
            self._trial = TRIAL_ROUNDS
            self._set_burst(2 * self.burst)

    def _tried(self, waited: float, in_time: bool) -> None:
        """A round of the trial is over."""
        if not in_time:
            self._trial = 0
            self._every = min(2 * self._every, TRIAL_EVERY_MAXIMUM)
            self._set_burst(self.burst // 2)
            return
        self._trial -= 1
        if not self._trial:
            self._every = TRIAL_EVERY
            self._pace = max(self._usual, waited)
            self._believed = TRIAL_BELIEVED
            self._doubts = 0

    def _set_burst(self, burst: int) -> None:
        burst = max(1, min(burst, self._share))
        if burst != self.burst:
            self.burst = burst
            self._slow_rounds = 0
            self._slow_rate = 0.0
            self._exact = True
