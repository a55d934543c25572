"""Places: how many messages each nsqd may send.

max_in_flight is a number of *places*, shared out among the connections. go-nsq divides it evenly, and moves RDY at
random between connections if it is less than their number; here places follow the traffic:

**The ledger.** The sum of what all connections may cost (`charge`) never exceeds max_in_flight. A place that is taken
from a connection is free when its messages are answered and the lower RDY is in force. So a plan lowers at once, and
raises as far as there is room; what is lacking is raised when something settles or is answered. Where more is in flight
than max_in_flight, because it was lowered or a message came late, nobody gets anything until that is over.

**Needs.** A connection needs a place for each message in flight and the burst that it may send (`level`), or twice the
share that it filled within a second, and one in any case. If all needs fit into the places, everyone has what it needs,
and the rest is dealt out level. If not, the places are *contested*.

**Turns.** nsqd answers RDY 1 at once if it has a message. So where places are contested, a turn ends by a *moment*
without a message (a longer one if it has brought messages for a while), and the connection is *silent* until its next
message; the others are *busy*. The silent ones share what the busy ones do not need, and have 15 % of the places at
least, on which they take turns: RDY 1 for a moment, the longest waiting next. Where that is less than one place, they
have one until each had its turn, and then the busy ones have it for as long at least.
The busy ones share the rest equally, level among topics; the remainder moves on every ten seconds. If there are more of
them than places, they have RDY 1 for a *slice*, the topics with the fewest places first, then the longest waiting.

**Hung handlers** belong to no share (`charge`): their places are taken from the whole.

**Backoff.** A topic that is blocked has no RDY. One that tests has RDY 1 on one connection, for a single message. If
that brings none, the longest waiting connection is next; if handlers still run on all of them, the test waits, because
RDY 1 delivers nothing before they have answered.

**A rate limit** (`rate_limit`) allows less RDY than the share; a turn begins when its RDY is sent.

**Who calls.** `received` once a read; `answered` before the answers are written, `flush` after them, `plan` in the
control loop, at `plan_at` or soon after; and `cut` at `cut_at`. What these return counts as sent: write it at once, in
this order. `is_read` is asked before something is taken for silence: then no message that has arrived is missed, and
this process may stand still. Nothing here reads a clock or does I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from operator import attrgetter
from typing import Generic

from gnsq_like.policy.backoff import Mode
from gnsq_like.policy.charge import FOREVER, KEPT, NEVER, SETTLE, UNLIMITED
from gnsq_like.policy.line import HUNGER, RANK, K, Line
from gnsq_like.policy.rate_limit import RateLimit

#: A turn without a message ends after so many round trips: one, and half of one because it is an estimate ...
MOMENT_ROUND_TRIPS = 1.5
#: ... but at least these seconds: nsqd may need that long on a busy machine.
MOMENT = 0.025
#: ... or half of the time for which it has brought messages, up to these: traffic of 20 a second has such pauses only
#: once in a few seconds.
LULL = 0.2
#: All slices of busy connections pass within so many seconds, after which a remainder goes to the next, too ...
SLICES = 10.0
#: ... but one lasts so many seconds at least: each costs two RDY commands. It costs no place, however long the round
#: trip: what is on its way when a slice ends is answered in the next one.
SLICE_LEAST = 0.1
#: This part of the places at least is for silent connections, as far as they need it.
SILENT_PART = 0.15
#: Each of them has a turn in so many seconds, if it is busy ones that lack places, or else in these ...
ROUND, IDLE_ROUND = 0.5, 1.0
#: ... and there are about so many turns a second at most: each costs two RDY commands.
TURNS = 170.0
#: Turns that end within these seconds end together, where they are much longer: a plan looks at all connections.
TOGETHER = 0.05
#: Seconds until a connection is looked at again whose input was not read: the hub reads it in its next turn.
READ_SOON = 0.001
#: Seconds between two plans for each connection, at least ten times as long as it takes: a plan looks at all of them.
APART = 0.000025


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings; in seconds."""

    #: The longest slice.
    low_rdy_timeout: float = 1.0
    #: The longest that a connection without a message keeps a place while others have none.
    low_rdy_idle_timeout: float = 10.0
    #: The longest that a test of backoff waits for a message on one connection while there are others.
    low_rdy_probe_timeout: float = 0.25


