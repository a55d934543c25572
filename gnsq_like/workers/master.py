"""The master: starts workers, listens to them and to signals, and carries out what the roster decides.

A single loop over pipes and signals; only the health pages have threads of their own. It uses the standard library
(and prometheus-client for metrics), loads neither gevent nor the user's code, and never waits for a worker.

========  ==========================================================================================================
TERM INT  drain and end; the second one ends at once, and messages of running handlers go back to nsqd
HUP       reload: each worker is replaced by one with the new code, once that has loaded
USR1      all workers write the stacks of their threads and greenlets to the log
========  ==========================================================================================================
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from gnsq_like.errors import NSQError
from gnsq_like.workers.plan import Plan
from gnsq_like.workers.process import MASTER, WorkerProcess, configure, make_formatter, memory_bytes
from gnsq_like.workers.roster import Action, Kill, Member, Roster, Run, Spawn, State, Stop, share

if TYPE_CHECKING:
    from gnsq_like.workers.pages import Pages

logger = logging.getLogger(__name__)

#: Seconds that the loop waits for events at most.
_TICK = 0.2
#: Seconds for a process to write its stacks before it is killed.
_DUMP = 0.5

#: Seconds for systemd to take a message; without a limit, a systemd that reads nothing would stop the supervisor.
_NOTIFY_TIMEOUT = 1.0

#: Exit statuses; a status of 2 has one line on stderr.
CLEAN, CUT_SHORT, CANNOT_RUN = 0, 1, 2


def main(task: dict[str, Any]) -> int:
    """Called by ``boot.py``; returns the exit status."""
    try:
        return Supervisor(Plan.from_json(task["plan"])).run()
    except NSQError as exc:
        print(f"Error: {exc}", file=sys.stderr)
        return CANNOT_RUN


class Supervisor:
    """One run. Next: :meth:`run`, in the main thread."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._roster = Roster(plan)
        self._workers: dict[int, WorkerProcess] = {}
        #: The time at which processes that still write their stacks are killed.
        self._doomed: dict[int, float] = {}
        #: The total max_in_flight of each Reader, as loaded by the workers; it is divided among the slots.
        self._totals: list[int] = []
        self._selector = selectors.DefaultSelector()
        self._signals: deque[int] = deque()
        self._notifier = Notifier()
        self._notified_at = 0.0
        self._is_up = False
        self._pages: Pages | None = None
        #: Whether there was a terminal, and whether its end is the end of this process, which it is not with nohup.
        self._had_terminal = _has_terminal()
        self._terminal_ends_it = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN

    def run(self) -> int:
        """Run until a signal ends it, and no worker is left; returns the exit status.

        0: all handlers had ended. 1: some were cut short, or a worker had to be killed.

        :raises NSQError: when it cannot listen for health pages, or the code cannot be loaded at the beginning
        """
        configure(make_formatter(MASTER, as_json=self._plan.log_json), self._plan.log_level or "info")
        with ExitStack() as stack:
            stack.enter_context(self._catching_signals())
            stack.callback(self._selector.close)
            stack.callback(self._end_all)
            if self._plan.health:
                self._serve_pages(stack)
            while not self._roster.is_over:
                self._step()
            self._notifier.send("STATUS=stopped")
        if self._roster.failure:
            raise NSQError(self._roster.failure)
        logger.info("all processes have ended")
        return CUT_SHORT if self._roster.cut_short else CLEAN

    def _serve_pages(self, stack: ExitStack) -> None:
        from gnsq_like.workers.pages import Pages

        self._pages = Pages(self._plan.health, os.environ.get("PROMETHEUS_MULTIPROC_DIR", ""))
        stack.callback(self._pages.close)
        if not self._pages.has_metrics:
            logger.warning("no /metrics: prometheus-client is not installed: install the extra [prometheus]")
        logger.info("health on http://%s/healthz", self._pages.address)

    def _step(self) -> None:
        """Wait for events, and do what is due."""
        for key, _ in self._selector.select(_TICK):
            key.data()
        while self._signals:
            self._signalled(self._signals.popleft())
        now = time.monotonic()
        self._reap(now)
        self._roster.tick(now)
        for action in self._roster.members.take_actions():
            self._carry_out(action, now)
        for number in [number for number, due in self._doomed.items() if now >= due]:
            del self._doomed[number]
            self._workers[number].kill()
        self._publish(now)

    # -- signals ------------------------------------------------------------------------------------

    @contextmanager
    def _catching_signals(self) -> Iterator[None]:
        """During the block, signals are noted, and wake the loop."""
        ours, wakeup = socket.socketpair()
        ours.setblocking(False)
        wakeup.setblocking(False)
        self._selector.register(ours, selectors.EVENT_READ, lambda: ours.recv(4096))
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)
        before = {number: signal.signal(number, lambda caught, _: self._signals.append(caught)) for number in numbers}
        before_wakeup = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before_wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            ours.close()
            wakeup.close()

    def _signalled(self, number: int) -> None:
        now = time.monotonic()
        if number == signal.SIGHUP and self._had_terminal and not _has_terminal():
            # The terminal was closed: the end, or with nohup nothing.
            if not self._terminal_ends_it:
                return
            number = signal.SIGTERM
        if number in (signal.SIGTERM, signal.SIGINT):
            self._stop(now)
        elif number == signal.SIGHUP:
            self._reload()
        elif number == signal.SIGUSR1:
            for worker in self._workers.values():
                worker.commands.send("stacks")

    def _stop(self, now: float) -> None:
        if self._roster.is_stopping:
            logger.info("stopping at once")
        else:
            logger.info("stopping; running handlers have %g s, a second signal ends them", self._plan.stop_timeout)
        self._notifier.send("STOPPING=1", "STATUS=stopping")
        self._roster.stop(now)

    def _reload(self) -> None:
        logger.info("reloading")
        self._is_up = False
        self._notifier.reloading()
        self._roster.reload()

    # -- workers ------------------------------------------------------------------------------------

    def _carry_out(self, action: Action, now: float) -> None:
        match action:
            case Spawn(number):
                self._spawn(number, now)
            case Run(number, slot):
                self._workers[number].commands.send("run", shares=self._shares(slot))
            case Stop(number, timeout, cause):
                logger.info("worker %d is to end (%s)", number, cause)
                self._workers[number].commands.send("stop", timeout=timeout)
            case Kill(number, dump, cause):
                logger.log(logging.WARNING if dump else logging.INFO, "worker %d is killed (%s)", number, cause)
                if dump:
                    self._workers[number].dump_stacks()
                self._doomed[number] = now + (_DUMP if dump else 0.0)

    def _shares(self, slot: int) -> list[int]:
        # The remainders of different Readers go to different processes, and not all to the first one.
        return [share(total, len(self._roster.slots), slot + index) for index, total in enumerate(self._totals)]

    def _spawn(self, number: int, now: float) -> None:
        try:
            worker = WorkerProcess(number, self._plan, self._pages.directory if self._pages else "")
        except OSError as exc:  # out of processes, memory or descriptors: tried again like a worker that died
            self._roster.ended(number, f"cannot start a process: {exc.strerror}", now)
            return
        self._workers[number] = worker
        self._selector.register(worker.reports.descriptor, selectors.EVENT_READ, lambda: self._read(worker))
        logger.debug("worker %d has process id %d", number, worker.pid)

    def _read(self, worker: WorkerProcess) -> None:
        now = time.monotonic()
        messages = worker.read()
        if worker.reports.is_over:
            with suppress(KeyError):
                self._selector.unregister(worker.reports.descriptor)
        for message in messages:
            kind = message["is"]
            if kind == "loaded":
                self._note_readers(message["readers"])
                self._roster.loaded(worker.number, now)
            elif kind == "beat":
                self._roster.beaten(worker.number, message, now)
            elif kind == "leaving":
                self._roster.leaving(worker.number, now)
            elif kind == "failed" and message["trace"]:
                logger.error("worker %d:\n%s", worker.number, message["trace"])

    def _note_readers(self, readers: list[dict[str, Any]]) -> None:
        totals = [each["max_in_flight"] for each in readers]
        if totals != self._totals:
            self._totals = totals
            for each in readers:
                logger.info("consuming %s/%s: %s", each["topic"], each["channel"], each["handler"])
            self._warn_of_few()

    def _warn_of_few(self) -> None:
        processes = len(self._roster.slots)
        for total in sorted({total for total in self._totals if 0 < total < processes}):
            logger.warning(
                "max_in_flight %d for %d processes: each has 1, so that up to %d messages are in flight",
                *(total, processes, processes),
            )

    def _reap(self, now: float) -> None:
        for number, worker in list(self._workers.items()):
            if worker.status is not None:
                self._read(worker)
                with suppress(KeyError):
                    self._selector.unregister(worker.reports.descriptor)
                worker.close()
                del self._workers[number]
                self._doomed.pop(number, None)
                if self._pages is not None:
                    self._pages.forget(number)
                is_clean = worker.status == 0 and not worker.left
                self._roster.ended(number, worker.how_it_ended, now, is_clean=is_clean)

    def _end_all(self) -> None:
        """Kill all workers after an error of the master itself."""
        for worker in self._workers.values():
            worker.kill()
            worker.wait()
            worker.close()

    # -- status -------------------------------------------------------------------------------------

    def _publish(self, now: float) -> None:
        """Pass the new status to systemd and the health pages."""
        roster = self._roster
        if not self._is_up and not roster.is_stopping and roster.is_up:
            self._is_up = True
            logger.info("running: %s", _counted(len(roster.slots)))
            self._notifier.send("READY=1", f"STATUS=running: {_counted(len(roster.slots))}")
        if self._notifier.interval and now - self._notified_at >= self._notifier.interval:
            self._notified_at = now
            self._notifier.send("WATCHDOG=1")
        if self._pages is not None:
            self._pages.status = self._status(now)

    def _status(self, now: float) -> dict[str, object]:
        roster = self._roster
        problems = [problem for slot in roster.slots if (problem := slot.problem(now)) is not None]
        if roster.is_stopping:
            problems.append("stopping")
        return {
            "status": "failing" if problems else "ok",
            "problems": problems,
            "wanted": len(roster.slots),
            "restarts": {str(cause): count for cause, count in roster.restarts.items()},
            "workers": [
                self._row(member, now) for number, member in roster.members.by_number.items() if number in self._workers
            ],
        }

    def _row(self, member: Member, now: float) -> dict[str, object]:
        worker = self._workers[member.number]
        return {
            "number": member.number,
            "pid": worker.pid,
            "state": str(member.state),
            "started_at": worker.started_at,
            "heartbeat_age": max(0.0, now - member.seen) if member.state is State.RUNNING else 0.0,
            "memory_bytes": memory_bytes(worker.pid) or member.beat.get("memory_bytes", 0),
            "messages": member.beat.get("messages", 0),
            "readers": member.beat.get("readers", []),
        }


def _counted(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        return True
    return False


class Notifier:
    """Reports the supervisor's state to systemd (sd_notify(3)); does nothing elsewhere.

    :param environ: the environment
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        #: An @ stands for the zero byte of an abstract name.
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        #: Seconds between two signs of life; 0 for none.
        self.interval = 0.0
        if environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
            with suppress(ValueError):
                self.interval = int(environ.get("WATCHDOG_USEC", "0")) / 1e6 / 2

    def send(self, *lines: str) -> None:
        """Send assignments, as "READY=1"; failures are ignored."""
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(_NOTIFY_TIMEOUT)
            sock.sendto("\n".join(lines).encode(), self._address)

    def reloading(self) -> None:
        """Report that a reload has begun; "READY=1" ends it."""
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")
