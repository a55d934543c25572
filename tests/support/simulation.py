"""A cluster in virtual time: nsqds (`virtual_nsqd`), and a Reader that is nothing but `gnsq_like.policy` and its
bookkeeping.

`Reader` does with the policy what the real one should, event by event, so it is also the shortest description
of how the policy is used. `Cluster` puts them together; while it runs, every plan and every message sent is
checked against what the plan promises: see `check_plan` and `Cluster`. Nothing is random but what the
`random.Random` given decides.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from typing import Any

from gnsq_like.policy.adaptive_rdy import AdaptiveRdy
from gnsq_like.policy.backoff import Backoff
from gnsq_like.policy.rate_limit import RateLimit, within_tokens
from gnsq_like.policy.rdy import Charge, Mode, Plan, Settings, plan
from gnsq_like.policy.turns import SilentTurns
from tests.support.virtual_nsqd import Clock, Link, Message, Nsqd

#: How long before a message's deadline the Reader takes its slot out of RDY.
OVERDUE_MARGIN = 0.1
#: How long a message is in flight before it leaves the shares.
SLOW = 2.0


class Connection:
    """What the Reader has of one nsqd."""

    def __init__(
        self, reader: Reader, nsqd: Nsqd, delay: Callable[[], float], round_trip: float, topic: Hashable
    ) -> None:
        clock = reader.clock
        self.nsqd = nsqd
        self.charge = Charge(self, clock.now, reader.settings, topic=topic, round_trip=round_trip)
        self.level = AdaptiveRdy(round_trip, nsqd.buffer_timeout)
        self.up = Link(clock, delay)
        self.down = Link(clock, delay)
        self.unanswered: set[Message] = set()
        #: of these, past their deadline or nearly so
        self.overdue: set[Message] = set()
        #: and those in flight for long, before that
        self.slow: set[Message] = set()
        self.alive = True
        nsqd.deliver = lambda batch: self.down.send(lambda: reader.arrive(self, batch))

    def __repr__(self) -> str:
        return f"<to {self.nsqd.name}>"


class Reader:
    """The policy in use: what the real Reader has to do at each event, and nothing else.

    :param handle: message -> (seconds the handler takes, what it does: "finish", "requeue", "quiet" requeue)
    :param adaptive: whether RDY follows the traffic below the share
    :param lag: seconds by which the hub is late when data arrives
    :param quiet_timer: whether a burst that is not filled is cut by a timer too
    """

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        *,
        max_in_flight: int = 1,
        settings: Settings | None = None,
        handle: Callable[[Message], tuple[float, str]] = lambda _message: (0.0, "finish"),
        adaptive: bool = False,
        backoff: Backoff | None = None,
        lag: Callable[[], float] | None = None,
        quiet_timer: bool = True,
        requeue_delay: float = 1.0,
        rate_limit: float | None = None,
    ) -> None:
        self.clock = clock
        self.rng = rng
        self.settings = settings or Settings()
        self.max_in_flight = max_in_flight
        self.handle = handle
        self.adaptive = adaptive
        self.backoff = backoff or Backoff(lambda _level: 1.0, max_duration=0)
        self.lag = lag
        self.quiet_timer = quiet_timer
        self.requeue_delay = requeue_delay
        self.limit = None if rate_limit is None else RateLimit(rate_limit, clock.now)
        self.connections: list[Connection] = []
        self.plan: Plan[Any] = Plan()
        self.plans = 0
        self.ticks = 0
        self.rdys_sent = 0
        self.running = 0
        self.most_running = 0
        #: (message, when it came) of everything received
        self.log: list[tuple[float, Connection, Message]] = []
        #: whether every plan is checked
        self.checked = False
        self.after_plan: Callable[[], object] = lambda: None
        self._timer_at: float | None = None
        #: Silent at the last plan.
        self._silent: set[Charge[Any]] = set()
        self._blocked_until: float | None = None
        self._next_pass = 0.0

    # -- events

    def connect(
        self,
        nsqd: Nsqd,
        delay: Callable[[], float] = lambda: 0.0001,
        round_trip: float = 0.0002,
        topic: Hashable = None,
    ) -> Connection:
        connection = Connection(self, nsqd, delay, round_trip, topic)
        self.connections.append(connection)
        self.replan()
        return connection

    def lose(self, connection: Connection) -> None:
        """The socket dies. The slot stays for the handlers that run."""
        connection.alive = False
        connection.up.broken = connection.down.broken = True
        connection.nsqd.disconnect()
        connection.charge.lost(self.clock.now)
        self.backoff.lost(connection, self.clock.now)
        self._forget(connection)
        self.replan()

    def leave(self, connection: Connection) -> None:
        """CLS: nsqd sends nothing any more; what is held may still be answered."""
        connection.charge.close(self.clock.now)
        connection.up.send(connection.nsqd.close_wait)
        self.clock.at(connection.charge.settled_at, lambda: self._forget(connection))
        self.backoff.lost(connection, self.clock.now)
        self.replan()

    def _forget(self, connection: Connection) -> None:
        """A closing slot stays in the table while anything is in flight or may come."""
        charge = connection.charge
        done = charge.closing and not connection.unanswered and not charge.is_settling(self.clock.now)
        if done and connection in self.connections:
            self.connections.remove(connection)

    def set_max_in_flight(self, max_in_flight: int) -> None:
        self.max_in_flight = max_in_flight
        self.replan()

    def arrive(self, connection: Connection, batch: list[Message]) -> None:
        self._in_turn(lambda: self.receive(connection, batch))

    def _in_turn(self, action: Callable[[], object]) -> None:
        """Do it now, or, on a busy hub, when its next round begins."""
        if self.lag is None:
            action()
            return
        if self._next_pass <= self.clock.now:
            self._next_pass = self.clock.now + self.lag()
        self.clock.at(self._next_pass, action)

    def receive(self, connection: Connection, batch: list[Message]) -> None:
        if not connection.alive:
            return
        now, charge = self.clock.now, connection.charge
        again = charge.received(len(batch), now)
        if self.limit is not None:
            self.limit.take(len(batch), now)
            again = again or charge.in_time >= charge.rdy
        connection.level.received(len(batch), charge.in_flight, now)
        connection.unanswered.update(batch)
        done: list[Message] = []
        for message in batch:
            message.received_at = now
            message.stamp = self.backoff.stamp(connection, charge.rdy > 0)
            self.log.append((now, connection, message))
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            self.clock.at(now + SLOW, lambda m=message: self.slow(connection, m, now))  # type: ignore[misc]
            if connection.nsqd.msg_timeout is not None:
                deadline = now + connection.nsqd.msg_timeout - OVERDUE_MARGIN
                self.clock.at(deadline, lambda m=message: self.overdue(connection, m, now))  # type: ignore[misc]
            seconds, what = self.handle(message)
            if seconds == 0 and what == "finish":
                done.append(message)
            else:
                self.clock.after(seconds, lambda m=message, w=what: self.answer(connection, [m], w))  # type: ignore[misc]
        if done:
            self.answer(connection, done, "finish")
        if again:
            self.replan()
        else:
            self.adjust(connection)

    def slow(self, connection: Connection, message: Message, received_at: float) -> None:
        """What came at `received_at` may still be with its handler."""
        same = message in connection.unanswered and message.received_at == received_at
        if same and message not in connection.overdue and len(self.connections) > 1:
            connection.slow.add(message)
            connection.charge.reserve(1, self.clock.now, slow=1)
            self.replan()

    def overdue(self, connection: Connection, message: Message, received_at: float) -> None:
        """The deadline of what came at `received_at` is near; perhaps its handler still runs."""
        same = message in connection.unanswered and message.received_at == received_at
        if same and connection.alive:
            connection.overdue.add(message)
            was_slow = message in connection.slow
            connection.slow.discard(message)
            connection.charge.reserve(1 - was_slow, self.clock.now, slow=-was_slow)
            self.backoff.inconclusive(message.stamp, self.clock.now)
            self.replan()

    def answer(self, connection: Connection, messages: list[Message], what: str) -> None:
        now, charge = self.clock.now, connection.charge
        messages = [message for message in messages if message in connection.unanswered]
        if not messages:
            return
        self.running -= len(messages)
        connection.unanswered.difference_update(messages)
        late = connection.overdue.intersection(messages)
        slow = connection.slow.intersection(messages)
        connection.overdue -= late
        connection.slow -= slow
        reserved = len(late) + len(slow)
        is_short = self.limit is not None and self._spare_tokens(self.limit, connection, len(messages) - reserved)
        freed = charge.answered(len(messages), now, reserved=reserved, slow=len(slow))
        verdict = {"finish": self.backoff.success, "requeue": self.backoff.failure, "quiet": self.backoff.inconclusive}
        changed = False
        for message in messages:
            message.answered = True
            changed |= verdict[what](message.stamp, now)
        self._forget(connection)
        # RDY leaves before the answer, see backoff.py.
        if changed or freed or is_short:
            self.replan()
        else:
            self.adjust(connection)
        if what == "finish":
            connection.up.send(lambda: connection.nsqd.finish(messages))
        else:
            for message in messages:
                connection.up.send(lambda m=message: connection.nsqd.requeue(m, self.requeue_delay))  # type: ignore[misc]

    # -- decisions

    def _spare_tokens(self, limit: RateLimit, connection: Connection, answers: int) -> bool:
        """RDY 0 before answers for which there are too few tokens."""
        now, charges = self.clock.now, [each.charge for each in self.connections]
        if not limit.overdraws(charges, connection.charge, answers, now):
            return False
        limit.sent(False, now)
        connection.charge.sent(0, now)
        self.adjust(connection)
        return True

    def replan(self) -> None:
        now = self.clock.now
        self.plans += 1
        charges = [connection.charge for connection in self.connections]
        mode, limit = self.backoff.mode, self.max_in_flight
        if self.limit is not None:
            self.plan = check_limited(
                charges, self.limit, max_in_flight=limit, now=now, mode=mode, settings=self.settings, rng=self.rng
            )
        elif self.checked:
            self.plan = check_plan(
                charges, max_in_flight=limit, now=now, mode=mode, settings=self.settings, rng=self.rng
            )
        else:
            self.plan = plan(
                charges, max_in_flight=limit, now=now, mode=mode, settings=self.settings, draw=self.rng.random
            )
        for key, rdy in self.plan.changes:
            assert isinstance(key, Connection)
            if not self.checked and self.limit is None:
                key.charge.sent(rdy, now)
            self.adjust(key)
        for connection in self.connections:
            self.adjust(connection)
        self._silent = {charge for charge in charges if charge.is_silent(now)}
        self._set_timer(self.plan.next_at)
        self._set_turns_timer()
        until = self.backoff.until
        if until is not None and until != self._blocked_until:
            self.clock.at(until, self._time_is_up)
        self._blocked_until = until
        self.after_plan()

    def adjust(self, connection: Connection) -> None:
        """Send RDY if it is not what it should be."""
        now, charge, level = self.clock.now, connection.charge, connection.level
        rdy = level.target(charge.in_flight, charge.sent_rdy, now) if self.adaptive else charge.sent_rdy
        if rdy != level.rdy and connection.alive and not charge.closing:
            level.sent(rdy, now)
            self.rdys_sent += 1
            connection.up.send(lambda: connection.nsqd.set_rdy(rdy))
        if self.adaptive and self.quiet_timer and level.due is not None:
            self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        due = connection.level.due
        if due is None or getattr(connection, "watched", False):
            return
        connection.watched = True  # type: ignore[attr-defined]

        def look() -> None:
            connection.watched = False  # type: ignore[attr-defined]
            connection.level.quiet(self.clock.now)
            self.adjust(connection)

        self.clock.at(due, lambda: self._in_turn(look))

    def _set_timer(self, at: float | None) -> None:
        self._timer_at = at
        if at is not None:
            self.clock.at(at, lambda: self.replan() if self._timer_at == at else None)

    def _set_turns_timer(self) -> None:
        turns = self.plan.turns
        at = None if turns is None else turns.next_at(self.clock.now)
        if at is not None:
            self.clock.at(at, lambda: self._tick(turns))

    def _tick(self, turns: SilentTurns[Any] | None) -> None:
        if turns is None or turns is not self.plan.turns:
            return  # replaced by a new plan's
        now = self.clock.now
        self.ticks += 1
        for charge, rdy in turns.tick(now):
            assert rdy != charge.rdy, "only real changes"
            charge.sent(rdy, now)
            assert isinstance(charge.key, Connection)
            self.adjust(charge.key)
        if self.checked and self.ticks % 16 == 1:  # a plan costs far more than a tick
            charges = [connection.charge for connection in self.connections]
            assert sum(charge.at(now) for charge in charges) <= self.max_in_flight, "the window"
            made = plan(
                charges,
                max_in_flight=self.max_in_flight,
                now=now,
                mode=self.backoff.mode,
                settings=self.settings,
                draw=self.rng.random,
            )
            as_planned = self._silent == {charge for charge in charges if charge.is_silent(now)}
            assert not as_planned or made.turns is None or not made.changes, "a plan agrees with the turns"
        if turns.next_at(now) is None:
            self.replan()
        else:
            self._set_turns_timer()

    def _time_is_up(self) -> None:
        if self.backoff.time_is_up(self.clock.now):
            self.replan()


def check_limited(
    charges: list[Charge[Any]],
    limit: RateLimit,
    *,
    max_in_flight: int,
    now: float,
    settings: Settings,
    rng: random.Random,
    mode: Mode = Mode.FLOWING,
) -> Plan[Any]:
    """As `check_plan`, with a rate limit."""
    charged = sum(charge.at(now) for charge in charges)
    exposed = sum(charge.exposed(now) for charge in charges)
    before = {charge.key: charge.rdy for charge in charges}
    table = {charge.key: charge for charge in charges}

    def ask() -> Plan[Any]:
        draw = rng.random
        tokens = int(limit.capacity)
        made = plan(
            charges, max_in_flight=max_in_flight, now=now, mode=mode, settings=settings, draw=draw, tokens=tokens
        )
        return within_tokens(made, charges, limit, now=now, settings=settings, draw=draw)

    made = ask()
    assert made.next_at is None or made.next_at > now
    raised = [key for key, rdy in made.changes if rdy > before[key]]
    assert len(raised) <= 1, "one raise at a time"
    assert not raised or len(made.changes) == 1, "raises and decreases apart"
    assert len({key for key, _ in made.changes}) == len(made.changes), "one RDY for each"
    for key, rdy in made.changes:
        assert rdy != before[key], "only real changes"
        limit.sent(rdy > before[key], now)
        table[key].sent(rdy, now)
    assert sum(charge.at(now) for charge in charges) <= max(max_in_flight, charged), "the window"
    assert sum(charge.exposed(now) for charge in charges) <= max(limit.tokens(now), exposed), "the tokens"
    assert all(0 <= charge.rdy <= charge.max_rdy for charge in charges)
    assert all(charge.rdy == before[charge.key] for charge in charges if charge.closing)
    again = ask()
    assert again.changes == [], ("planning twice", made, again, charges)
    return made


def check_plan(
    charges: list[Charge[Any]], *, max_in_flight: int, now: float, mode: Mode, settings: Settings, rng: random.Random
) -> Plan[Any]:
    """Plan, carry it out, and check every promise that concerns one moment. Returns what was planned."""
    charged = sum(charge.at(now) for charge in charges)
    before = {charge.key: charge.rdy for charge in charges}
    table = {charge.key: charge for charge in charges}

    def ask() -> Plan[Any]:
        return plan(charges, max_in_flight=max_in_flight, now=now, mode=mode, settings=settings, draw=rng.random)

    made = ask()
    risen = False
    for key, rdy in made.changes:
        assert rdy != before[key], "only real changes"
        assert not (risen and rdy < before[key]), "decreases first"
        risen = risen or rdy > before[key]
        table[key].sent(rdy, now)
    assert len({key for key, _ in made.changes}) == len(made.changes), "one RDY for each"
    assert made.next_at is None or made.next_at > now
    open_slots = [charge for charge in charges if not charge.closing]
    assert sum(charge.at(now) for charge in charges) <= max(max_in_flight, charged), "the window"
    limit = max_in_flight - sum(charge.in_flight if charge.closing else charge.reserved for charge in charges)
    assert sum(charge.rdy for charge in open_slots) <= max(0, limit)
    assert all(0 <= charge.rdy <= charge.max_rdy for charge in charges)
    assert all(charge.rdy == before[charge.key] for charge in charges if charge.closing)
    if mode is Mode.BLOCKED or limit <= 0:
        assert not any(charge.rdy for charge in open_slots)
    else:
        room = max_in_flight - sum(charge.at(now) for charge in charges)
        settling = {charge.key for charge in charges if charge.is_settling(now)}
        _check_shares(open_slots, limit, room, settling, mode, made, now)
    again = ask()
    assert again.changes == [], ("planning twice", made, again, charges)
    return made


def _check_shares(
    open_slots: list[Charge[Any]],
    limit: int,
    room: int,
    settling: set[Hashable],
    mode: Mode,
    made: Plan[Any],
    now: float,
) -> None:
    """Overdue handlers excuse nothing: for nsqd their messages are not in flight."""
    silent = {charge.key for charge in open_slots if charge.is_silent(now)}
    beside_busy = mode is Mode.FLOWING and limit > 1 and 0 < len(silent) < len(open_slots)
    if beside_busy:
        busy = [charge for charge in open_slots if charge.key not in silent]
        unused = min(limit // 2, limit - 2 * len(busy))
        if any(charge.is_hungry(now) or charge.in_time >= (limit - unused) // len(busy) for charge in busy):
            unused = 0
        slow = sum(charge.slow for charge in open_slots)
        room, limit = _check_silent(
            [charge for charge in open_slots if charge.key in silent], unused, limit, slow, room, settling, made, now
        )
        open_slots = busy
    at_zero = [charge for charge in open_slots if not (charge.rdy or charge.in_time)]
    if mode is Mode.PROBING:
        assert sum(charge.rdy for charge in open_slots) <= 1
        if at_zero and room > 0 and not settling:
            assert any(charge.rdy for charge in open_slots), "one connection tests"
    elif room > 0:
        settled = [charge for charge in at_zero if charge.key not in settling]
        waiting = settled if len(open_slots) > limit else at_zero
        assert not waiting, "none is at 0 while there is room, except one that has just given up its turn"
    if len(open_slots) > limit + beside_busy:
        assert all(charge.rdy <= 1 for charge in open_slots)
    if at_zero and room > 0:
        assert _goes_on(made, now), "a connection that has nothing although there is room waits"


def _goes_on(made: Plan, now: float) -> bool:
    """Whether there is a time at which to plan again, or to go on with the turns: the Reader waits for both."""
    return made.next_at is not None or (made.turns is not None and made.turns.next_at(now) is not None)


def _check_silent(
    silent: list[Charge[Any]],
    unused: int,
    limit: int,
    slow: int,
    room: int,
    settling: set[Hashable],
    made: Plan,
    now: float,
) -> tuple[int, int]:
    """Silent connections beside busy ones. Returns the room and the limit for the busy."""
    most = max(1, min(limit, int(silent[0].settings.silent_part * (limit + slow))), min(unused, len(silent)))
    assert all(charge.rdy <= 1 for charge in silent)
    holding = sum(charge.rdy for charge in silent)
    assert holding <= most, "the silent leave the rest to the busy"
    waiting = [charge for charge in silent if not charge.rdy]
    if waiting and room > 0:
        assert _goes_on(made, now), "a silent connection gets its turn"
        if not settling and silent[0].settings.silent_part * limit >= 1:
            assert holding, "their seats are used"
    # The room that is left may be theirs: the seat of a connection that settles, or that none is due for.
    return max(0, room - (most - holding)), limit - most


class Cluster:
    """Nsqds and one Reader, and the promises that need time to be broken.

    - No nsqd sends a message that makes the sum of all sent and unanswered ones more than
      max_in_flight. After it was lowered: more than before, until everything charged fits.
    - While the Reader is blocked, nothing is sent (from a settling time on).
    """

    def __init__(self, reader: Reader, *, watch_window: bool = True) -> None:
        self.clock = reader.clock
        self.reader = reader
        self.nsqds: list[Nsqd] = []
        self.most_in_flight = 0
        self._watch_window = watch_window
        reader.checked = True
        self._limit = reader.max_in_flight
        self._limit_was = reader.max_in_flight
        self._lowered_at = -1.0
        self._blocked_at: float | None = None
        reader.after_plan = self._after_plan

    def add(self, nsqd: Nsqd, **connect: object) -> Connection:
        nsqd.on_send = self._check_send
        self.nsqds.append(nsqd)
        return self.reader.connect(nsqd, **connect)  # type: ignore[arg-type]

    @property
    def in_flight(self) -> int:
        """What the nsqds count, less the FINs on their way, and handlers of lost connections, for they run too."""
        lost = sum(len(each.unanswered) for each in self.reader.connections if not each.alive)
        sent = (message for nsqd in self.nsqds if nsqd.deliver for message in nsqd.in_flight)
        return lost + sum(not message.answered for message in sent)

    def _after_plan(self) -> None:
        now, reader = self.clock.now, self.reader
        if reader.max_in_flight < self._limit:
            self._limit_was, self._lowered_at = max(self._limit, self.in_flight), now
        self._limit = reader.max_in_flight
        settled = now > self._lowered_at + 2 * reader.settings.settle_minimum
        if settled and sum(each.charge.at(now) for each in reader.connections) <= self._limit:
            self._limit_was = self._limit
        blocked = reader.backoff.mode is Mode.BLOCKED
        self._blocked_at = (self._blocked_at if self._blocked_at is not None else now) if blocked else None

    def _check_send(self, nsqd: Nsqd) -> None:
        now, total = self.clock.now, self.in_flight
        self.most_in_flight = max(self.most_in_flight, total)
        settling = self.reader.settings.settle_minimum
        if self._watch_window:
            if now <= self._lowered_at + settling:
                self._limit_was = max(self._limit_was, total)
            assert total <= max(self._limit, self._limit_was), "max_in_flight exceeded"
        if self._blocked_at is not None:
            assert now <= self._blocked_at + settling, "a message while blocked"