class Places(Generic[K]):
    """max_in_flight, shared out.

    :param is_written: whether all that was sent on this connection has left
    :param is_read: whether that is so, and no input waits
    :param phase: a random number, so that not all Readers favour the same nsqd
    """

    def __init__(
        self,
        settings: Settings,
        *,
        is_written: Callable[[K], bool] = lambda _: True,
        is_read: Callable[[K], bool] = lambda _: True,
        phase: float = 0.0,
    ) -> None:
        self.settings = settings
        #: max_in_flight; change it, and plan
        self.most = 0
        self.limit: RateLimit | None = None
        self.lines: dict[Line[K], None] = {}
        #: when to plan though nothing happens, and when to call `cut`
        self.plan_at = self.cut_at = FOREVER
        #: whether something is waited for that settles or is answered
        self.lacking = False
        self._is_written, self._is_read, self._phase = is_written, is_read, phase
        #: before when no other plan is made unless the caller wants one
        self._rests_until = NEVER
        #: what may be shared out, as of the last plan, and whether needs exceed that
        self._places = 0
        self._contested = False
        #: since when the silent ones have their round, where they have less than a place
        self._round_at = NEVER
        #: the longest round trip found longer of late, when, and until when it is believed
        self._longest, self._longer_at, self._longer_until = 0.0, NEVER, NEVER
        #: the lines with a burst above 1
        self._bursts: dict[Line[K], None] = {}

    # -- events ----------------------------------------------------------------------------------------

    def opened(self, line: Line[K]) -> None:
        """A connection subscribed. Next: `plan`."""
        self.lines[line] = None
        line.allowed = UNLIMITED if self.limit is None else 0

    def closing(self, line: Line[K], now: float) -> None:
        """CLS is about to be sent, which makes nsqd set RDY to 0. Next: `plan`."""
        line.grant(0, now)
        line.closing = True
        if line.rdy:
            line.sent(0, now, self._settling(line, now))

    @property
    def grows(self) -> bool:
        """Whether more is granted as soon as something has settled."""
        return self.lacking and any(line.coming for line in self.lines)

    def set_limit(self, limit: RateLimit | None) -> None:
        """Another rate limit, or none. Next: `flush` for all, and `plan`."""
        self.limit = limit
        for line in self.lines:
            line.allowed = UNLIMITED if limit is None else line.rdy

    def forget(self, line: Line[K]) -> None:
        """A connection is lost, and its last message answered. Next: `plan`."""
        self.lines.pop(line, None)
        self._bursts.pop(line, None)

    def received(self, line: Line[K], n: int, now: float, late: float) -> None:
        """``n`` messages arrived in one read; see ``Charge.received``."""
        line.received(n, now, late)
        line.level.received(line, n, now, late)
        trip = line.round_trip
        if trip.longer_at == now and (trip.seconds > self._longest or now > self._longer_until):
            self._longest, self._longer_at, self._longer_until = trip.seconds, now, now + KEPT
        elif trip.confirmed_at == now and trip.seconds >= self._longest:
            self._longer_until = now + KEPT
        if line.silent:
            line.silent = False
            self._wake(now)
        if self.limit is not None:
            self.limit.take(n, now)

    def answered(self, line: Line[K], n: int, now: float, slow: int = 0, overdue: int = 0) -> int | None:
        """``n`` messages are about to be answered, or are lost. The RDY to send before, or None.

        It is for when nsqd might send more messages after the answers than it should.
        """
        cost = line.cost if self.lacking else 0
        line.note_full(now)
        line.answered(n, now, slow, overdue)
        if (cost and line.cost < cost) or slow or overdue or not line.share:
            self._wake(now)
        elif self._contested and not line.in_time:
            self._wake(now + self._moment(line) if line.share else now)
        if self.limit is not None and line.rdy and self.limit.is_overdrawn(self.lines, now):
            line.allowed = 0
            self._wake(now)
        level = line.level
        may_lower = slow or self.limit is not None or line.rdy > line.in_flight - line.overdue + level.burst
        return self._command(line, now) if may_lower and not level.counts_down else None

    def take_out(self, line: Line[K], slow: int, overdue: int, now: float) -> None:
        """So many more handlers are slow and overdue; those leave the share. Next: `plan`."""
        line.slow += slow
        line.overdue += overdue
        if slow + overdue > 0:
            line.grant(max(0, line.share - slow - overdue), now)
        self._wake(now)

    def flush(self, line: Line[K], now: float) -> int | None:
        """Messages have arrived, and handlers begun, or answers have been written: the RDY to send, or None."""
        if line.in_flight:
            line.note_full(now)
        if self._places > line.share and min(self._places, line.needs(now)) > max(line.need, line.share):
            self._wake(now)
        return self._command(line, now)

    def cut(self, now: float) -> list[tuple[K, int]]:
        """`cut_at` has passed: (key, RDY) to send now."""
        out: list[tuple[K, int]] = []
        for line in list(self._bursts):
            if now >= line.level.cut_at:
                self._note(out, line, now)
        self._look_at_bursts()
        return out

    # -- commands --------------------------------------------------------------------------------------

    def _command(self, line: Line[K], now: float) -> int | None:
        """The RDY to send, which counts as sent."""
        level, before = line.level, line.rdy
        if now >= level.cut_at and not self._is_read(line.key):
            level.cut_at = now + READ_SOON
        rdy = level.command(line, now)
        if rdy is not None:
            in_force = line.most if level.counts_down else rdy
            line.sent(in_force, now, self._settling(line, now))
            if in_force > before:
                level.raised(line, now)
                if self.limit is not None:
                    self.limit.raised_at = now
        if level.cut_at < FOREVER and line.rdy < line.share:
            self._bursts[line] = None
            self.cut_at = min(self.cut_at, level.cut_at)
        return rdy

    def _note(self, out: list[tuple[K, int]], line: Line[K], now: float) -> None:
        rdy = self._command(line, now)
        if rdy is not None:
            out.append((line.key, rdy))

    def _look_at_bursts(self) -> None:
        self._bursts = {line: None for line in self._bursts if line.level.cut_at < FOREVER and line.rdy < line.share}
        self.cut_at = min((line.level.cut_at for line in self._bursts), default=FOREVER)

    def _settling(self, line: Line[K], now: float) -> float:
        """A line that was not measured since another became slower may be as slow."""
        known = line.round_trip.confirmed_at >= self._longer_at or now > self._longer_until
        return line.settling(0.0 if known else self._longest)

    def _moment(self, line: Line[K], lasted: float = 0.0) -> float:
        """Seconds without a message that end a turn which has brought messages for so long."""
        shortest = max(MOMENT, MOMENT_ROUND_TRIPS * line.round_trip.seconds, min(LULL, lasted / 2))
        return min(shortest, self.settings.low_rdy_idle_timeout)

    def _wake(self, at: float) -> None:
        """Plan then, or soon after."""
        self.plan_at = min(self.plan_at, max(at, self._rests_until))

    # -- the plan --------------------------------------------------------------------------------------

    def plan(self, now: float, modes: Mapping[Hashable, Mode]) -> list[tuple[K, int]]:
        """(key, RDY) to send now, the lower ones first.

        :param modes: of the topics in backoff
        """
        self.plan_at, self.lacking, self._contested = FOREVER, False, False
        self._rests_until = now + max(READ_SOON, APART * len(self.lines))
        # The others cost nothing: of many connections, most.
        charged = [line for line in self.lines if line.share or line.rdy or line.in_flight or line.coming]
        for line in charged:
            if line.coming and now >= line.settled_at:
                self._settle(line, now)
            line.round_trip.forget(now)
        tests = set[Line[K]]()
        allowed = self._allowed(modes, tests, now) if self.most else []
        in_time = sum([line.in_time for line in allowed if line.in_flight])
        places = self.most - sum([line.in_flight for line in charged]) + in_time
        if self.limit is not None:
            places = min(places, int(self.limit.capacity) + in_time)
            for line in self.lines:
                line.allowed = min(line.allowed, line.rdy)
        self._places = places
        goals = self._goals(allowed, places, tests, now) if places > 0 else {}
        return self._grant(charged, goals, now)

    def _settle(self, line: Line[K], now: float) -> None:
        if not self._is_written(line.key):  # the socket is full: the time begins when it has left
            line.settled_at = now + self._settling(line, now)
        elif not self._is_read(line.key):
            line.settled_at = now + SETTLE
        else:
            line.coming = 0

    def _goals(self, lines: Sequence[Line[K]], places: int, tests: set[Line[K]], now: float) -> dict[Line[K], int]:
        shift = int(now / SLICES + self._phase)
        for line in lines:
            line.need = 1 if line.silent or line in tests else min(places, line.needs(now))
        if sum([line.need for line in lines]) > places:
            for line in lines:
                if line.share and not line.silent and line not in tests:
                    self._end_turn(line, now)
        self._contested = sum([line.need for line in lines]) > places
        if not self._contested:
            return spread(places, lines, tests, shift)
        busy = [line for line in lines if not line.silent]
        silent = [line for line in lines if line.silent]
        slice_ = max(SLICE_LEAST, min(self.settings.low_rdy_timeout, SLICES * places / max(1, len(busy))))
        seats, lasts, before = self._seats(silent, busy, places, slice_, now)
        goals = self._turns(silent, seats, lasts, before, now)
        left = places - seats
        if len(busy) > left:
            goals.update(self._turns(busy, left, slice_, FOREVER, now))
        else:
            goals.update(spread(left, busy, tests, shift))
            self._wake((shift + 1 - self._phase) * SLICES if busy else FOREVER)
        return goals

    def _end_turn(self, line: Line[K], now: float) -> None:
        """A turn ends by a moment without a message."""
        since = line.quiet_since(now)
        ends = since + self._moment(line, since - line.turn_at)
        if line.in_time:
            ends = FOREVER  # its answer wakes
        if ends > now:
            self._wake(ends)
        elif self._is_read(line.key):
            line.fall_silent()
        else:
            self._wake(now)
        if now < line.full_at + HUNGER:
            self._wake(line.full_at + HUNGER)

    def _seats(
        self, silent: Sequence[Line[K]], busy: Sequence[Line[K]], places: int, slice_: float, now: float
    ) -> tuple[int, float, float]:
        """The places of the silent ones, how long a turn lasts, and before when the next one's last turn has ended."""
        count, needed = len(silent), sum(line.need for line in busy)
        seats = min(count, max(int(SILENT_PART * places), places - needed))
        if seats or not count:
            a_round = max(ROUND if needed >= places else IDLE_ROUND, count / TURNS)
            hurry = self.limit is not None or any(line.turn_at == NEVER for line in silent)
            # Its end waits for the next plan, and its place for the one after that.
            lasts = 0.0 if hurry else seats * a_round / max(1, count) - max(SETTLE, 1.5 * APART * len(self.lines))
            return seats, min(lasts, self.settings.low_rdy_idle_timeout), FOREVER
        # One place, in rounds between which the busy ones have it. One found busy keeps it for a slice.
        found = [line for line in busy if line.share and line.was_silent and now < line.turn_at + slice_]
        looks = sum(self._moment(line) + self._settling(line, now) + SETTLE for line in silent)
        a_round = max(ROUND, min(SLICES, looks / (SILENT_PART * places)), 2 * looks)
        if now >= self._round_at + a_round or any(line.turn_at == NEVER for line in silent):
            self._round_at = now
        self._wake(min([self._round_at + a_round, *(line.turn_at + slice_ for line in found)]))
        is_due = any(
            now < line.quiet_since(now) + self._moment(line) if line.share else line.waiting_since < self._round_at
            for line in silent
        )
        return int(is_due and len(found) < places), 0.0, self._round_at

    def _turns(
        self, lines: Sequence[Line[K]], seats: int, lasts: float, before: float, now: float
    ) -> dict[Line[K], int]:
        """RDY 1 for so many of these.

        1. A holder keeps its place until its turn is over: it lasts so long, a silent one's a moment at least.
        2. A free place goes to the topic that has the fewest, there to the connection that has waited longest: one that
           has settled and answered, and whose last turn ended before ``before``.
        3. If there are not enough of these, holders whose turns are over begin another.
        """

        def ends(line: Line[K]) -> float:
            return line.turn_at + max(lasts, self._moment(line) if line.silent else 0.0)

        holders = sorted((line for line in lines if line.share), key=ends, reverse=True)[: max(0, seats)]
        stay = [line for line in holders if ends(line) > now or not self._is_read(line.key)]
        over = [line for line in holders if line not in stay]
        ready = [line for line in lines if line.is_ready and line.waiting_since < before]
        ready.sort(key=attrgetter(*RANK))
        next_ = in_turn(ready + over, lines, stay, max(0, seats - len(stay)))
        for line in next_:
            if line.share:
                line.turn_at = now
        if len(stay) + len(next_) < min(seats, len(lines)):
            self.lacking = True
        soonest = now + (TOGETHER if lasts > 4 * TOGETHER else 0.0)
        for line in stay + next_ if self.limit is None else stay:  # with a limit, a turn begins later
            at = ends(line) if line.share and line.turn_at < FOREVER else now + max(lasts, self._moment(line))
            self._wake(max(soonest, at))
        return dict.fromkeys(stay + next_, 1)

    def _grant(self, charged: Iterable[Line[K]], goals: Mapping[Line[K], int], now: float) -> list[tuple[K, int]]:
        """Lower at once; raise as far as there is room, the lowest and longest waiting first."""
        out: list[tuple[K, int]] = []
        firm = [max(min(goals.get(line, 0), line.share) + line.reserved, line.in_flight) for line in charged]
        excess = sum(firm) - self.most
        for line in charged:
            goal = goals.get(line, 0)
            share = min(goal, line.share) if excess <= 0 else min(goal, line.share, max(0, line.in_time - excess))
            if share < line.share:
                line.grant(share, now)
            if line.rdy > line.most:
                self._note(out, line, now)
        wanting = [line for line, goal in goals.items() if goal > line.share]
        wanting.sort(key=attrgetter("share", *RANK))
        room = self.most - sum([line.cost for line in charged])
        lacks = False  # whether one that has waited for longer has no place: then what is coming brings none back
        for line in wanting if room >= 0 >= excess else ():
            free = max(line.share, line.in_time + line.coming)  # a share up to this costs nothing
            share = min(goals[line], free + room)
            if share > line.share and not (lacks and not line.share):
                room -= max(0, share - free)
                line.grant(share, now)
                self._note(out, line, now)
            lacks = lacks or not line.share
        self.lacking = self.lacking or any(line.share < goals[line] for line in wanting)
        if self.limit is not None:
            self._within_tokens(self.limit, out, now)
        if self.lacking:
            self._wake(min((line.settled_at for line in charged if line.coming), default=FOREVER))
        return out

    def _within_tokens(self, limit: RateLimit, out: list[tuple[K, int]], now: float) -> None:
        """RDY 0 where more may arrive than there are tokens, or one raise."""
        for line in limit.overdrawn(self.lines, now):
            line.allowed = 0
            self._note(out, line, now)
        raised, rdy, at = limit.next_raise(self.lines, now)
        self._wake(at)
        if raised is not None:
            raised.allowed = rdy
            self._note(out, raised, now)
            self._wake(now + self._moment(raised))

    # -- backoff ---------------------------------------------------------------------------------------

    def _allowed(self, modes: Mapping[Hashable, Mode], tests: set[Line[K]], now: float) -> list[Line[K]]:
        """Those that may have RDY: all of topics that flow, and one, put into ``tests``, of each that tests."""
        groups: dict[Hashable, list[Line[K]]] = {}
        allowed = []
        for line in self.lines:
            mode = Mode.BLOCKED if line.closing else modes.get(line.topic, Mode.FLOWING)
            if mode is Mode.FLOWING:
                allowed.append(line)
            elif mode is Mode.PROBING:
                groups.setdefault(line.topic, []).append(line)
        for group in groups.values():
            test = self._test(group, now)
            if test is None:
                self.lacking = True
            else:
                test.silent = False
                tests.add(test)
                allowed.append(test)
        return allowed

    def _test(self, group: Sequence[Line[K]], now: float) -> Line[K] | None:
        """The connection on which a topic tests; moved when it brought nothing and another is ready."""
        ready = [line for line in group if line.is_ready]
        test = max((line for line in group if line.share), key=lambda line: line.turn_at, default=None)
        if test is None:
            # One message at a time: none may be on its way when the next test starts, also on a connection that closes.
            topic = group[0].topic
            if not ready or any(line.coming for line in self.lines if line.topic == topic):
                return None
            test = min(ready, key=lambda line: (line.waiting_since, line.reserved > 0))
            since = now
        else:
            since = test.quiet_since(now)
        ends = since + max(self.settings.low_rdy_probe_timeout, self._moment(test))
        if len(group) == 1:
            return test
        if ends > now:
            self._wake(ends)
            return test
        if ready and self._is_read(test.key):
            return None
        self._wake(now + SETTLE)
        return test


