"""A run: clients work while faults happen, everything is let come to rest, and what was seen is judged."""

from __future__ import annotations

import operator
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import gevent
from gevent.event import Event

from tests.faults.actors import WAYS, Actor
from tests.faults.ledger import Ledger, Verdict
from tests.faults.notes import read_into
from tests.faults.resources import peak_memory, time_waited
from tests.faults.schedule import Fault, make_schedule
from tests.faults.stage import Stage
from tests.faults.trace import Trace
from tests.faults.window import Window

COUNTS = {"nsqd": 3, "link": 3, "lookupd": 1, "liar": 1, "client": len(WAYS)}
#: Seconds after which nsqds take a message back; handlers hang for up to one and a half of it.
MSG_TIMEOUT = 2.0
#: Seconds for clients to begin, and for all that is left to be handled in the end; on a machine that does much else.
START_TIMEOUT = 300.0
DRAIN_TIMEOUT = 300.0
#: Seconds for nsqds to close their sockets: one that a link lost before its IDENTIFY is dropped after two of nsqd's own
#: heartbeat intervals.
_CLOSE_TIMEOUT = 180.0
#: Seconds that a killed connection's or nsqd's effects may last.
_AFTERMATH = 1.0
#: Seconds between two looks at the nsqds, while nothing passes.
_TICK = 0.05
#: Seconds by which this process may be late before what it saw is in doubt.
_STALL = 0.2
#: The part of the time that an nsqd waits for a processor on a machine that does much else.
_STARVED = 0.5
#: Messages whose history is shown for each kind of violation.
_HISTORIES = 3
#: What a client should not log; handlers raise Odd and KeyboardInterrupt.
_BAD_LOGS = re.compile(
    r"unexpected error|Fatal Python error|could not be detached|called from another thread, failed|on_\w+ failed"
    r"|<Greenlet .* failed with (?!Odd|KeyboardInterrupt)\w+"
)


class _Wire:
    """Tells ledger, window and trace what passes; see ``tap.Wire``."""

    def __init__(self, ledger: Ledger, window: Window) -> None:
        self._ledger = ledger
        self._window = window
        #: Set when there is a directory for it.
        self.trace: Trace
        #: Called with an nsqd before what it has sent is judged; set by the campaign.
        self.look: Callable[[int], object] = lambda nsqd: None

    def identified(self, connection: object, client: str) -> None:
        self.trace.write("identified", connection, client)
        self._ledger.identified(connection, client)
        self._window.identified(connection, client)

    def granted(self, connection: object, rdy: int, at: float) -> None:
        self.trace.write("RDY", connection, rdy)
        self._ledger.granted(connection, rdy)
        self._window.granted(connection, rdy, at)

    def unsubscribed(self, connection: object, at: float) -> None:
        self.trace.write("CLS", connection)
        self._ledger.unsubscribed(connection, at)
        self._window.granted(connection, 0, at)

    def published(self, nsqd: int, number: int, at: float) -> None:
        self.trace.write("published", nsqd, number)
        self._ledger.published(nsqd, number)

    def delivered(
        self, nsqd: int, connection: object, message_id: bytes, number: int, attempts: int, at: float
    ) -> None:
        self.trace.write("delivered", connection, f"attempts={attempts}", message_id, number)
        self.look(nsqd)
        if number >= 0:
            self._ledger.delivered(nsqd, connection, message_id, number, attempts, at)
        self._window.delivered(connection, message_id, at)

    def received(self, connection: object, message_id: bytes, at: float) -> None:
        self.trace.write("received", connection, message_id)
        self._window.received(connection, message_id, at)

    def answered(self, nsqd: int, connection: object, message_id: bytes, how: str, at: float) -> None:
        self.trace.write(how, connection, message_id)
        self._ledger.answered(nsqd, connection, message_id, how)
        self._window.answered(connection, message_id)

    def client_closed(self, connection: object, at: float) -> None:
        self.trace.write("client-closed", connection)
        self._ledger.closed(connection, at, by_client=True)
        self._window.client_closed(connection)

    def server_closed(self, nsqd: int, connection: object, at: float) -> None:
        self.trace.write("server-closed", connection)
        self._ledger.closed(connection, at, by_client=False)


@dataclass
class Result:
    """What a run has shown."""

    seed: int
    nsq: str
    seconds: float
    faults: Counter[str]
    verdict: Verdict
    window: Window
    #: Everything else that is wrong, as text.
    errors: list[str] = field(default_factory=list)
    #: What each client that ended in good order held before and after.
    resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: MiB, by kind of process.
    peaks: dict[str, float] = field(default_factory=dict)


