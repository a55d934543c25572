"""How much of its share a connection requests right now: RDY follows the traffic.

Theory. nsqd flushes a message at once only when the connection's in-flight count reaches its RDY; below that, the
message waits until nsqd's buffer is full or the output_buffer_timeout ticker fires (docs/internals 1.13). So RDY
should be the in-flight count plus a *burst*: as many messages as nsqd can send within a round trip or two. Then nsqd
fills the burst and flushes, and no time is lost waiting for its ticker or, with too small a burst, for our commands
to arrive. With sparse traffic the burst is 1. In a flood it reaches the share; then RDY is the share whatever is in
flight, and no RDY is sent.

A *round* is the time nsqd takes to send a burst. Only time in which nsqd could send counts: neither the time spent
handling a pass nor the time in which in flight has reached RDY (`_held`). A round within *patience* doubles the
burst; a round longer than twice that cuts it to the number of messages that did arrive within patience.

Patience is a few round trips, or more in a flood: it is longer the larger the burst is, so that the burst grows
although nsqd needs many milliseconds to send it. A flood begins at 50,000 messages a second, where a message waits for
the rest of nsqd's buffer hardly longer than for a small burst. Where nsqd deflates it begins at 20,000: a flush costs
so much there that a wait of some milliseconds is worth it.

In a process so busy that it reads late, every round is slow although nsqd is not: a flood looks like sparse traffic,
and a burst of 1 would turn it into that. Hence *trials*: now and then the burst is doubled for some rounds although it
is slow. If they take no longer than before, nsqd was not the cause, and their time becomes the patience for a number of
rounds.

If round trips are not much shorter than nsqd's ticker there is nothing to gain: RDY is the share.

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
#: A burst takes about this many round trips to grow until it fills nsqd's buffer. If that is as long as nsqd's
#: buffer timeout, RDY is the share.
WORTH_WHILE_ROUND_TRIPS = 4.0

#: Rounds a trial lasts: messages at random times pass about one trial in fifty.
TRIAL_ROUNDS = 5
#: Slow rounds between two trials. Each failed trial doubles it, because a trial delays some messages by milliseconds.
TRIAL_EVERY = 8
TRIAL_EVERY_MAXIMUM = 128
#: If a round with twice the burst takes at most this many times as long, the slowness is not nsqd's.
TRIAL_SLACK = 1.6
#: Rounds for which a trial's result is used, and the surplus of slow rounds that ends this early.
TRIAL_BELIEVED = 256
TRIAL_DOUBTS = 3


class Trials:
    """Whether nsqd is the cause of slow rounds: after some of them, twice the burst is tried for a few."""

    __slots__ = ("_believed", "_doubts", "_every", "_slow_rate", "_slow_rounds", "left", "pace", "usual")

    def __init__(self) -> None:
        #: rounds left in the running trial, and the usual time of a round when it began
        self.left = 0
        self.usual = 0.0
        #: seconds per round whatever the burst, as the last trial found; 0 if that is not so, or not believed any more
        self.pace = 0.0
        #: rounds for which it is still used, and the surplus of slow ones among them
        self._believed = 0
        self._doubts = 0
        #: slow rounds since the last trial or change of the burst, and the sum of 1 / seconds over them
        self._slow_rounds = 0
        self._slow_rate = 0.0
        #: slow rounds after which there is a trial
        self._every = TRIAL_EVERY

    def slow_round(self, waited: float) -> bool:
        """A round was slow. True if a trial begins: double the burst."""
        self._slow_rounds += 1
        self._slow_rate += 1 / waited
        if self._slow_rounds < self._every:
            return False
        # The mean of rates, because one long silence would dominate a mean of times.
        self.usual = self._slow_rounds / self._slow_rate
        self.left = TRIAL_ROUNDS
        return True

    def tried(self, waited: float, in_time: bool) -> None:
        """One round of the trial is over; one that is not in time ends it."""
        if not in_time:
            self.left = 0
            self._every = min(2 * self._every, TRIAL_EVERY_MAXIMUM)
            return
        self.left -= 1
        if not self.left:
            self._every = TRIAL_EVERY
            self.pace = max(self.usual, waited)
            self._believed = TRIAL_BELIEVED
            self._doubts = 0

    def believe(self, in_time: bool) -> None:
        """A round has used `pace`: believe it, for a number of rounds, unless too many are slow."""
        self._believed -= 1
        self._doubts = max(0, self._doubts + (-1 if in_time else 1))
        if not self._believed or self._doubts == TRIAL_DOUBTS:
            self.pace = 0.0

    def forget_rounds(self) -> None:
        """The burst has changed, and with it what is usual."""
        self._slow_rounds = 0
        self._slow_rate = 0.0


class AdaptiveRdy(Level):
    """The controller of one connection.

    Call `received` after each pass. Call `command` once the handlers of the pass have run, after answers, and when
    the plan changed the share. Send what it returns, and report it with `sent`. A timer for `due`, which
    may be shared and late, keeps the last messages of a burst from waiting for nsqd's ticker.

    :param round_trip: measured seconds; the Reader may write the attribute at any time
    :param buffer_timeout: nsqd's output_buffer_timeout for this connection, in seconds
    :param deflated: whether nsqd deflates
    """

    __slots__ = (
        "_count",
        "_exact",
        "_from",
        "_goal",
        "_held",
        "_in_flight",
        "_in_pass",
        "_share",
        "_trials",
        "_waited",
        "buffer_timeout",
        "burst",
        "deflated",
        "round_trip",
    )

    def __init__(self, round_trip: float = 0.0, buffer_timeout: float = 0.025, *, deflated: bool = False) -> None:
        super().__init__()
        self.round_trip = round_trip
        self.buffer_timeout = buffer_timeout
        #: whether nsqd deflates, so that floods begin earlier
        self.deflated = deflated
        #: messages requested beyond those in flight
        self.burst = 1
        #: the share at the last call of `target`
        self._share = 1
        #: in flight at the last report
        self._in_flight = 0
        #: this round: how many messages nsqd could send at its start, at most a burst; how many arrived; the seconds
        #: in which nsqd could send, up to `_from`
        self._goal = 1
        self._count = 0
        self._waited = 0.0
        self._from = 0.0
        #: in flight has reached RDY, so nsqd cannot send
        self._held = True
        #: messages arrived since the last call of `target`
        self._in_pass = False
        #: the burst changed, so RDY has to be exact
        self._exact = False
        self._trials = Trials()

    def sent(self, rdy: int, now: float) -> None:
        raised, self.rdy = rdy > self.rdy, rdy
        if raised:
            self._held = False
            self._new_round(now)

    def received(self, n: int, in_flight: int, now: float) -> None:
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

    def command(self, charge: Charge[K], now: float) -> int | None:
        most = charge.sent_rdy if charge.slow else charge.rdy
        # Overdue ones included, which nsqd may still count. Too high an RDY costs at most output_buffer_timeout.
        rdy = self.target(charge.in_flight, most, now)
        return None if rdy == self.rdy else rdy

    def target(self, in_flight: int, share: int, now: float) -> int:
        """The RDY that should be in force; 0 if `share`, which the plan granted, is 0."""
        self._share = share
        self._in_flight = in_flight
        begins = self._held and in_flight < self.rdy
        if self._in_pass:
            self._in_pass = False
            self._from = now
            begins = begins or not self._count
        if begins:
            self._held = self._held and in_flight >= self.rdy
            self._new_round(now)
        burst = self.burst
        if in_flight + burst >= share or WORTH_WHILE_ROUND_TRIPS * self.round_trip >= self.buffer_timeout:
            return share
        # A burst of 1 has to be exact. For a larger one, a deviation of half of it is not worth a command.
        room = self.rdy - in_flight
        if not self._exact and self.rdy <= share and burst - burst // 2 <= room <= burst + burst // 2:
            return self.rdy
        self._exact = False
        return in_flight + burst

    @property
    def due(self) -> float | None:
        if self._held or self.burst == 1:
            return None
        return self._from + 2 * self._patience() - self._waited

    def quiet(self, now: float) -> None:
        """Cut the burst if `due` has passed. Call `target` afterwards: a lower RDY makes nsqd flush."""
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
        trials = self._trials
        if trials.left:
            return TRIAL_SLACK * trials.usual
        in_flood = FLOOD_PATIENCE_DEFLATED if self.deflated else FLOOD_PATIENCE
        return max(
            PATIENCE_MINIMUM,
            min(FLOOD_PATIENCE_MAXIMUM, in_flood * self.burst),
            PATIENCE_ROUND_TRIPS * self.round_trip,
            TRIAL_SLACK * trials.pace,
        )

    def _filled(self, waited: float, patience: float) -> None:
        """The burst arrived within twice the patience."""
        trials, in_time = self._trials, waited <= patience
        if trials.pace:
            trials.believe(in_time)
        if trials.left:
            self._tried(waited, in_time)
        elif in_time:
            self._set_burst(2 * self.burst)
        else:
            self._slow_round(waited)

    def _too_slow(self, waited: float, patience: float) -> None:
        """The burst did not arrive within twice the patience."""
        if self._trials.left:
            self._tried(waited, False)
            return
        self._set_burst(min(self.burst, int(self._count * patience / waited)))
        self._trials.pace = 0.0
        if self._count >= self.burst == 1:
            self._slow_round(waited)

    def _slow_round(self, waited: float) -> None:
        if self._trials.slow_round(waited):
            self._set_burst(2 * self.burst)

    def _tried(self, waited: float, in_time: bool) -> None:
        """One round of the trial is over."""
        self._trials.tried(waited, in_time)
        if not in_time:
            self._set_burst(self.burst // 2)

    def _set_burst(self, burst: int) -> None:
        burst = max(1, min(burst, self._share))
        if burst != self.burst:
            self.burst = burst
            self._trials.forget_rounds()
            self._exact = True