# --- dealing out ------------------------------------------------------------------------------------------


def in_turn(
    candidates: Iterable[Line[K]], lines: Iterable[Line[K]], stay: Iterable[Line[K]], free: int
) -> list[Line[K]]:
    """The next holders of ``free`` places: in their order, but the topic that has the fewest places is next.

    Among topics that have equally many, it is the one whose last turn began first.

    :param stay: of ``lines``, those that have places
    """
    began: dict[Hashable, float] = {}
    for line in lines:
        if began.get(line.topic, NEVER) < line.turn_at < FOREVER:
            began[line.topic] = line.turn_at
    taken = Counter([line.topic for line in stay])
    queue = []
    for number, line in enumerate(candidates):
        topic = line.topic
        queue.append((taken[topic], began.get(topic, NEVER), number, line))
        taken[topic] += 1
        began[topic] = FOREVER
    return [line for *_, line in nsmallest(free, queue)]


def spread(amount: int, lines: Sequence[Line[K]], tests: Collection[Line[K]], shift: int) -> dict[Line[K], int]:
    """Shares of ``amount``: first what each needs, or at least 1; the rest level among topics, and in each of these.

    :param tests: those that get no more than 1
    :param shift: the index at which the remainder is dealt out
    """
    topics: dict[Hashable, list[Line[K]]] = {}
    for line in lines:
        topics.setdefault(line.topic, []).append(line)

    def bounds(line: Line[K]) -> tuple[int, int, int]:
        return 1, line.need, 1 if line in tests else line.max_rdy

    goals: dict[Line[K], int] = {}
    groups = [[bounds(line) for line in group] for group in topics.values()]
    parts = [amount] if len(groups) == 1 else level(amount, [_sums(each) for each in groups], shift)
    for group, each, part in zip(topics.values(), groups, parts, strict=True):
        goals.update(zip(group, level(part, each, shift), strict=True))
    return goals


def _sums(bounds: Sequence[tuple[int, int, int]]) -> tuple[int, int, int]:
    return sum(each[0] for each in bounds), sum(each[1] for each in bounds), sum(each[2] for each in bounds)


def level(amount: int, bounds: Sequence[tuple[int, int, int]], shift: int) -> list[int]:
    """Deal out ``amount`` so that all have the same, except for their bounds: (least, need, most) of each.

    Up to what each needs, or from there on up to its most.
    """
    enough = sum([need for _, need, _ in bounds]) <= amount
    ranges = [(need, most) if enough else (least, need) for least, need, most in bounds]
    low, high = 0, amount
    while low < high:
        middle = (low + high + 1) // 2
        if sum([min(max(middle, least), most) for least, most in ranges]) <= amount:
            low = middle
        else:
            high = middle - 1
    dealt = [min(max(low, least), most) for least, most in ranges]
    left = amount - sum(dealt)
    more = [place for place, (least, most) in enumerate(ranges) if least <= low < most]
    for place in range(min(left, len(more))):
        dealt[more[(place + shift) % len(more)]] += 1
    return dealt