class Campaign:
    """One run.

    :param seed: decides faults, clients and handlers
    :param seconds: of faults
    :param nsq: "ours" or "real"
    :param kinds: the faults go on until there have been so many kinds, as far as those seconds have them; on a busy
        machine each takes longer than planned
    """

    def __init__(self, seed: int, seconds: float, nsq: str, kinds: int = 0) -> None:
        self._seed = seed
        self._seconds = seconds
        self._kinds = kinds
        self._nsq = nsq
        self._ledger = Ledger(MSG_TIMEOUT)
        self._window = Window(MSG_TIMEOUT)
        self._faults: Counter[str] = Counter()
        self._errors: list[str] = []
        self._peaks: dict[str, float] = {"nsqd": 0.0}
        self._wire = _Wire(self._ledger, self._window)
        self._stage = Stage(nsq, self._wire, COUNTS["nsqd"], MSG_TIMEOUT)
        self._actors: list[Actor] = []
        #: For each process of an nsqd, when it was looked at, and the seconds that it had waited by then.
        self._waited: dict[int, tuple[float, float]] = {}
        #: How many faults each nsqd and its link are under now.
        self._under_fault: Counter[int] = Counter()
        self._wire.look = self._look
        #: Set when there are to be no more faults.
        self._over = Event()

    def run(self) -> Result:
        """Do it. Switches."""
        with ExitStack() as cleanup:
            ticker = gevent.spawn(self._tick)
            cleanup.callback(ticker.kill)
            cleanup.enter_context(self._stage)
            self._wire.trace = Trace(self._stage.directory / "trace")
            cleanup.callback(self._wire.trace.close)
            counts = [len(sockets) for sockets in self._stage.sockets()]
            self._actors = [Actor(self._seed, index, self._stage, MSG_TIMEOUT) for index in range(COUNTS["client"])]
            for actor in self._actors:
                cleanup.callback(actor.kill)
                self._begin(actor)
            self._wait(lambda: all(actor.is_working for actor in self._actors), START_TIMEOUT, "clients do not begin")
            self._do_faults()
            self._come_to_rest()

            def are_closed() -> bool:
                now = [len(sockets) for sockets in self._stage.sockets()]
                return len(now) == len(counts) and all(map(operator.le, now, counts))

            if not self._wait(are_closed, _CLOSE_TIMEOUT, "nsqds keep sockets, or have ended"):
                self._errors[-1] += f", {counts} before: {self._stage.sockets()}"
            return self._result()

    def hurry(self) -> bool:
        """End the faults now; False if they have ended. Never switches."""
        if self._over.is_set():
            return False
        self._over.set()
        return True

    def _begin(self, actor: Actor) -> None:
        spec = actor.start()
        self._window.limit(spec.name, spec.reader["max_in_flight"])

    def _wait(self, condition: Callable[[], Any], timeout: float, problem: str) -> bool:
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                self._errors.append(problem)
                return False
            gevent.sleep(0.1)
        return True

    def _tick(self) -> None:
        """What is seen while this process stands still has the wrong time; and an nsqd may get no time to run."""
        while True:
            begin = time.monotonic()
            gevent.sleep(_TICK)
            end = time.monotonic()
            for nsqd, each in enumerate(self._stage.nsqds):
                if end - begin > _STALL:
                    self._disturb(nsqd, begin, end + _AFTERMATH)
                self._look(nsqd)
                if each.process is None:
                    continue
                self._peaks["nsqd"] = max(self._peaks["nsqd"], peak_memory(each.process.pid))

    def _look(self, nsqd: int) -> None:
        """Note whether an nsqd is under a fault, or had to wait for a processor. Never switches.

        Also when it has sent a message: it may have waited until a moment ago, and what it does then is judged at once.
        A fault may last longer than planned, because an nsqd takes long to start.
        """
        if self._under_fault[nsqd]:
            now = time.monotonic()
            self._disturb(nsqd, now, now + _AFTERMATH)
        process = self._stage.nsqds[nsqd].process if nsqd < len(self._stage.nsqds) else None
        if process is None:
            return
        now, waited = time.monotonic(), time_waited(process.pid)
        looked_at, before = self._waited.setdefault(process.pid, (now, waited))
        if waited - before > _STARVED * max(_TICK, now - looked_at):
            # The kernel counts a wait when it is over, so this one may have begun before the last look.
            self._disturb(nsqd, min(looked_at, now - (waited - before)), now + _AFTERMATH)
        elif now - looked_at < _TICK:
            return  # many short looks would never add up to a wait
        self._waited[process.pid] = now, waited

    def _disturb(self, nsqd: int, begin: float, end: float) -> None:
        self._ledger.disturbed(nsqd, begin, end)
        self._window.disturbed_until[nsqd] = max(end, self._window.disturbed_until.get(nsqd, 0.0))

    # -- faults --------------------------------------------------------------------------------------

    def _do_faults(self) -> None:
        began = time.monotonic()
        by_target: dict[tuple[str, int], list[Fault]] = {}
        for fault in make_schedule(self._seed, self._seconds, COUNTS, self._nsq):
            by_target.setdefault((fault.sort, fault.target), []).append(fault)

        def is_enough() -> bool:
            return time.monotonic() > began + self._seconds and len(self._faults) >= self._kinds

        def do_all(faults: list[Fault]) -> None:
            # The pauses are kept where a fault takes longer than planned: on a busy machine a daemon needs seconds to
            # start, and is to work before it is killed again.
            planned = 0.0
            for fault in faults:
                if self._over.wait(max(0.0, fault.at - planned)) or is_enough():
                    return
                self._do(fault)
                planned = fault.ends_at

        running = [gevent.spawn(do_all, faults) for faults in by_target.values()]
        self._over.wait(self._seconds)
        while not (self._over.is_set() or is_enough() or all(each.dead for each in running)):
            gevent.sleep(0.1)
        self._seconds = time.monotonic() - began
        self._over.set()
        gevent.joinall(running)

    def _do(self, fault: Fault) -> None:
        self._faults[f"{fault.sort}: {fault.kind}"] += 1
        self._wire.trace.write("fault", fault)
        try:
            if fault.sort == "client":
                spec = self._actors[fault.target].do(fault)
                if spec is not None:
                    self._window.limit(spec.name, spec.reader["max_in_flight"])
                return
            if fault.sort in ("nsqd", "link"):
                self._under_fault[fault.target] += 1
                self._look(fault.target)
            try:
                self._stage.do(fault, lambda nsqd: self._ledger.killed(nsqd, time.monotonic()))
            finally:
                if fault.sort in ("nsqd", "link"):
                    self._look(fault.target)
                    self._under_fault[fault.target] -= 1
        except Exception as exc:
            self._errors.append(f"{fault}: {exc!r}")

    # -- the end -------------------------------------------------------------------------------------

    def _come_to_rest(self) -> None:
        # One that was killed last may not have begun yet; what it publishes must find the others' Readers.
        self._wait(
            lambda: all(actor.has_said("running") for actor in self._actors), START_TIMEOUT, "clients do not begin"
        )
        for actor in self._actors:
            actor.command("quiet")
        self._wait(
            lambda: all(actor.has_said("quiet") for actor in self._actors), DRAIN_TIMEOUT, "publishers do not end"
        )
        left: list[dict[str, int] | None] = [None, None]

        def is_drained() -> bool:
            left[:] = [left[1], self._stage.left()]
            return all(each is not None and not any(each.values()) for each in left)

        if not self._wait(is_drained, DRAIN_TIMEOUT, "the channels do not become empty"):
            self._errors[-1] += f": {left[1]}"
        gevent.joinall([gevent.spawn(actor.end) for actor in self._actors])
        for actor in self._actors:
            self._errors += actor.errors
            for spec in actor.specs:
                log = (self._stage.directory / f"{spec.name}.log").read_text(errors="replace")
                self._errors += [
                    f"{spec.name} logged: {log[found.start() :][:2000]}" for found in _BAD_LOGS.finditer(log)
                ]
        for nsqd in self._stage.nsqds:
            self._stage.look_at_log(nsqd)
        self._errors += self._stage.bad_logs

    def _result(self) -> Result:
        self._peaks["client"] = max(actor.peak_mib for actor in self._actors)
        self._peaks["campaign"] = peak_memory(os.getpid())
        resources = {}
        for actor in self._actors:
            for spec in actor.specs:
                errors, held = read_into(self._stage.directory / f"{spec.name}.notes", spec.name, self._ledger)
                self._errors += [f"{spec.name}: {error}" for error in errors]
                if held is not None:
                    resources[spec.name] = held
        verdict = self._ledger.judge()
        for name, numbers in verdict.violations.items():
            for number in numbers[:_HISTORIES]:
                self._errors.append("\n  ".join([f"{name}:", *self._history(number)]))
        return Result(
            self._seed,
            self._nsq,
            self._seconds,
            self._faults,
            verdict,
            self._window,
            self._errors,
            resources,
            self._peaks,
        )

    def _history(self, found: int | tuple[int, object]) -> list[str]:
        """What happened to a message."""
        number = found[0] if isinstance(found, tuple) else found
        return self._wire.trace.history(number, sorted(self._stage.directory.glob("*.notes")))
