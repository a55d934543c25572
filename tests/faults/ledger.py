"""Every message of a run: who published it with which outcome, each delivery, each handling; and what does not add up.

What must hold:

- A confirmed message is handled to the end at least once, unless its nsqd was killed while it was only in its memory:
  in flight, requeued with a delay, or deferred (docs/daemons.rst). Everything else is on disk, because the runs have
  mem-queue-size 0.
- One that was not sent, or refused, never arrives.
- Without ``retry_unknown`` and replicas, a message is taken by one nsqd only, once.
- Whatever is handled to the end more than once was delivered again for a reason: a lost connection, a timeout, a
  killed nsqd, or a stop of its Reader while the handler still ran.
- A publish returns by its deadline.

Clients' notes and the wire are told independently of each other; ``judge`` puts them together. A handling belongs to
the delivery that has its client, message id and attempts, and it is that delivery's next one which needs a reason. Only
the order of events on one connection counts for a stop: this process may see them much later than they happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

#: Seconds by which a publish may return after its deadline on a machine that has time for it.
LATE = 0.25
#: How often a publish that ends waits for its process to go on: the deadline's timer, the other thread, the caller.
_STEPS = 3
#: Seconds around a message's timeout in which nsqd may take it back (it looks every 0.1 s).
_TIMEOUT_MARGIN = 0.5
#: Messages that a killed nsqd may have taken from one disk queue, and not yet put into the next or sent.
_BETWEEN_QUEUES = 2

CONFIRMED, NOT_SENT, REFUSED, UNKNOWN = "confirmed", "not sent", "refused", "unknown"
OUTCOMES = (CONFIRMED, NOT_SENT, REFUSED, UNKNOWN)

#: nsqd's codes for what it cannot store; nothing else in a run is a reason to refuse a publish.
STORING_FAILED = frozenset({"E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"})

STOPPED = "its Reader was stopped"
LOST_CONNECTION = "the connection was lost"
KILLED = "nsqd was killed"
TIMED_OUT = "the message timed out"
UNEXPLAINED = "unexplained"
AGAIN = "published again"


@dataclass(slots=True)
class _Connection:
    #: How often its nsqd had been killed when it was first seen.
    kills_before: int
    client: str = ""
    #: When CLS was sent on it.
    unsubscribed_at: float | None = None
    #: Whether a side of it has ended; whether the client's was the first, and when.
    is_dead: bool = False
    closed_by_client: bool = False
    closed_at: float = 0.0


@dataclass(slots=True, eq=False)
class _Delivery:
    """One delivery of a message by one nsqd."""

    number: int
    connection: object
    attempts: int
    at: float
    #: Whether an earlier one on the same connection was not answered yet. An answer to that one may take this one back.
    is_second: bool = False
    #: The last one from its connection: "FIN", "REQ", or empty; and whether that came after CLS.
    answer: str = ""
    after_cls: bool = False
    #: Whether any was REQ.
    was_requeued: bool = False
    #: Why there was another one after it.
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Handling:
    """What a client notes when a handler has done its work."""

    client: str
    number: int
    message_id: bytes
    attempts: int
    #: The message's answer at that time: None; "REQ" if its Reader has given it back, "LOST" if it has dropped it.
    answer: str | None = None
    #: Whether the Reader may give it back between this note and the handler's return, because that is in a thread.
    in_thread: bool = False


@dataclass(slots=True)
class _Publish:
    deadline: float
    #: Whether nsqds may have it more than once.
    may_repeat: bool
    #: Seconds.
    defer: float
    begun_at: float
    outcome: str = ""
    ended_at: float = 0.0
    #: nsqd's code, if it was refused.
    code: str = ""


@dataclass
class Verdict:
    """What a run has shown; numbers of messages where something is wrong."""

    published: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    handled: int = 0
    delivered: int = 0
    #: Handled to the end again, by cause.
    duplicates: Counter[str] = field(default_factory=Counter)
    #: Confirmed and not handled, because a kill took them from memory, by where they were.
    killed: Counter[str] = field(default_factory=Counter)
    #: Refused publishes by nsqd's code.
    refusals: Counter[str] = field(default_factory=Counter)
    #: From here on: violations.
    lost: list[int] = field(default_factory=list)
    arrived_unsent: list[int] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    #: (message, nsqd's code)
    wrongly_refused: list[tuple[int, str]] = field(default_factory=list)
    unexplained: list[int] = field(default_factory=list)
    undelivered: list[int] = field(default_factory=list)
    #: (message, seconds after the deadline)
    late: list[tuple[int, float]] = field(default_factory=list)

    @property
    def violations(self) -> dict[str, list]:
        """Those there are, by name."""
        found: dict[str, list] = {
            "lost": self.lost,
            "arrived although not sent": self.arrived_unsent,
            "taken twice": self.repeated,
            "refused without a cause": self.wrongly_refused,
            "handled again without a cause": self.unexplained,
            "handled without a delivery": self.undelivered,
            "publish after its deadline": self.late,
        }
        return {name: numbers for name, numbers in found.items() if numbers}


class Ledger:
    """Takes notes of a run.

    :param msg_timeout: seconds after which nsqd takes a message back
    """

    def __init__(self, msg_timeout: float) -> None:
        self._msg_timeout = msg_timeout
        self._publishes: dict[int, _Publish] = {}
        self._handlings: dict[int, list[Handling]] = {}
        #: By nsqd and message id.
        self._deliveries: dict[tuple[int, bytes], list[_Delivery]] = {}
        #: The ids under which nsqds have delivered it.
        self._keys: dict[int, list[tuple[int, bytes]]] = {}
        #: The nsqds to which it was sent.
        self._homes: dict[int, set[int]] = {}
        #: By nsqd: messages delivered and not finished.
        self._open: dict[int, dict[bytes, int]] = {}
        self._connections: dict[object, _Connection] = {}
        #: RDY of each connection that is open, as last sent.
        self._rdy: dict[object, int] = {}
        self._kills: dict[int, list[float]] = {}
        #: Messages that a kill took from an nsqd's memory.
        self._taken: dict[int, str] = {}
        #: How many that were never seen a kill may have taken.
        self._unseen = 0
        #: (from, until) in which an nsqd or its way stood still.
        self._disturbances: dict[int, list[tuple[float, float]]] = {}
        #: By client: (from, until) in which the process did not run.
        self._stalls: dict[str, list[tuple[float, float]]] = {}
        self._clients: dict[int, str] = {}
        #: Clients that were not killed.
        self._ended: set[str] = set()
        self.delivered_count = 0

    # -- notes of the clients ------------------------------------------------------------------------

    def publishing(
        self, client: str, number: int, at: float, deadline: float, *, may_repeat: bool = False, defer: float = 0.0
    ) -> None:
        self._publishes[number] = _Publish(deadline, may_repeat, defer, at)
        self._clients[number] = client

    def ended(self, number: int, outcome: str, at: float, code: str = "") -> None:
        publish = self._publishes[number]
        publish.outcome, publish.ended_at, publish.code = outcome, at, code

    def handled(self, handling: Handling) -> None:
        self._handlings.setdefault(handling.number, []).append(handling)

    def stalled(self, client: str, begin: float, end: float) -> None:
        """The client's process, or a thread of it, did not run."""
        self._stalls.setdefault(client, []).append((begin, end))

    def came_to_end(self, client: str) -> None:
        """It was not killed."""
        self._ended.add(client)

    # -- the wire ------------------------------------------------------------------------------------

    def identified(self, connection: object, client: str) -> None:
        self._connection(connection).client = client

    def _connection(self, name: object) -> _Connection:
        connection = self._connections.get(name)
        if connection is None:
            connection = self._connections[name] = _Connection(len(self._kills.get(_nsqd_of(name), ())))
        return connection

    def published(self, nsqd: int, number: int) -> None:
        self._homes.setdefault(number, set()).add(nsqd)

    def granted(self, connection: object, rdy: int) -> None:
        if not self._connection(connection).is_dead:
            self._rdy[connection] = rdy

    def unsubscribed(self, connection: object, at: float) -> None:
        """The client has sent CLS."""
        self._connection(connection).unsubscribed_at = at
        self.granted(connection, 0)

    def delivered(
        self, nsqd: int, connection: object, message_id: bytes, number: int, attempts: int, at: float
    ) -> None:
        self.delivered_count += 1
        key = (nsqd, message_id)
        earlier = self._deliveries.setdefault(key, [])
        if earlier:
            earlier[-1].cause = self._cause(nsqd, earlier[-1], at)
        else:
            self._keys.setdefault(number, []).append(key)
        is_second = any(each.connection == connection and not each.answer for each in earlier)
        earlier.append(_Delivery(number, connection, attempts, at, is_second))
        if self._connection(connection).kills_before < len(self._kills.get(nsqd, ())):
            self._taken[number] = "in flight or requeued"  # it was on its way when the nsqd that sent it was killed
        else:
            self._open.setdefault(nsqd, {})[message_id] = number

    def _cause(self, nsqd: int, before: _Delivery, at: float) -> str:
        """Of a delivery after one that was not requeued."""
        if any(kill >= before.at for kill in self._kills.get(nsqd, ())):
            return KILLED
        if self._connection(before.connection).is_dead:
            return LOST_CONNECTION
        if at - before.at >= self._msg_timeout - _TIMEOUT_MARGIN:
            return TIMED_OUT
        if self._was_disturbed(nsqd, before.at - self._msg_timeout, at):
            return TIMED_OUT
        return UNEXPLAINED

    def _was_disturbed(self, nsqd: int, begin: float, end: float) -> bool:
        return any(since < end and until > begin for since, until in self._disturbances.get(nsqd, ()))

    def answered(self, nsqd: int, connection: object, message_id: bytes, how: str) -> None:
        earlier = self._deliveries.get((nsqd, message_id))
        if not earlier or earlier[-1].connection != connection:
            return
        delivery = earlier[-1]
        delivery.answer = how
        delivery.after_cls = self._connection(connection).unsubscribed_at is not None
        delivery.was_requeued |= how == "REQ"
        if how == "FIN":
            self._open.get(nsqd, {}).pop(message_id, None)

    def closed(self, name: object, at: float, *, by_client: bool) -> None:
        """One side of it has ended; nsqd delivers again what was in flight."""
        connection = self._connection(name)
        if not connection.is_dead:
            connection.is_dead, connection.closed_by_client, connection.closed_at = True, by_client, at
        self._rdy.pop(name, None)

    # -- the faults ----------------------------------------------------------------------------------

    def killed(self, nsqd: int, at: float) -> None:
        """It got SIGKILL."""
        self._kills.setdefault(nsqd, []).append(at)
        for number in self._open.get(nsqd, {}).values():
            self._taken[number] = "in flight or requeued"
        granted = sum(rdy for connection, rdy in self._rdy.items() if _nsqd_of(connection) == nsqd)
        self._unseen += granted + _BETWEEN_QUEUES

    def disturbed(self, nsqd: int, begin: float, end: float) -> None:
        """It, or the way to it, stood still; ``end`` may be in the future."""
        found = self._disturbances.setdefault(nsqd, [])
        if found and found[-1][0] <= begin <= found[-1][1]:
            begin, end = found[-1][0], max(end, found.pop()[1])  # one that lasts is told again and again
        found.append((begin, end))

    # -- the end -------------------------------------------------------------------------------------

    def judge(self) -> Verdict:
        verdict = Verdict(delivered=self.delivered_count)
        self._explain_all(verdict)
        for number, publish in self._publishes.items():
            verdict.published += 1
            verdict.outcomes[publish.outcome or "killed"] += 1
            if publish.outcome == CONFIRMED and number not in self._handlings:
                self._missing(number, publish, verdict)
            if publish.outcome in (NOT_SENT, REFUSED) and (number in self._handlings or number in self._keys):
                verdict.arrived_unsent.append(number)
            if publish.outcome == REFUSED:
                verdict.refusals[publish.code] += 1
                if publish.code not in STORING_FAILED:
                    verdict.wrongly_refused.append((number, publish.code))
            if len(self._keys.get(number, ())) > 1 and not publish.may_repeat:
                verdict.repeated.append(number)
            if publish.outcome:
                self._check_deadline(number, publish, verdict)
        if verdict.killed["not seen"] > self._unseen:
            verdict.lost += [number for number in self._never_seen() if number not in self._taken]
        return verdict

    def _missing(self, number: int, publish: _Publish, verdict: Verdict) -> None:
        homes = self._homes.get(number, set())
        if number in self._taken:
            verdict.killed[self._taken[number]] += 1
        elif publish.defer and any(self._was_killed(nsqd, publish.begun_at, publish) for nsqd in homes):
            verdict.killed["deferred"] += 1
        elif number not in self._keys and any(self._kills.get(nsqd, [0.0])[-1] > publish.begun_at for nsqd in homes):
            verdict.killed["not seen"] += 1
        else:
            verdict.lost.append(number)

    def _was_killed(self, nsqd: int, begin: float, publish: _Publish) -> bool:
        until = publish.ended_at + publish.defer + self._msg_timeout
        return any(begin <= kill <= until for kill in self._kills.get(nsqd, ()))

    def _never_seen(self) -> Iterable[int]:
        for number, publish in self._publishes.items():
            if publish.outcome == CONFIRMED and number not in self._handlings and number not in self._keys:
                yield number

    def _check_deadline(self, number: int, publish: _Publish, verdict: Verdict) -> None:
        over = publish.ended_at - publish.deadline
        if over <= LATE:
            return
        stalls = self._stalls.get(self._clients[number], ())
        stood = sum(max(0.0, min(end, publish.ended_at) - max(begin, publish.begun_at)) for begin, end in stalls)
        if over - _STEPS * stood > LATE:
            verdict.late.append((number, over))

    # -- what was handled again ----------------------------------------------------------------------

    def _explain_all(self, verdict: Verdict) -> None:
        deliveries: dict[tuple[str, bytes, int], list[_Delivery]] = {}
        for (_, message_id), of_message in self._deliveries.items():
            for delivery in of_message:
                client = self._connection(delivery.connection).client
                deliveries.setdefault((client, message_id, delivery.attempts), []).append(delivery)
        for number, handlings in self._handlings.items():
            verdict.handled += len(handlings)
            handled: dict[_Delivery, list[Handling]] = {}
            for each in handlings:
                found = deliveries.get((each.client, each.message_id, each.attempts))
                if not found:
                    verdict.undelivered.append(number)
                    continue
                # There are several where a killed nsqd counts attempts anew. One that was given back is meant only if
                # the client says so.
                left = [one for one in found if one not in handled] or found[-1:]
                delivery = min(left, key=lambda one: (one.answer == "REQ") != (each.answer == "REQ"))
                handled.setdefault(delivery, []).append(each)
            self._explain(number, handled, verdict)

    def _explain(self, number: int, handled: dict[_Delivery, list[Handling]], verdict: Verdict) -> None:
        """Count the causes of handling it more than once."""
        causes: list[str] = []
        homes = 0
        for key in self._keys.get(number, ()):
            in_turn = [delivery for delivery in self._deliveries[key] if delivery in handled]
            homes += bool(in_turn)
            copies = 0
            for delivery in in_turn[:-1]:
                cause = self._why_again(key[0], delivery, handled[delivery][0])
                if cause == UNEXPLAINED and not delivery.was_requeued and copies < self._copies(key, delivery):
                    copies += 1
                    cause = KILLED
                causes.append(cause)
            causes += [UNEXPLAINED for delivery in in_turn for _ in handled[delivery][1:]]
        causes += [AGAIN] * (homes - 1)
        verdict.duplicates.update(causes)
        if UNEXPLAINED in causes:
            verdict.unexplained.append(number)

    def _why_again(self, nsqd: int, delivery: _Delivery, handling: Handling) -> str:
        """Why this delivery, which was handled to the end, was not the last one."""
        connection = self._connection(delivery.connection)
        if delivery.was_requeued and delivery.is_second:
            return TIMED_OUT
        if delivery.answer == "REQ":
            is_late = handling.answer == "REQ" or handling.in_thread
            return STOPPED if delivery.after_cls and is_late else UNEXPLAINED
        if delivery.cause == LOST_CONNECTION and self._was_dropped(nsqd, connection, delivery, handling):
            return UNEXPLAINED
        return delivery.cause

    def _copies(self, key: tuple[int, bytes], delivery: _Delivery) -> int:
        """How many records of a message, besides one, kills before this delivery may have left on the disk.

        A kill forgets what was read since the last sync. So a record that was copied from the topic's queue to the
        channel's is copied again, and one that was delivered stays, beside the one that was written when the message
        came back.
        """
        publish = self._publishes.get(delivery.number)
        begun_at = 0.0 if publish is None else publish.begun_at
        kills = [kill for kill in self._kills.get(key[0], ()) if begun_at <= kill <= delivery.at]
        if not kills:
            return 0
        came_back = [each for each in self._deliveries[key] if each.at <= kills[-1] and each.answer != "FIN"]
        return len(kills) + len(came_back)

    def _was_dropped(self, nsqd: int, connection: _Connection, delivery: _Delivery, handling: Handling) -> bool:
        """Whether a Reader that was stopped has closed the connection without the FIN of a handler that was in time."""
        return (
            not delivery.answer
            and handling.answer is None
            and not handling.in_thread
            and connection.unsubscribed_at is not None
            and connection.closed_by_client
            and connection.client in self._ended
            and not self._was_disturbed(nsqd, connection.unsubscribed_at, connection.closed_at)
        )


def _nsqd_of(connection: object) -> int:
    assert isinstance(connection, tuple)
    return int(connection[0])
