"""Every message of a run: who published it with which outcome, each delivery, each handling; and what does not add up.

What must hold:

- A confirmed message is handled to the end at least once, unless its nsqd was killed while it was only in its memory:
  in flight, requeued with a delay, or deferred (docs/daemons.rst). Everything else is on disk, because the runs have
  mem-queue-size 0.
- One that was not sent, or refused, never arrives.
- Without ``retry_unknown`` and replicas, a message is taken by one nsqd only, once.
- Whatever is handled to the end more than once was delivered again for a reason: a lost connection, a timeout, a
  killed nsqd.
- A publish returns by its deadline.

Clients' notes and the wire are told independently of each other; ``judge`` puts them together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

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
class _Delivery:
    """The last delivery of a message by one nsqd."""

    number: int
    connection: object
    at: float
    #: "FIN", "REQ", or empty.
    answer: str = ""
    answered_at: float = 0.0


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
        self._handled: Counter[int] = Counter()
        #: By nsqd and message id.
        self._deliveries: dict[tuple[int, bytes], _Delivery] = {}
        #: The ids under which nsqds have delivered it.
        self._keys: dict[int, list[tuple[int, bytes]]] = {}
        #: Why it was delivered again, each time; for a REQ its client and when.
        self._redelivered: dict[int, list[str | tuple[str, float]]] = {}
        #: The nsqds to which it was sent.
        self._homes: dict[int, set[int]] = {}
        #: By nsqd: messages delivered and not finished.
        self._open: dict[int, dict[bytes, int]] = {}
        self._dead_connections: set[object] = set()
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
        #: By client: (from, until) in which its Reader was stopping.
        self._stops: dict[str, list[tuple[float, float]]] = {}
        #: The clients of connections.
        self._client_of: dict[object, str] = {}
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

    def handled(self, number: int) -> None:
        self._handled[number] += 1

    def stalled(self, client: str, begin: float, end: float) -> None:
        """The client's process, or a thread of it, did not run."""
        self._stalls.setdefault(client, []).append((begin, end))

    def stopping(self, client: str, begin: float, end: float) -> None:
        """The client stopped its Reader, which requeues what is not answered in time."""
        self._stops.setdefault(client, []).append((begin, end))

    # -- the wire ------------------------------------------------------------------------------------

    def identified(self, connection: object, client: str) -> None:
        self._client_of[connection] = client

    def published(self, nsqd: int, number: int) -> None:
        self._homes.setdefault(number, set()).add(nsqd)

    def granted(self, connection: object, rdy: int) -> None:
        if connection not in self._dead_connections:
            self._rdy[connection] = rdy

    def delivered(self, nsqd: int, connection: object, message_id: bytes, number: int, at: float) -> None:
        self.delivered_count += 1
        key = (nsqd, message_id)
        before = self._deliveries.get(key)
        if before is None:
            self._keys.setdefault(number, []).append(key)
        else:
            self._redelivered.setdefault(number, []).append(self._cause(nsqd, before, at))
        self._deliveries[key] = _Delivery(number, connection, at)
        self._open.setdefault(nsqd, {})[message_id] = number

    def _cause(self, nsqd: int, before: _Delivery, at: float) -> str | tuple[str, float]:
        if before.answer == "REQ":
            return self._client_of.get(before.connection, ""), before.answered_at
        if any(kill >= before.at for kill in self._kills.get(nsqd, ())):
            return KILLED
        if before.connection in self._dead_connections:
            return LOST_CONNECTION
        if at - before.at >= self._msg_timeout - _TIMEOUT_MARGIN:
            return TIMED_OUT
        since = before.at - self._msg_timeout
        if any(begin < at and end > since for begin, end in self._disturbances.get(nsqd, ())):
            return TIMED_OUT
        return UNEXPLAINED

    def answered(self, nsqd: int, connection: object, message_id: bytes, how: str, at: float) -> None:
        delivery = self._deliveries.get((nsqd, message_id))
        if delivery is None or delivery.connection != connection:
            return
        delivery.answer, delivery.answered_at = how, at
        if how == "FIN":
            self._open[nsqd].pop(message_id, None)

    def closed(self, connection: object) -> None:
        """One side of it has ended; nsqd delivers again what was in flight."""
        self._dead_connections.add(connection)
        self._rdy.pop(connection, None)

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
        self._disturbances.setdefault(nsqd, []).append((begin, end))

    # -- the end -------------------------------------------------------------------------------------

    def judge(self) -> Verdict:
        verdict = Verdict(delivered=self.delivered_count)
        for number, publish in self._publishes.items():
            verdict.published += 1
            verdict.outcomes[publish.outcome or "killed"] += 1
            if publish.outcome == CONFIRMED and not self._handled[number]:
                self._missing(number, publish, verdict)
            if publish.outcome in (NOT_SENT, REFUSED) and (self._handled[number] or number in self._keys):
                verdict.arrived_unsent.append(number)
            if publish.outcome == REFUSED:
                verdict.refusals[publish.code] += 1
                if publish.code not in STORING_FAILED:
                    verdict.wrongly_refused.append((number, publish.code))
            if len(self._keys.get(number, ())) > 1 and not publish.may_repeat:
                verdict.repeated.append(number)
            if publish.outcome:
                self._check_deadline(number, publish, verdict)
        for number, times in self._handled.items():
            verdict.handled += times
            self._explain(number, times - 1, verdict)
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
            if publish.outcome == CONFIRMED and not self._handled[number] and number not in self._keys:
                yield number

    def _check_deadline(self, number: int, publish: _Publish, verdict: Verdict) -> None:
        over = publish.ended_at - publish.deadline
        if over <= LATE:
            return
        stalls = self._stalls.get(self._clients[number], ())
        stood = sum(max(0.0, min(end, publish.ended_at) - max(begin, publish.begun_at)) for begin, end in stalls)
        if over - _STEPS * stood > LATE:
            verdict.late.append((number, over))

    def _explain(self, number: int, times: int, verdict: Verdict) -> None:
        """The causes of handling it ``times`` more than once."""
        causes = [AGAIN] * (len(self._keys.get(number, ())) - 1)
        for cause in self._redelivered.get(number, ()):
            if isinstance(cause, str):
                causes.append(cause)
            elif self._was_stopping(*cause):
                causes.append(STOPPED)
        explained = list(islice((cause for cause in causes if cause != UNEXPLAINED), times))
        verdict.duplicates.update(explained)
        if len(explained) < times:
            verdict.duplicates[UNEXPLAINED] += times - len(explained)
            verdict.unexplained.append(number)

    def _was_stopping(self, client: str, at: float) -> bool:
        return any(begin <= at <= end for begin, end in self._stops.get(client, ()))


def _nsqd_of(connection: object) -> int:
    assert isinstance(connection, tuple)
    return int(connection[0])
